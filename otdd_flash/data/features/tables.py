"""Tables of numbers and categories: one scikit-learn pipeline for both sides of a distance.

In the coordinates of :func:`table_pipeline` every column counts alike: two independent rows are at an expected squared
distance of 2 in a standardised number, and of ``2 (1 - sum_c p_c^2) <= 2`` in a one-hot category with shares ``p_c``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from torch import Tensor

from otdd_flash.checks import check_choice, shown
from otdd_flash.data.arrays import from_arrays
from otdd_flash.data.classes import encode_labels
from otdd_flash.data.features.embedders import Batching, Embedder
from otdd_flash.data.features.transformers import as_rows, is_fitted, is_transformer
from otdd_flash.data.unembedded import TableDataset
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

_SHOWN = 5


@plain_torch
def table_pipeline(
    *frames: Any, exclude: Sequence[str] = (), categorical: Sequence[str] | None = None, scale: bool = True
) -> Any:
    """An unfitted pipeline for data frames of these columns: categories one-hot, numbers standardised.

    Categories are those of all ``frames`` together, so that no side has one that the other does not know; a later frame
    with another one is an error and never a silent zero. Constant numbers are only centred.

    Args:
        *frames: pandas data frames with the same columns, as a rule source and target.
        exclude: columns that are no features: label, weights, identifiers.
        categorical: columns to encode; default those that hold text, booleans or pandas categories. Integers count as
            numbers unless they are named here.
        scale: standardise the numbers; ``False`` leaves them as they are.

    Returns:
        A scikit-learn ``ColumnTransformer``; fit it, or give it to :func:`table_pair` or as a step of a longer
        ``Pipeline``.

    Raises:
        TypeError: a string where a list of columns is meant.
        ValueError: no frame, columns that differ, are not there or are there twice, missing or infinite values, columns
            of no usable kind.
    """
    if not frames:
        raise ValueError("table_pipeline needs a data frame, as a rule two: table_pipeline(source, target)")
    for name, given in (("exclude", exclude), ("categorical", categorical)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a list of columns, got the string {given!r}: give [{given!r}]")
    columns = _columns(frames, exclude)
    chosen = _categorical(frames, columns) if categorical is None else list(categorical)
    lost = [column for column in chosen if column not in columns]
    if lost:
        raise ValueError(f"categorical column {lost[0]!r} is not among the features {columns[:40]}")
    for column in columns:
        _refuse_missing(frames, column)
    numeric = [column for column in columns if column not in chosen]
    compose = optional_import("sklearn.compose", needed_for="table_pipeline")
    preprocessing = optional_import("sklearn.preprocessing", needed_for="table_pipeline")
    known = [_categories(frames, column) for column in chosen]
    encoder = preprocessing.OneHotEncoder(categories=known, sparse_output=False, handle_unknown="error")
    parts = [("numbers", preprocessing.StandardScaler() if scale else "passthrough", numeric)] if numeric else []
    parts += [("categories", encoder, chosen)] if chosen else []
    return compose.ColumnTransformer(parts)


@plain_torch
def table_pair(
    source: Any,
    target: Any,
    *,
    label: str,
    transformer: Any = None,
    fit_on: Literal["source", "target", "both"] = "source",
    weights: str | None = None,
    names: tuple[str, str] = ("source", "target"),
) -> tuple[LabeledDataset, LabeledDataset]:
    """Two labelled data frames as comparable data sets, through one pipeline.

    Args:
        source: pandas data frame, one sample a row.
        target: the same columns.
        label: column of class labels; unlabelled rows are dropped with a count and not fitted on.
        transformer: any scikit-learn transformer or pipeline of the feature columns, fitted (used as it is) or not (a
            clone is fitted); default :func:`table_pipeline` of both frames.
        fit_on: side that an unfitted one is fitted on, ``source``, ``target`` or ``both`` (rows together). A fit on one
            side makes the distance depend on which side is which.
        weights: column of weights.
        names: of the two data sets.

    Returns:
        Source and target; ``ids`` are row numbers.

    Raises:
        ValueError: columns that differ or are not there, missing values, a category that the transformer does not know.
    """
    check_choice("fit_on", fit_on, ("source", "target", "both"))
    for argument, column in (("label", label), ("weights", weights)):
        if not isinstance(column, Hashable):
            raise TypeError(f"{argument} must name a column, got {shown(column)}")
    if not isinstance(names, tuple | list) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be two, of the source and of the target, got {shown(names)}")
    frames = [_frame(side, name) for side, name in ((source, "source"), (target, "target"))]
    other = [label] if weights is None else [label, weights]
    columns = _columns(frames, other)
    if transformer is None:
        transformer = table_pipeline(*frames, exclude=other)
    if not is_transformer(transformer):
        raise TypeError(f"transformer must have fit and transform, got {type(transformer).__name__}")
    if not is_fitted(transformer):
        chosen = frames if fit_on == "both" else [frames[("source", "target").index(fit_on)]]
        rows = [frame.loc[encode_labels(frame[label]).ids >= 0, columns] for frame in chosen]
        clone = optional_import("sklearn.base", needed_for="table_pair").clone(transformer)
        transformer = clone.fit(optional_import("pandas", needed_for="table_pair").concat(rows, ignore_index=True))
    title = type(transformer).__name__
    a, b = (
        from_arrays(
            as_rows(transformer.transform(frame[columns]), len(frame), title), frame[label],
            weights=None if weights is None else frame[weights].to_numpy(), name=name,
        )
        for frame, name in zip(frames, names, strict=True)
    )  # fmt: skip
    return a, b


class TableEmbedder(Embedder):
    """Tables of numbers and categories through one :func:`table_pipeline`.

    Args:
        known: frames whose categories it knows, besides those that it is fitted on.
        pipeline: where it is fitted already.
    """

    name = "table"
    tables = True
    stored = False

    def __init__(self, known: Sequence[Any] = (), pipeline: Any = None) -> None:
        self.known, self.pipeline = tuple(known), pipeline

    def seen(self, *datasets: TableDataset | LabeledDataset) -> TableEmbedder:
        """With the categories of these data sets as well; itself where it is fitted."""
        return self if self.pipeline is not None else TableEmbedder((*self.known, *map(_columns_of, datasets)))

    def fitted(self, *datasets: TableDataset | LabeledDataset) -> TableEmbedder:
        """Itself where it is fitted, else fitted on these data sets, rows together."""
        if self.pipeline is not None:
            return self
        frames = [_columns_of(dataset) for dataset in datasets]
        rows = optional_import("pandas", needed_for="tables").concat(frames, ignore_index=True)
        return TableEmbedder(pipeline=table_pipeline(*frames, *self.known).fit(rows))

    def embed(self, dataset: TableDataset | LabeledDataset, batching: Batching) -> Tensor:
        """``(n, k)`` standardised numbers and one-hot categories.

        Raises:
            ValueError: columns or categories that it was not fitted on.
        """
        if self.pipeline is None:
            raise ValueError("the embedder table is not fitted: use Features, or call fitted(dataset) first")
        try:
            outputs = self.pipeline.transform(_columns_of(dataset))
        except ValueError as error:
            raise ValueError(
                f"{dataset.name} does not fit the table that others were fitted on: {error}; keep the rows and columns "
                "that all sets share, or put the set with all categories first (of a ranking: the target)"
            ) from error
        return as_rows(outputs, dataset.n, self.name)


def _columns_of(dataset: TableDataset | LabeledDataset) -> Any:
    """The feature columns as a pandas data frame; numbers without names are numbered."""
    if isinstance(dataset, TableDataset):
        return dataset.frame
    pandas = optional_import("pandas", needed_for="tables")
    return pandas.DataFrame(dataset.x.detach().cpu().numpy(), columns=[f"x{i}" for i in range(dataset.d)])


def _frame(side: Any, name: str) -> Any:
    """A pandas data frame with plain row numbers."""
    if not hasattr(side, "iloc") and hasattr(side, "to_pandas"):
        side = side.to_pandas()
    if not hasattr(side, "iloc"):
        raise TypeError(f"{name} must be a pandas data frame, got {type(side).__name__}")
    if not len(side):
        raise ValueError(f"{name} has no rows")
    return side.reset_index(drop=True)


def _columns(frames: Sequence[Any], exclude: Sequence[str]) -> list[str]:
    """Feature columns in the order of the first frame; the others must have them too."""
    first = list(frames[0].columns)
    for frame in frames:
        twice = frame.columns[frame.columns.duplicated()].tolist()
        if twice:
            raise ValueError(f"column {twice[0]!r} is there twice: give each column a name of its own")
    for column in exclude:
        if any(column not in frame.columns for frame in frames):
            raise ValueError(f"no column {column!r} among {first[:40]} of every frame")
    for frame in frames[1:]:
        odd = sorted(map(str, set(first) ^ set(frame.columns)))
        if odd:
            raise ValueError(
                f"the frames have different columns, {odd[:_SHOWN]} are in one of them only: keep those that both have"
            )
    columns = [column for column in first if column not in exclude]
    if not columns:
        raise ValueError(f"no feature column is left of {first[:40]} without {list(exclude)}")
    return columns


def _categorical(frames: Sequence[Any], columns: Sequence[str]) -> list[str]:
    """Columns that hold no numbers in at least one frame.

    Raises:
        ValueError: dates and the like, which are neither.
    """
    types = optional_import("pandas", needed_for="table_pipeline").api.types
    found = []
    for column in columns:
        dtypes = [frame[column].dtype for frame in frames]
        for dtype in dtypes:
            if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
                raise ValueError(f"column {column!r} holds {dtype}: make numbers of it, or name it in categorical=")
        if any(types.is_bool_dtype(dtype) or not types.is_numeric_dtype(dtype) for dtype in dtypes):
            found.append(column)
    return found


def _refuse_missing(frames: Sequence[Any], column: str) -> None:
    count = sum(int(frame[column].isna().sum()) for frame in frames)
    infinite = sum(int(frame[column].isin([math.inf, -math.inf]).sum()) for frame in frames)
    if infinite:
        raise ValueError(f"column {column!r} has {infinite} infinite values: drop the rows or bound them")
    if count:
        raise ValueError(
            f"column {column!r} has {count} missing values: drop the rows, fill them, or put an imputer in a pipeline "
            "of your own (transformer=)"
        )


def _categories(frames: Sequence[Any], column: str) -> Any:
    """Sorted values of a column in all frames, as the array of objects that the encoder takes.

    Raises:
        ValueError: values of several kinds, which have no order.
    """
    try:
        values = {value for frame in frames for value in frame[column].tolist()}
    except TypeError as error:
        raise ValueError(f"column {column!r} holds values that are no categories: {error}") from error
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) > 1:
        raise ValueError(f"column {column!r} holds values of several kinds, {kinds}: bring them to one")
    array = optional_import("numpy", needed_for="table_pipeline").empty(len(values), dtype=object)
    array[:] = sorted(values)
    return array
