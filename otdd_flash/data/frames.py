"""Data frames as a data set."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from otdd_flash.data.classes import refuse_repeats
from otdd_flash.data.rows import Rows, Selection, build
from otdd_flash.data.text import TextDataset, Texts
from otdd_flash.types import LabeledDataset

_LABEL_NAMES = ("label", "target", "class", "y")


def from_dataframe(
    df: Any,
    *,
    label: str,
    features: Sequence[str] | None = None,
    text: str | None = None,
    weights: str | None = None,
    class_names: Sequence[str] | Mapping | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
    name: str = "dataframe",
) -> LabeledDataset | TextDataset:
    """A data set from a pandas data frame (or one with ``to_pandas``).

    Args:
        df: one sample a row.
        label: column of class labels; missing ones and ``-1`` are unlabelled and dropped with a count.
        features: numeric columns; default all but ``label`` and ``weights``.
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
    rows = frame_rows(
        df, label=label, features=features, text=text, weights=weights, class_names=class_names, name=name
    )
    return build(rows, Selection(max_samples, seed, classes))


def frame_rows(
    df: Any,
    *,
    label: str | None,
    features: Sequence[str] | None = None,
    text: str | None = None,
    weights: str | None = None,
    class_names: Sequence[str] | Mapping | None = None,
    image_shape: Sequence[int] | None = None,
    name: str = "dataframe",
) -> Rows:
    """Rows of a data frame: arguments as in :func:`from_dataframe`; ``label=None`` takes a column of a usual name."""
    if not hasattr(df, "iloc") and hasattr(df, "to_pandas"):
        df = df.to_pandas()
    if not hasattr(df, "iloc"):
        raise ValueError(f"df must be a pandas data frame, got {type(df).__name__}")
    columns = [str(column) for column in df.columns]
    label = label if label is not None else _guess_label(columns)
    if text is not None and features is not None:
        raise ValueError("give features= or text=, not both")
    asked = [features] if isinstance(features, str) else features
    asked = list(asked) if asked is not None else [column for column in df.columns if column not in (label, weights)]
    wanted = [text] if text is not None else asked
    lost = [column for column in (*wanted, label, weights) if column is not None and column not in df.columns]
    if lost:
        raise ValueError(f"no column {lost[0]!r} among {columns[:40]}")
    repeated = [column for column in {*wanted, label} if columns.count(str(column)) > 1]
    if repeated:
        raise ValueError(f"column {repeated[0]!r} is there more than once; rename or drop the copies")
    part = df[wanted]

    def fetch(index: np.ndarray) -> Any:
        chosen = part.iloc[index]
        return Texts(chosen[text].tolist()) if text is not None else chosen

    return Rows(
        labels=df[label],
        fetch=fetch,
        name=name,
        class_names=refuse_repeats(class_names),
        weights=None if weights is None else df[weights].to_numpy(),
        image_shape=image_shape,
    )


def _guess_label(columns: list[str]) -> str:
    """The one column of a usual name for labels."""
    found = [column for column in columns if column.lower() in _LABEL_NAMES]
    if len(found) != 1:
        raise ValueError(f"name the label column with label=; the columns are {columns[:40]}")
    return found[0]
