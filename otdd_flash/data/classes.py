"""Labels of any kind as compact class ids: what counts as a class, as unlabelled, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from otdd_flash.errors import warn

UNLABELLED = -1
_BEYOND_INT64 = 2.0**63


@dataclass(frozen=True)
class Classes:
    """Labels as compact ids.

    Args:
        ids: ``(n,)`` int64 ids ``0..c-1`` in the sorted order of the label values, ``-1`` where unlabelled.
        values: the ``c`` label values as they were given.
    """

    ids: np.ndarray
    values: tuple[Hashable, ...]


def encode_labels(labels: Any) -> Classes:
    """Compact class ids of labels of any kind.

    Integers, booleans, strings and other hashables are class values; ``-1``, ``None`` and NaN mean unlabelled; rows
    with exactly one 1 among zeros are one-hot and stand for the column's number.

    Args:
        labels: ``(n,)`` values or ``(n, c)`` one-hot rows: tensor, array, series, list or lazy column.

    Raises:
        ValueError: real-valued targets, multi-label or soft rows, unhashable values.
    """
    array = label_array(labels)
    if array.ndim == 2:
        array = _from_rows(array)
    if array.ndim != 1:
        raise ValueError(f"y must be (n,) labels or (n, c) one-hot rows, got shape {tuple(array.shape)}")
    if array.dtype.kind in "OMmV":
        return _encode_objects(array)
    missing = np.zeros(len(array), dtype=bool)
    if array.dtype.kind == "f":
        missing = np.isnan(array) | (array == UNLABELLED)
        array = _integral(array, missing)
    elif array.dtype.kind == "i":
        missing = array == UNLABELLED
        _warn_plus_minus(array, missing)
    ids = np.full(len(array), UNLABELLED, dtype=np.int64)
    values, ids[~missing] = np.unique(array[~missing], return_inverse=True)
    return Classes(ids, tuple(values.tolist()))


def label_array(labels: Any) -> np.ndarray:
    """``labels`` as a numpy array; objects where no plain dtype fits."""
    if isinstance(labels, np.ma.MaskedArray):
        labels = _unmasked(labels)
    labels = dense(labels)
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu()
        return (labels.float() if labels.dtype == torch.bfloat16 else labels).numpy()
    if hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    if isinstance(labels, np.ndarray):
        return _decoded(labels) if labels.dtype.kind == "S" else labels
    if isinstance(labels, str | bytes | Set | Mapping) or not isinstance(labels, Iterable):
        raise ValueError(f"y must be an ordered sequence with one label a sample, got {type(labels).__name__}")
    items = [plain(item) for item in labels]
    if items and isinstance(items[0], list | np.ndarray | torch.Tensor):
        if len({len(item) if hasattr(item, "__len__") else -1 for item in items}) > 1:
            raise ValueError("y holds rows of different lengths (several labels a sample?); give one label a sample")
        return np.stack([np.asarray(item) for item in items])
    if items and all(type(item) is int and abs(item) < _BEYOND_INT64 for item in items):
        return np.asarray(items)
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def dense(labels: Any) -> Any:
    """Sparse labels (one-hot rows as a rule) as an array; anything else as it is."""
    if isinstance(labels, torch.Tensor):
        if labels.is_nested:
            raise ValueError("y is a nested tensor (several labels a sample?); give one label a sample")
        labels = labels.dequantize() if labels.is_quantized else labels
        return labels if labels.layout == torch.strided else labels.to_dense()
    return labels.toarray() if hasattr(labels, "toarray") else labels


def _unmasked(labels: np.ma.MaskedArray) -> np.ndarray:
    """Masked labels as unlabelled."""
    if not np.ma.is_masked(labels):
        return labels.data
    if labels.ndim != 1:
        raise ValueError(f"y has masked entries and shape {labels.shape}; give one label a sample")
    array = labels.data.astype(object)
    array[np.ma.getmaskarray(labels)] = None
    return array


def _decoded(labels: np.ndarray) -> np.ndarray:
    """Byte strings as text."""
    try:
        return np.char.decode(labels, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"y holds bytes that are not UTF-8 text ({error}); decode them, e.g. numpy.char.decode(y, 'latin-1')"
        ) from error


def plain(value: Any) -> Any:
    """A zero-dimensional tensor or numpy scalar as a Python value, masked as ``None``, decimals as floats."""
    if value is np.ma.masked:
        return None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def is_missing(value: Any) -> bool:
    """Whether a label value means unlabelled: ``-1``, ``None``, NaN, pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, float):
        return math.isnan(value) or value == UNLABELLED
    return type(value) is int and value == UNLABELLED


def name_classes(values: Sequence[Hashable], class_names: Sequence[str] | Mapping | None) -> tuple[str, ...]:
    """Names of the label ``values``.

    Args:
        values: label values present, sorted.
        class_names: a mapping from label to name, a sequence indexed by integer label, or ``None`` for the values.

    Returns:
        Distinct names: labels that would be called alike have their type, or where that is the same their value, added.

    Raises:
        ValueError: a value without a name.
    """
    names = _plain_names(values, class_names)
    count = Counter(names)
    for tag in (lambda value: type(value).__name__, repr):
        told = tuple(
            f"{name} ({tag(value)})" if count[name] > 1 else name for name, value in zip(names, values, strict=True)
        )
        if len(set(told)) == len(told):
            return told
    return tuple(f"{name} [{position}]" for position, name in enumerate(names))


def refuse_repeats(class_names: Any) -> Any:
    """The ``class_names`` of a user, which must tell classes apart.

    Raises:
        ValueError: two equal names, or neither a sequence nor a mapping.
    """
    if class_names is None:
        return None
    if isinstance(class_names, str | bytes) or not isinstance(class_names, Iterable):
        raise ValueError(f"class_names must be a sequence of names or a mapping {{label: name}}, got {class_names!r}")
    names = list(class_names.values()) if isinstance(class_names, Mapping) else list(class_names)
    repeated = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if repeated:
        raise ValueError(
            f"class_names gives the name {repeated[0]!r} to several labels; give each its own, or map the labels of y "
            "first where the classes should be one"
        )
    return class_names


def _plain_names(values: Sequence[Hashable], class_names: Sequence[str] | Mapping | None) -> tuple[str, ...]:
    """Names as given, perhaps with repeats."""
    if class_names is None:
        return tuple(str(value) for value in values)
    if isinstance(class_names, Mapping):
        lost = [value for value in values if value not in class_names]
        if lost:
            raise ValueError(f"class_names has no name for label {lost[0]!r}; it names {list(class_names)[:10]}")
        return tuple(str(class_names[value]) for value in values)
    names = [str(name) for name in class_names]
    if all(isinstance(value, int) for value in values):
        outside = [int(value) for value in values if not 0 <= int(value) < len(names)]  # type: ignore[call-overload]
        if outside:
            raise ValueError(
                f"class_names has {len(names)} names, indexed by label, but a label is {outside[0]}; "
                "give one more name or a mapping {label: name}"
            )
        return tuple(names[int(value)] for value in values)  # type: ignore[call-overload]
    if all(str(value) in names for value in values):
        return tuple(str(value) for value in values)
    raise ValueError(
        f"labels are not integers (for example {values[0]!r}): class_names must be a mapping label -> name"
    )


def _encode_objects(array: np.ndarray) -> Classes:
    """Ids of arbitrary hashable values, one Python value at a time."""
    items = [plain(item) for item in array.tolist()]
    missing = np.fromiter((is_missing(item) for item in items), dtype=bool, count=len(items))
    numbers = [isinstance(item, float) for item in items]
    if any(numbers):
        as_float = np.array([item if real else np.nan for item, real in zip(items, numbers, strict=True)], dtype=float)
        _integral(as_float, missing | ~np.asarray(numbers))
        items = [
            int(item) if real and not lost else item for item, real, lost in zip(items, numbers, missing, strict=True)
        ]
    try:
        values = {item for item, lost in zip(items, missing, strict=True) if not lost}
    except TypeError as error:
        raise ValueError(f"y holds values that cannot be class labels: {error}") from error
    try:
        ordered = sorted(values)
    except TypeError:
        ordered = sorted(values, key=lambda value: (type(value).__name__, str(value)))
    index = {value: position for position, value in enumerate(ordered)}
    ids = [UNLABELLED if lost else index[item] for item, lost in zip(items, missing, strict=True)]
    if all(type(value) is int for value in ordered):
        _warn_plus_minus(np.asarray([item if type(item) is int else 0 for item in items]), missing)
    return Classes(np.asarray(ids, dtype=np.int64), tuple(ordered))


def _integral(array: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Float labels as integers, refusing what looks like a real-valued target."""
    known = array[~missing]
    real = np.flatnonzero(~missing)[~np.isfinite(known) | (known != np.round(known))]
    advice = "OTDD compares classes: bin the target first, e.g. numpy.digitize(y, numpy.quantile(y, [0.25, 0.5, 0.75]))"
    if real.size:
        raise ValueError(f"y holds real-valued targets ({array[real[0]]} in row {real[0]}); {advice}")
    exact = 2 / np.finfo(array.dtype).eps
    wide = np.flatnonzero(~missing)[np.abs(known) > exact]
    if wide.size:
        raise ValueError(
            f"y holds floats beyond {exact:.0f}, among which integers are lost ({array[wide[0]]} in row {wide[0]}); if "
            "they are class ids, pass them as integers or strings"
        )
    distinct = len(np.unique(known))
    if distinct > 20 and distinct > known.size / 3:
        raise ValueError(
            f"y holds floats with {distinct} distinct values in {known.size} rows, which looks like a real-valued "
            f"target; {advice}; if they are class ids, pass them as integers"
        )
    whole = np.full(array.shape, UNLABELLED, dtype=np.int64)
    whole[~missing] = known.astype(np.int64)
    return whole


def _from_rows(array: np.ndarray) -> np.ndarray:
    """Class ids of one-hot rows; a single column is squeezed."""
    if array.shape[1] == 1:
        return array[:, 0]
    if array.dtype.kind not in "biuf":
        raise ValueError(f"y is {array.shape} of dtype {array.dtype}: give one label a sample")
    ones = (array == 1).sum(axis=1)
    binary = ((array == 0) | (array == 1)).all(axis=1)
    if binary.all() and (ones == 1).all():
        return array.argmax(axis=1)
    if binary.all():
        row = int(np.flatnonzero(ones != 1)[0])
        raise ValueError(
            f"y holds multi-label rows (row {row} has {int(ones[row])} labels), and OTDD compares single classes; "
            "choose one label a sample, or make every combination a class: y = [tuple(row) for row in y.tolist()]"
        )
    row = int(np.flatnonzero(~binary)[0])
    if array.dtype.kind == "f" and np.allclose(array.sum(axis=1), 1, atol=1e-3):
        raise ValueError(f"y holds class probabilities (row {row}); give the hard labels, e.g. y.argmax(1)")
    raise ValueError(f"y is {array.shape} and row {row} is not one-hot; give one class label a sample")


def _warn_plus_minus(array: np.ndarray, missing: np.ndarray) -> None:
    """Labels -1 and +1 are most likely two classes, yet -1 means unlabelled here: say so."""
    if missing.any() and not missing.all() and (array[~missing] == 1).all():
        warn("labels are -1 and 1 only: -1 means unlabelled and these rows are dropped; for two classes pass (y > 0)")
