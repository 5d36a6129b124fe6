"""What one worker does: take a set's moments, solve a self term, solve a cross term. Results go to the store."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import otdd_flash
from otdd_flash.augment import augment
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.distance import DistanceOptions
from otdd_flash.labels import LabelDistances, check_pair
from otdd_flash.labels.blocks import ClassStatistics, CrossTable, class_statistics, cross_table
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.screening import sketch_key
from otdd_flash.matrix.settings import Settings
from otdd_flash.matrix.sources import SetSource
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.screening.screener import Screener
from otdd_flash.sinkhorn import Divergence, divergence
from otdd_flash.types import LabeledDataset

_CACHE_BYTES = 4 << 30
_CHANGED = "{} was loaded twice with different content: fix its order and its seed"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set on the worker's device with its class statistics (``None`` for a cost without labels)."""

    dataset: LabeledDataset
    classes: ClassStatistics | None


class Worker:
    """Executes work items on one device; keeps the sets that it used last.

    Args:
        sources: all sets of the matrix; items name them by position.
        options: of the distances.
        store: where results go.
        device: where to compute; ``None`` leaves the data where it is.
        share: how many workers share this device's memory.
    """

    def __init__(
        self,
        sources: Sequence[SetSource],
        options: DistanceOptions,
        store: Store,
        *,
        device: str | None = None,
        share: int = 1,
    ) -> None:
        self.sources, self.store, self.device = list(sources), store, device
        self.options = replace(options, device=None, memory_budget=_fair_budget(options, device, share))
        self._cache: OrderedDict[tuple[int, str | None], Prepared] = OrderedDict()
        self._limit = _CACHE_BYTES // share

    def summarise(self, position: int) -> dict[str, Any]:
        """Load a set: its size, fingerprint and :class:`Moments`, which are stored by content."""
        dataset = self._load(position)
        key = content_key("moments", dataset.fingerprint)
        held = self.store.read_tensors("sets", key)
        moments = Moments.of(dataset) if held is None else Moments(**held)
        if held is None:
            self.store.write_tensors("sets", key, moments.tensors())
        return {
            "name": dataset.name, "fingerprint": dataset.fingerprint, "n": dataset.n, "d": dataset.d,
            "classes": list(dataset.class_names), "counts": dataset.class_counts.tolist(),
            "notes": list(dataset.notes), "dropped": dict(dataset.dropped), "moments": moments,
        }  # fmt: skip

    def sketch(self, screener: Screener, position: int, fingerprint: str) -> None:
        """Sum up a set for the screen."""
        dataset = self._load(position)
        if dataset.fingerprint != fingerprint:
            raise ValueError(_CHANGED.format(dataset.name))
        self.store.write_tensors("sketches", sketch_key(screener, fingerprint), screener.sketch(dataset))

    def self_term(self, settings: Settings, position: int, fingerprint: str) -> dict[str, Any]:
        """``OT_eps(a, a)`` of a set under its own label table."""
        start = time.perf_counter()
        with _collected() as notes:
            ready = self._prepare(settings, position, fingerprint)
            found = self._solve(self_cost(ready, settings.options), settings)
        record = _record(found, ready.dataset, ready.dataset, time.perf_counter() - start, notes)
        _with_label_error(record, ready.classes, settings.options)
        self.store.write("selves", settings.self_key(fingerprint), record)
        return record

    def pair_term(
        self, settings: Settings, positions: tuple[int, int], fingerprints: tuple[str, str]
    ) -> dict[str, Any]:
        """``OT_eps(a, b)`` of two sets, always solved from the smaller fingerprint to the larger."""
        start = time.perf_counter()
        if fingerprints[0] > fingerprints[1]:
            positions, fingerprints = positions[::-1], fingerprints[::-1]
        with _collected() as notes:
            first, second = (
                self._prepare(settings, position, fingerprint)
                for position, fingerprint in zip(positions, fingerprints, strict=True)
            )
            cost, table = cross_cost(first, second, settings)
            found = self._solve(cost, settings)
        record = _record(found, first.dataset, second.dataset, time.perf_counter() - start, notes)
        record["fingerprints"] = list(fingerprints)
        record["label_table"] = None if table is None else table.table.tolist()
        _with_label_error(record, table, settings.options)
        self.store.write("pairs", settings.pair_key(*fingerprints), record)
        return record

    def _solve(self, cost: DotProductCost, settings: Settings) -> Divergence:
        options = self.options
        return divergence(
            cost, settings.epsilon, debiased=False, part=options.debiased, options=options.solver(cost.device),
            execution=options.execution(),
        )  # fmt: skip

    def _load(self, position: int) -> LabeledDataset:
        dataset = self.sources[position].dataset()
        if self.options.max_samples is not None and dataset.n > self.options.max_samples:
            from otdd_flash.data import subsample

            dataset = subsample(dataset, self.options.max_samples, seed=self.options.seed)
        return dataset if self.device is None else dataset.to(self.device)

    def _prepare(self, settings: Settings, position: int, fingerprint: str) -> Prepared:
        """A set ready for problems, from this worker's memory or anew."""
        key = (position, settings.label_key(fingerprint) if settings.labelled else None)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        dataset = self._load(position)
        if dataset.fingerprint != fingerprint:
            raise ValueError(_CHANGED.format(dataset.name))
        classes = None
        if settings.labelled:
            classes = self._statistics(dataset, settings, settings.label_key(fingerprint))
        self._cache[key] = Prepared(dataset, classes)
        while len(self._cache) > 2 and sum(map(_bytes, self._cache.values())) > self._limit:
            self._cache.popitem(last=False)
        return self._cache[key]

    def _statistics(self, dataset: LabeledDataset, settings: Settings, key: str) -> ClassStatistics:
        """Class statistics; the own label table comes from the store where it was computed before."""
        method, sinkhorn = settings.options.label_distance, settings.label_sinkhorn()
        known = None if callable(method) else self.store.read_tensors("labels", key)
        statistics = class_statistics(dataset, method, sinkhorn=sinkhorn, known=known)  # type: ignore[arg-type]
        if known is None and not callable(method):
            self.store.write_tensors("labels", key, statistics.tensors())
        return statistics


def self_cost(ready: Prepared, options: DistanceOptions) -> DotProductCost:
    """The cost of a set against itself, under its own label table."""
    dataset = ready.dataset
    weights = dataset.normalised_weights
    if ready.classes is None:
        cloud = PointCloud(dataset.x, weights)
        return DotProductCost.build([cloud, cloud], feature_weight=options.feature_weight)
    table = (options.label_weight * ready.classes.own).to(dataset.x.device)
    cloud = PointCloud(dataset.x, weights, dataset.y)
    return DotProductCost.build([cloud, cloud], feature_weight=options.feature_weight, table=table)


def cross_cost(first: Prepared, second: Prepared, settings: Settings) -> tuple[DotProductCost, CrossTable | None]:
    """The cost of a pair, and its block of the label table."""
    options = settings.options
    if first.classes is None or second.classes is None:
        return augment(first.dataset, second.dataset, feature_weight=options.feature_weight, label_weight=0.0), None
    check_pair(first.dataset, second.dataset)
    method = options.label_distance
    block = cross_table(first.classes, second.classes, method, sinkhorn=settings.label_sinkhorn())  # type: ignore[arg-type]
    names = first.dataset.class_names, second.dataset.class_names
    labels = LabelDistances(first.classes.own, block.table, second.classes.own, *names, str(method))
    cost = augment(
        first.dataset, second.dataset, labels, feature_weight=options.feature_weight, label_weight=options.label_weight
    )
    return cost, block


def label_error(labels: ClassStatistics | CrossTable | None, options: DistanceOptions) -> float:
    """What the error of a label table can change of a transport cost."""
    return 0.0 if labels is None else abs(options.label_weight) * labels.error


def _with_label_error(
    record: dict[str, Any], labels: ClassStatistics | CrossTable | None, options: DistanceOptions
) -> None:
    """Count the class problems behind a record in."""
    record["rounding"] += label_error(labels, options)
    record["converged"] &= labels is None or labels.converged


def _record(
    found: Divergence, first: LabeledDataset, second: LabeledDataset, seconds: float, notes: list[str]
) -> dict[str, Any]:
    """A solved problem, JSON-safe."""
    return {
        "dual": found.value, "primal": found.primal, "gap": found.gap, "rounding": found.rounding,
        "marginal_error": found.marginal_error if math.isfinite(found.marginal_error) else None,
        "iterations": found.iterations, "converged": found.converged, "epsilon": found.epsilon,
        "mean_cost": found.cost.mean(0, 1), "n": first.n, "m": second.n, "precision": found.info.precision,
        "memory": found.info.memory, "backend": found.info.backend, "device": str(found.cost.device),
        "seconds": seconds, "threads": torch.get_num_threads(), "notes": notes,
        "versions": {"otdd_flash": otdd_flash.__version__, "torch": torch.__version__},
    }  # fmt: skip


@contextmanager
def _collected() -> Iterator[list[str]]:
    """Warnings of a block as a list of messages: they go into the record, not to a worker's stderr."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages.extend(dict.fromkeys(str(warning.message) for warning in caught))


def _bytes(ready: Prepared) -> int:
    """Memory that a prepared set holds: its features, and the moments that its classes keep."""
    held = ready.dataset.x.numel() * ready.dataset.x.element_size()
    for sample in () if ready.classes is None else ready.classes.samples:
        held += sum(t.numel() * t.element_size() for t in vars(sample).values() if isinstance(t, torch.Tensor))
        held -= sample.x.numel() * sample.x.element_size()
    return held


def _fair_budget(options: DistanceOptions, device: str | None, share: int) -> int | None:
    """Bytes for stored costs of one of ``share`` workers on a device; one alone takes what it finds free."""
    if options.memory_budget is not None or share == 1:
        return options.memory_budget
    if (device or "cpu").startswith("cuda"):
        return int(0.6 * torch.cuda.get_device_properties(device).total_memory) // share
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return total // (4 * share)
