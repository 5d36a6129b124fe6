"""Map-style torch data sets as rows: labels are found without reading a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otdd_flash.data.classes import label_array, plain
from otdd_flash.data.decoding import SampleError, reading_sample
from otdd_flash.data.pictures import gather
from otdd_flash.data.rows import Rows
from otdd_flash.data.sizes import PictureSize

_LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")
_SAMPLE_ATTRIBUTES = ("samples", "_samples", "imgs")


@dataclass(frozen=True)
class ItemKeys:
    """Where an item of a data set keeps its features and its label: positions of a tuple or keys of a mapping."""

    features: Any = 0
    label: Any = 1

    def split(self, item: Any) -> tuple[Any, Any]:
        """Features and label of one item.

        Raises:
            ValueError: an item without them.
        """
        if isinstance(item, Mapping):
            return item[self._key(item, self.features, _FEATURE_KEYS)], item[self._key(item, self.label, _LABEL_KEYS)]
        try:
            return item[self.features], item[self.label]
        except (TypeError, IndexError, KeyError) as error:
            raise ValueError(
                f"items must be (features, label) or a mapping with both; got {type(item).__name__}: {error}"
            ) from error

    @staticmethod
    def _key(item: Mapping, given: Any, usual: Sequence[str]) -> Any:
        """The key in use: the given one, else the first of the usual names that is there."""
        if given in item:
            return given
        found = [key for key in usual if key in item]
        if not isinstance(given, int) or not found:
            raise ValueError(f"items have the keys {list(item)}; name the one to use, got {given!r}")
        return found[0]


_FEATURE_KEYS = ("image", "img", "pixel_values", "x", "features", "data", "inputs")
_LABEL_KEYS = ("label", "labels", "target", "y", "class")


def map_rows(
    dataset: Any,
    *,
    keys: ItemKeys | None = None,
    labels: Any = None,
    size: PictureSize | None = None,
    name: str | None = None,
) -> Rows:
    """Rows of a map-style data set: labels without reading samples where possible, samples read when chosen.

    Every sample that is read has its own label compared with the one found, so that a wrong guess cannot pass.

    Args:
        dataset: with ``__len__`` and ``__getitem__``; ``Subset``, ``ConcatDataset``, ``TensorDataset`` are understood.
        keys: where an item keeps features and label.
        labels: ``(n,)`` labels, instead of looking for them.
        size: to bring pictures to.
        name: for messages and results; default the class of the innermost set.
    """
    keys = keys or ItemKeys()
    notes: tuple[str, ...] = ()
    found = label_array(labels) if labels is not None else find_labels(dataset, keys.label)
    if found is None:
        found = label_array([plain(label) for label in _read_labels(dataset, keys, name or _base_name(dataset))])
        notes = (f"labels were read sample by sample, {len(dataset)} in all: labels= spares that",)
    if len(found) != len(dataset):
        raise ValueError(f"labels has {len(found)} entries for a data set of {len(dataset)} samples")
    fetch = _fetcher(dataset, keys, None if labels is not None else found, size)
    return Rows(found, fetch, name=name or _base_name(dataset), class_names=_names_for(dataset, found), notes=notes)


def find_labels(dataset: Any, label_key: Any = 1) -> np.ndarray | None:
    """Labels of a map-style data set without reading a sample, or ``None`` where none are found.

    Args:
        dataset: looked into through ``Subset`` and ``ConcatDataset``, then by the attributes in use
            (``targets``, ``labels``, ``_labels``, ``y``, ``samples``, ``_samples``, ``imgs``) with one entry a sample.
        label_key: position of the labels among the tensors of a ``TensorDataset``.
    """
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        base = find_labels(dataset.dataset, label_key)
        return None if base is None else base[np.asarray(dataset.indices, dtype=np.int64)]
    if hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes"):
        parts = [find_labels(part, label_key) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)  # type: ignore[arg-type]
    if hasattr(dataset, "tensors") and isinstance(label_key, int):
        return label_array(dataset.tensors[label_key]) if len(dataset.tensors) > label_key else None
    found = _attribute_labels(dataset)
    change = getattr(dataset, "target_transform", None)
    if found is None or change is None:
        return found
    return label_array([change(label) for label in found.tolist()])


def class_names_of(dataset: Any) -> list[str] | None:
    """The ``classes`` of the innermost set; ``None`` where there are none or joined sets disagree."""
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        return class_names_of(dataset.dataset)
    if hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes"):
        named = [class_names_of(part) for part in dataset.datasets]
        return named[0] if all(names == named[0] for names in named) else None
    names = getattr(dataset, "classes", None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    return [str(name) for name in names]


def _attribute_labels(dataset: Any) -> np.ndarray | None:
    """Labels kept in an attribute of the usual name, one a sample."""
    n = len(dataset)
    for attribute in _LABEL_ATTRIBUTES:
        values = getattr(dataset, attribute, None)
        if values is not None and hasattr(values, "__len__") and not isinstance(values, str) and len(values) == n:
            return label_array(values)
    for attribute in _SAMPLE_ATTRIBUTES:
        values = getattr(dataset, attribute, None)
        if isinstance(values, list | tuple) and len(values) == n and n and isinstance(values[0], list | tuple):
            return label_array([sample[1] for sample in values])
    return None


def _samples(dataset: Any, keys: ItemKeys, rows: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Features and label of samples, read one at a time.

    Raises:
        SampleError: one that cannot be read.
    """
    for position, row in enumerate(rows):
        with reading_sample(position):
            item = dataset[row]
        yield keys.split(item)


def _read_labels(dataset: Any, keys: ItemKeys, name: str) -> Iterator[Any]:
    """Labels of all samples, read for them."""
    try:
        yield from (label for _, label in _samples(dataset, keys, range(len(dataset))))
    except SampleError as error:
        raise ValueError(f"{name}: {error.told(f'row {error.position}')}") from error


def _fetcher(
    dataset: Any, keys: ItemKeys, labels: np.ndarray | None, size: PictureSize | None
) -> Callable[[np.ndarray], Any]:
    """Reader of chosen samples that checks each label against the one found beforehand."""

    def fetch(index: np.ndarray) -> Any:
        features = []
        chosen = index.tolist()
        for i, (sample, label) in zip(chosen, _samples(dataset, keys, chosen), strict=True):
            if labels is not None and not _same_label(label, labels[i]):
                raise ValueError(
                    f"sample {i} has the label {plain(label)!r}, but the data set's attribute says {plain(labels[i])!r}"
                    "; pass labels= with the right ones"
                )
            features.append(sample)
        return gather(features, size)

    return fetch


def _same_label(one: Any, other: Any) -> bool:
    """Equality of labels that may be tensors, rows or NaN."""
    one, other = plain(one), plain(other)
    if hasattr(one, "ndim") or hasattr(other, "ndim"):
        return bool(np.array_equal(np.asarray(one), np.asarray(other)))
    return bool(one == other) or (one != one and other != other)


def _names_for(dataset: Any, labels: np.ndarray) -> list[str] | None:
    """The set's own class names, where they cover the labels as indices."""
    names = class_names_of(dataset)
    if names is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        return None
    return names if labels.max() < len(names) and labels.min() >= -1 else None


def _base_name(dataset: Any) -> str:
    """Name of the innermost set's class."""
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return type(dataset).__name__
