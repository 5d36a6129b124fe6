"""Hugging Face data sets, in memory or streaming, as a data set."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from otdd_flash.checks import check_text, check_type
from otdd_flash.data.arrow import label_column, table_array
from otdd_flash.data.columns import column_note
from otdd_flash.data.decoding import is_encoded, open_picture, reading_sample
from otdd_flash.data.pictures import gather, stack_pictures
from otdd_flash.data.rows import Draw, Rows, build
from otdd_flash.data.sizes import PictureSize
from otdd_flash.data.streams import stream_rows
from otdd_flash.data.unembedded import TextDataset, Texts
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


@plain_torch
def from_huggingface(
    ds: Any,
    *,
    image: str | None = None,
    text: str | None = None,
    features: str | Sequence[str] | None = None,
    label: str = "label",
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
    resize: Sequence[int] | None = None,
    fit: str = "stretch",
    name: str | None = None,
) -> LabeledDataset | TextDataset:
    """A data set from a ``datasets.Dataset`` or ``IterableDataset``, whatever its ``set_format``.

    Labels are read first, from the label column alone; pictures of the drawn rows only are decoded. A streaming set is
    drawn by a seeded reservoir over its first 100,000 rows (``ds.take(n)`` bounds the reading).

    Args:
        ds: one split.
        image: column of pictures; with none of ``image``, ``text``, ``features`` given, the only picture column.
        text: column of texts; the result is a :class:`TextDataset`, which an embedder makes a data set.
        features: column of vectors or arrays, or several columns of numbers.
        label: column of class labels: ``ClassLabel``, integers or strings; ``-1`` and ``None`` are unlabelled.
        max_samples: at most so many rows, drawn uniformly without replacement; ``None`` for all.
        seed: of the draw.
        classes: keep these classes only, by label or by name.
        resize: ``(h, w)`` for pictures whose sizes differ.
        fit: how they get there: ``stretch``, ``pad`` or ``pad:<margin>``, as :func:`otdd_flash.load` has it.
        name: for messages and results; default that of the set.

    Returns:
        The data set; ``ids`` are row numbers of ``ds``.

    Raises:
        ValueError: columns that are not there or of the wrong kind, several splits at once.
    """
    if isinstance(ds, dict):
        raise ValueError(f"this holds several splits, {list(ds)}: choose one, e.g. ds[{next(iter(ds), 'train')!r}]")
    check_text("name", name, optional=True)
    check_text("label", label)
    if not hasattr(ds, "column_names"):
        raise ValueError(f"ds must be a datasets.Dataset or IterableDataset, got {type(ds).__name__}")
    title = name or getattr(ds.info, "dataset_name", None) or getattr(ds.info, "builder_name", None) or "huggingface"
    columns = resolve(ds, image, text, features, label)
    size = PictureSize.asked(resize, fit)
    draw = Draw(max_samples, seed, classes)
    if hasattr(ds, "_ex_iterable"):
        names = _class_label_names(ds, label)
        join = partial(_joined, ds, columns) if columns.kind == "features" else None
        rows = stream_rows(_stream_pairs(ds, columns), draw, name=title, class_names=names, size=size, join=join)
        return build(replace(rows, notes=(column_note(columns.kind, columns.names), *rows.notes)))
    return build(table_rows(ds, columns, name=title, size=size), draw)


def table_rows(ds: Any, columns: Columns, *, name: str, size: PictureSize | None = None) -> Rows:
    """Rows of an in-memory (or memory-mapped) set: the label column is read now, pictures when they are chosen."""
    return Rows(
        labels=label_column(_read(ds, [columns.label]).column(columns.label), columns.label),
        fetch=lambda index: _fetch(ds, columns, index, size),
        name=name,
        class_names=_class_label_names(ds, columns.label),
        notes=(column_note(columns.kind, columns.names),),
    )


@dataclass(frozen=True)
class Columns:
    """Which columns hold what: ``kind`` is ``image``, ``text`` or ``features``."""

    kind: str
    names: tuple[str, ...]
    label: str


def resolve(ds: Any, image: str | None, text: str | None, features: str | Sequence[str] | None, label: str) -> Columns:
    """The columns to read, checked against those there are."""
    given = [(k, v) for k, v in (("image", image), ("text", text), ("features", features)) if v is not None]
    if len(given) > 1:
        raise ValueError(f"give one of image=, text=, features=; got {', '.join(kind for kind, _ in given)}")
    known = ds.column_names
    kind, value = given[0] if given else ("image", _only_image(ds, label))
    check_type(kind, value, (str, list, tuple), "name the column")
    if not value:
        raise ValueError(f"{kind} is empty: name a column of {ds.column_names}")
    names = (value,) if isinstance(value, str) else tuple(value)
    if known is not None:
        lost = [column for column in (*names, label) if column not in known]
        if lost:
            raise ValueError(
                f"no column {lost[0]!r} in {known}; name the columns with image=, text=, features=, label="
            )
    strings = [column for column in names if kind == "features" and _dtype(ds, column) in ("string", "large_string")]
    if strings:
        raise ValueError(f"columns {strings} hold text: pass text={strings[0]!r} and an embedder, or leave them out")
    return Columns(kind, names, label)


def _only_image(ds: Any, label: str) -> str:
    """The one picture column, or a request to name the columns."""
    typed = ds.features or {}
    pictures = [column for column, kind in typed.items() if type(kind).__name__ == "Image"]
    if len(pictures) == 1:
        return pictures[0]
    kinds = {column: _dtype(ds, column) or type(kind).__name__ for column, kind in typed.items() if column != label}
    raise ValueError(
        "name the columns to compare: image= for pictures, text= for texts (through an embedder), features= for "
        f"numbers; there are {kinds or ds.column_names}"
    )


def _dtype(ds: Any, column: str) -> str | None:
    """Dtype of a scalar column, where it is known."""
    return getattr((ds.features or {}).get(column), "dtype", None)


def _class_label_names(ds: Any, label: str) -> list[str] | None:
    """Names of a ``ClassLabel`` column."""
    kind: Any = (ds.features or {}).get(label)
    return list(kind.names) if type(kind).__name__ == "ClassLabel" else None


def _read(ds: Any, columns: list[str]) -> Any:
    """Columns of an in-memory set as an Arrow table, through its index mapping and past its format."""
    return ds.select_columns(columns).with_format("arrow")[:]


def _fetch(ds: Any, columns: Columns, index: np.ndarray, size: PictureSize | None) -> Any:
    """Features of the rows ``index``."""
    first = columns.names[0]
    if (ds.format or {}).get("type") == "custom":  # a set_transform of the user makes the features
        return gather(_transformed(ds, first, index), size)
    part = ds.select_columns(list(columns.names)).select(index)
    if columns.kind == "text":
        return Texts(_read(part, [first]).column(first).to_pylist())
    if columns.kind == "image":
        return stack_pictures(_pictures(part, first), size)
    return table_array(_read(part, list(columns.names)), index)


def _transformed(ds: Any, column: str, index: np.ndarray) -> Iterator[Any]:
    """What the user's transform makes of the rows ``index``."""
    for position, row in enumerate(index.tolist()):
        with reading_sample(position):
            value = ds[row][column]
        yield _item(value, None)


def _pictures(ds: Any, column: str) -> Iterator[Any]:
    """The items of a column of pictures, past the set's format."""
    mode = getattr(ds.features[column], "mode", None)
    for position, row in enumerate(_encoded(ds, column).with_format(None)):
        with reading_sample(position, decoding=True):
            item = _item(row[column], mode)
        yield item


def _stream_pairs(ds: Any, columns: Columns) -> Iterator[tuple[Any, Any]]:
    """Features and label of a streaming set, one row at a time, past its format."""
    modes = {column: getattr((ds.features or {}).get(column), "mode", None) for column in columns.names}
    for column in columns.names:
        ds = _encoded(ds, column)
    for row in ds.with_format(None):
        missing = [column for column in (*columns.names, columns.label) if column not in row]
        if missing:
            raise ValueError(f"no column {missing[0]!r} in {list(row)}")
        values = [row[column] for column in columns.names]
        item = values if columns.kind == "features" else _item(values[0], modes[columns.names[0]])
        yield item, row[columns.label]


def _joined(ds: Any, columns: Columns, items: list[Any], positions: np.ndarray) -> np.ndarray:
    """Rows of values of a streaming set as features, by the rule of tables."""
    arrow = optional_import("pyarrow", needed_for="streams of Hugging Face")
    known = ds.features.arrow_schema if ds.features else None
    arrays = []
    for name, values in zip(columns.names, zip(*items, strict=True), strict=True):
        kind = None if known is None else known.field(name).type
        arrays.append(arrow.array(values, type=None if isinstance(kind, arrow.ExtensionType) else kind))
    return table_array(arrow.table(arrays, names=list(columns.names)), positions)


def _encoded(ds: Any, column: str) -> Any:
    """The set with the pictures of ``column`` left encoded: one decoder reads those of all doors."""
    kind: Any = (ds.features or {}).get(column)
    if type(kind).__name__ != "Image" or not kind.decode:
        return ds
    image = optional_import("datasets", needed_for="pictures of Hugging Face").Image
    return ds.cast_column(column, image(mode=kind.mode, decode=False))


def _item(value: Any, mode: str | None) -> Any:
    """A sample as :func:`stack_pictures` takes it: lists as arrays, pictures in the mode that the set names."""
    if mode is not None and is_encoded(value):
        with open_picture(value) as picture:
            return picture.convert(mode)
    return np.asarray(value) if isinstance(value, list) else value
