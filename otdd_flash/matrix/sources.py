"""The data sets of a matrix: in memory, by name, or loaded by whoever needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from otdd_flash.checks import shown
from otdd_flash.tensor_files import read_tensors, save_tensors
from otdd_flash.types import LabeledDataset

_SPILLED = "otdd-flash data set 1"


@dataclass(frozen=True)
class SetSource:
    """A named data set that is loaded where it is needed, in a worker perhaps and more than once.

    Args:
        name: unique within a matrix.
        load: gives the same :class:`~otdd_flash.LabeledDataset` each time; must be picklable for several workers.
    """

    name: str
    load: Callable[[], Any]

    def dataset(self) -> LabeledDataset:
        """The data set under the source's name.

        Raises:
            TypeError: the loader gave something else.
        """
        found = self.load()
        if not isinstance(found, LabeledDataset):
            raise TypeError(
                f"{self.name} gave {type(found).__name__}, must be a LabeledDataset: use otdd_flash.from_arrays(X, y) "
                "or otdd_flash.load; texts need an embedder first (otdd_flash.data.features.Features)"
            )
        if found.name == self.name and not found.x.requires_grad:
            return found  # the same object each time: it remembers its fingerprint
        # no derivative is taken here, and a graph would be carried through every solve
        return replace(found, name=self.name, x=found.x.detach())


def as_sources(datasets: Any, argument: str = "datasets") -> list[SetSource]:
    """Normalise what users give: a mapping of names, or a sequence; of data sets, names for ``load``, or loaders.

    Raises:
        TypeError: an entry of another kind.
        ValueError: fewer than one, or names that repeat.
    """
    if isinstance(datasets, Mapping):
        sources = [_source(entry, str(name)) for name, entry in datasets.items()]
    elif isinstance(datasets, Sequence) and not isinstance(datasets, str):
        sources = [_source(entry, None) for entry in datasets]
    else:
        raise TypeError(f"{argument} must be a list of data sets or a mapping of names, got {shown(datasets)}")
    if not sources:
        raise ValueError(f"{argument} is empty: give at least one data set")
    repeated = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if repeated:
        raise ValueError(
            f"data set names repeat: {repeated}; give a mapping, {{name: data set}}, with names of your own"
        )
    return sources


def _source(entry: Any, name: str | None) -> SetSource:
    if isinstance(entry, SetSource):
        return entry if name is None else replace(entry, name=name)
    if isinstance(entry, LabeledDataset):
        # an object of this run's own: it remembers its fingerprint, and the caller's data may change between runs
        return SetSource(name or entry.name, _Given(replace(entry, name=name or entry.name, x=entry.x.detach())))
    if isinstance(entry, str):
        return SetSource(name or entry, partial(_load, entry))
    if callable(entry):
        if name is None:
            raise TypeError("a loader needs a name: give a mapping {name: loader} or SetSource(name, loader)")
        return SetSource(name, entry)
    raise TypeError(
        f"a data set must be a LabeledDataset, a name for otdd_flash.load or a callable that loads, got "
        f"{type(entry).__name__}"
    )


@dataclass(frozen=True)
class _Given:
    """A data set that is already here, called like a loader."""

    dataset: LabeledDataset

    def __call__(self) -> LabeledDataset:
        return self.dataset


def _load(name: str) -> Any:
    from otdd_flash.data import load

    return load(name)


def spill(sources: Sequence[SetSource], folder: Path) -> list[SetSource]:
    """Sources that workers can open: data sets in memory are written to ``folder`` once, not sent with every task."""
    out = []
    for position, source in enumerate(sources):
        if isinstance(source.load, _Given):
            path = folder / f"{position}.safetensors"
            _write(source.load.dataset, path)
            source = SetSource(source.name, partial(_read, path))
        out.append(source)
    return out


def _write(dataset: LabeledDataset, path: Path) -> None:
    tensors = {"x": dataset.x, "y": dataset.y, "weights": dataset.weights}
    record = {
        "class_names": list(dataset.class_names), "name": dataset.name, "levels": dataset.levels,
        "image_shape": dataset.image_shape, "dropped": dataset.dropped, "notes": list(dataset.notes),
    }  # fmt: skip
    held = {name: value for name, value in tensors.items() if value is not None}
    save_tensors(held, path, kind=_SPILLED, record=record)


def _read(path: Path) -> LabeledDataset:
    record, tensors = read_tensors(path, kind=_SPILLED)
    shape = record["image_shape"]
    record |= {
        "class_names": tuple(record["class_names"]), "notes": tuple(record["notes"]),
        "image_shape": None if shape is None else tuple(shape),
    }  # fmt: skip
    fields: dict[str, Any] = {**tensors, **record}
    return LabeledDataset(**fields)
