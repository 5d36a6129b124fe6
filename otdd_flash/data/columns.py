"""The one rule by which tables of any origin are read: which columns are what, and what is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otdd_flash.data.arrow import table_array
from otdd_flash.data.classes import refuse_repeats
from otdd_flash.data.rows import Rows
from otdd_flash.data.unembedded import Texts

_LABEL_NAMES = ("label", "target", "class", "y")
# how pandas writes an index that has no name (to_parquet; to_csv read again), where the header is not empty
_INDEX_NAME = re.compile(r"Unnamed: 0|__index_level_\d+__")
_SHOWN = 12


@dataclass(frozen=True)
class Table:
    """A table of any library.

    Args:
        names: columns as text, in order, perhaps with repeats.
        n: rows.
        column: position of a column to its values, as labels or weights are taken.
        take: positions of columns and row numbers (ascending) to a ``pyarrow.Table``.
        index: names of columns that its writer marked as an index.
    """

    names: tuple[str, ...]
    n: int
    column: Callable[[int], Any]
    take: Callable[[list[int], np.ndarray], Any]
    index: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Columns:
    """Which columns hold what.

    Args:
        label: position of the labels.
        features: positions of the features.
        text: whether the features are one column of texts.
        weights: position of the weights, or ``None``.
        notes: what was used and what was left out.
    """

    label: int
    features: tuple[int, ...]
    text: bool = False
    weights: int | None = None
    notes: tuple[str, ...] = ()


def choose_columns(
    names: Sequence[str],
    *,
    label: Hashable | None,
    features: Any = None,
    text: Hashable | None = None,
    weights: Hashable | None = None,
    index: frozenset[str] = frozenset(),
) -> Columns:
    """Which columns hold what, settled by their names alone; all names are compared as text.

    Args:
        names: columns in order.
        label: of the labels; ``None`` for the one column of a usual name.
        features: one or several; ``None`` for all but the others and an index.
        text: of texts, instead of features.
        weights: of weights.
        index: columns known to be an index.

    Raises:
        ValueError: columns that are not there, have no name or are there more than once.
    """
    if text is not None and features is not None:
        raise ValueError("give features= or text=, not both")
    title = _guess_label(names) if label is None else str(label)
    held = [title] if weights is None else [title, str(weights)]
    notes: tuple[str, ...] = ()
    if text is not None or features is not None:
        asked: Any = features if text is None else [text]
        one = isinstance(asked, str) or not isinstance(asked, Iterable) or getattr(asked, "ndim", 1) == 0
        wanted = [str(name) for name in ([asked] if one else asked)]
        if not wanted:
            raise ValueError("features is empty: name the columns, or None for all but the labels and weights")
    else:
        wanted, notes = _all_features(names, held, index)
    count, place = Counter(names), {name: i for i, name in reversed(list(enumerate(names)))}
    for name in (*held, *wanted):
        if name not in place:
            raise ValueError(f"no column {name!r} among {list(names)[:40]}")
        if count[name] > 1:
            raise ValueError(f"column {name!r} is there more than once; rename or drop the copies")
    return Columns(
        label=place[title],
        features=tuple(place[name] for name in wanted),
        text=text is not None,
        weights=None if weights is None else place[str(weights)],
        notes=(column_note("features" if text is None else "text", wanted), *notes),
    )


def column_note(kind: str, names: Sequence[str]) -> str:
    """Which columns were used as ``features``, ``text`` or ``image``, for the notes."""
    return f"{kind.removesuffix('s')} columns: {_listed(names)}"


def table_rows(
    table: Table,
    columns: Columns,
    *,
    name: str,
    class_names: Sequence[str] | Mapping | None = None,
    image_shape: Sequence[int] | None = None,
    notes: tuple[str, ...] = (),
) -> Rows:
    """Rows of a table with its columns settled."""

    def take(rows: np.ndarray) -> Any:
        return table.take(list(columns.features), rows)

    def fetch(rows: np.ndarray) -> Any:
        part = take(rows)
        if columns.text:
            return Texts(part.column(0).to_pylist())
        try:
            return table_array(part, rows)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return Rows(
        labels=table.column(columns.label),
        fetch=fetch,
        name=name,
        class_names=refuse_repeats(class_names),
        weights=None if columns.weights is None else table.column(columns.weights),
        image_shape=image_shape,
        notes=(*columns.notes, *notes),
        columns=None if columns.text else take,
    )


def _all_features(
    names: Sequence[str], held: Sequence[str], index: frozenset[str]
) -> tuple[list[str], tuple[str, ...]]:
    """All columns that are not held for something else and are no index, and a note on those left out."""
    first = next((i for i, name in enumerate(names) if name), len(names))
    odd = [i for i, name in enumerate(names) if not name and i > first]
    if odd:
        raise ValueError(f"column {odd[0]} (counted from 0) has no name: give it one, or choose columns with features=")
    left = [name for name in names if name not in held and (not name or name in index or _INDEX_NAME.fullmatch(name))]
    gone = {*left, *held}
    wanted = [name for name in names if name not in gone]
    if not wanted:
        raise ValueError(f"no feature column is left of {list(names)[:40]} without {sorted(gone)}")
    if not left:
        return wanted, ()
    return wanted, (f"left out as an index (row names or numbers): {_listed(left)}; features= can ask for it",)


def _guess_label(names: Sequence[str]) -> str:
    """The one column of a usual name for labels."""
    found = [name for name in names if name.lower() in _LABEL_NAMES]
    if len(set(found)) == 1:
        return found[0]
    raise ValueError(f"name the label column with label=; the columns are {list(names)[:40]}")


def _listed(names: Sequence[str]) -> str:
    """The names, shortened where there are many."""
    if len(names) <= _SHOWN:
        return ", ".join(name or "''" for name in names)
    return f"{', '.join(names[:3])}, ..., {names[-1]} ({len(names)})"
