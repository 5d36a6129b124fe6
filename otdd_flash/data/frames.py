"""Data frames as a data set."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from otdd_flash.checks import check_text
from otdd_flash.data.arrow import ENCODE_ADVICE, label_column
from otdd_flash.data.columns import Table, choose_columns, table_rows
from otdd_flash.data.rows import Draw, Rows, build
from otdd_flash.data.unembedded import TextDataset
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


@plain_torch
def from_dataframe(
    df: Any,
    *,
    label: Hashable,
    features: Sequence[Hashable] | None = None,
    text: Hashable | None = None,
    weights: Hashable | None = None,
    class_names: Sequence[str] | Mapping | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
    name: str = "dataframe",
) -> LabeledDataset | TextDataset:
    """A data set from a data frame of pandas, polars, Arrow or any other library that narwhals knows.

    Args:
        df: one sample a row.
        label: column of class labels; missing ones and ``-1`` are unlabelled and dropped with a count. Names of columns
            are compared as text: ``0`` and ``"0"`` are one.
        features: columns of numbers, or of vectors or arrays of one shape; default all but ``label``, ``weights`` and a
            column that is an index by its name (``Unnamed: 0``, ``__index_level_0__``). Those used are in ``notes``.
        text: column of texts instead of ``features``; the result is a :class:`TextDataset`.
        weights: column of weights.
        class_names: names by label.
        max_samples: at most so many rows, drawn uniformly without replacement; ``None`` for all.
        seed: of the draw.
        classes: keep these classes only, by label or by name.
        name: for messages and results.

    Returns:
        The data set; ``ids`` are row numbers, whatever the frame's index.

    Raises:
        ValueError: columns that are not there, that are not numeric, or that have missing values.
    """
    check_text("name", name)
    rows = frame_rows(
        df, label=label, features=features, text=text, weights=weights, class_names=class_names, name=name
    )
    return build(rows, Draw(max_samples, seed, classes))


def frame_rows(
    df: Any,
    *,
    label: Hashable | None,
    features: Sequence[Hashable] | None = None,
    text: Hashable | None = None,
    weights: Hashable | None = None,
    class_names: Sequence[str] | Mapping | None = None,
    name: str = "dataframe",
) -> Rows:
    """Rows of a data frame: arguments as in :func:`from_dataframe`; ``label=None`` takes a column of a usual name."""
    table = as_table(df)
    columns = choose_columns(table.names, label=label, features=features, text=text, weights=weights, index=table.index)
    return table_rows(table, columns, name=name, class_names=class_names)


def is_frame(value: Any) -> bool:
    """Whether a value has named columns, as data frames and Arrow tables have."""
    kind = type(value)  # asked of the class: a lazy frame would compute its columns
    return hasattr(kind, "columns") and (hasattr(kind, "dtypes") or hasattr(kind, "schema"))


def as_table(df: Any) -> Table:
    """A data frame of any library.

    Raises:
        ValueError: something else.
    """
    pandas = sys.modules.get("pandas")  # not loaded: then it is no frame of pandas
    if pandas is not None and isinstance(df, pandas.DataFrame):
        return Table(
            names=tuple(map(str, df.columns)),
            n=len(df),
            column=lambda i: df.iloc[:, i],
            take=lambda columns, rows: _from_pandas(df, columns, rows),
        )
    arrow = optional_import("pyarrow", needed_for="data frames")
    if hasattr(df, "__arrow_c_stream__"):
        return arrow_table(arrow.table(df))
    if is_frame(df):
        narwhals = optional_import("narwhals", needed_for=f"reading a {type(df).__module__}.{type(df).__name__}")
        frame = narwhals.from_native(df, pass_through=True)
        if frame is not df:
            return arrow_table((frame.collect() if isinstance(frame, narwhals.LazyFrame) else frame).to_arrow())
    if hasattr(df, "to_pandas"):
        return as_table(df.to_pandas())
    raise ValueError(
        f"df must be a data frame (pandas, polars, Arrow or another that narwhals knows), got {type(df).__name__}"
    )


def arrow_table(table: Any, names: Sequence[str] | None = None) -> Table:
    """A ``pyarrow.Table``, whose columns may be some of those of a source with more ``names``."""
    told = tuple(table.column_names if names is None else names)
    held = {name: i for i, name in enumerate(table.column_names)}
    place = list(range(len(told))) if names is None else [held.get(name, -1) for name in names]
    return Table(
        names=told,
        n=table.num_rows,
        column=lambda i: label_column(table.column(place[i]), told[i]),
        take=lambda columns, rows: _taken(table.select([place[i] for i in columns]), rows),
        index=pandas_index(table.schema),
    )


def pandas_index(schema: Any) -> frozenset[str]:
    """Names of the columns of an Arrow schema that pandas wrote as the index of a frame."""
    stored = (schema.pandas_metadata or {}).get("index_columns", ())
    return frozenset(name for name in stored if isinstance(name, str))


def _taken(table: Any, rows: np.ndarray) -> Any:
    """The rows of an Arrow table, without a copy where that is all of them."""
    return table if len(rows) == table.num_rows else table.take(rows)


def _from_pandas(df: Any, columns: Sequence[int], rows: np.ndarray) -> Any:
    """Columns and rows of a pandas frame as an Arrow table; sparse columns are made dense.

    Raises:
        ValueError: a column with values of several kinds.
    """
    arrow = optional_import("pyarrow", needed_for="data frames")
    part = df if list(columns) == list(range(df.shape[1])) else df.iloc[:, list(columns)]
    part = part if len(rows) == len(df) else part.iloc[rows]
    kinds = set(part.dtypes)
    if len(kinds) == 1 and isinstance(kind := kinds.pop(), np.dtype) and kind.kind in "biuf":  # faster for wide frames
        values = part.to_numpy().astype(kind.newbyteorder("="), copy=False)
        return arrow.table(list(values.T), names=list(map(str, part.columns)))
    sparse = [i for i, kind in enumerate(part.dtypes) if type(kind).__name__ == "SparseDtype"]
    if sparse:
        part = part.copy(deep=False)
        for i in sparse:
            part.isetitem(i, part.iloc[:, i].sparse.to_dense())
    try:
        return arrow.Table.from_pandas(part, preserve_index=False)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        told = "; ".join(str(word) for word in error.args)
        raise ValueError(
            f"columns are not numeric: {told}; bring the column to one kind, choose others with features=, or "
            f"{ENCODE_ADVICE}"
        ) from error
