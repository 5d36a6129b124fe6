"""What one worker does: take a set's moments, solve a batch of self and cross terms. Results go to the store."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import otdd_flash
from otdd_flash.labels.blocks import ClassStatistics, class_statistics_of, known_statistics
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.screening import sketch_key
from otdd_flash.matrix.settings import MatrixSettings
from otdd_flash.matrix.sources import SetSource
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.problems import DistanceOptions, Side, SolvedPairs, place, solve_pairs
from otdd_flash.screening.screener import Screener
from otdd_flash.types import LabeledDataset

_CACHE_BYTES = 4 << 30
_CHANGED = "{} was loaded twice with different content: fix its order and its seed"


@dataclass(frozen=True)
class Member:
    """One problem of a batch.

    Args:
        sets: position and fingerprint of a set (its self term) or of two (their cross term), which is always solved
            from the smaller fingerprint to the larger.
    """

    sets: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, positions: Sequence[int], fingerprints: Sequence[str]) -> Member:
        """The problem of these sets."""
        return cls(tuple(sorted(zip(positions, fingerprints, strict=True), key=lambda end: end[1])))

    @property
    def ends(self) -> tuple[int, int]:
        """Positions of both sides."""
        return self.sets[0][0], self.sets[-1][0]


@dataclass(frozen=True, eq=False)
class Result:
    """What came of an item: a value (of a term none, it is stored), or an error."""

    value: Any = None
    error: Exception | None = None


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
        self._cache: OrderedDict[tuple[int, str | None], Side] = OrderedDict()
        self._limit = _CACHE_BYTES // share

    def summarise(self, _shared: None, positions: Sequence[int]) -> list[Result]:
        """Load sets: size, fingerprint and :class:`Moments`, which are stored by content."""
        return [Result(self._summary(position)) for position in positions]

    def _summary(self, position: int) -> dict[str, Any]:
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
            "device": dataset.x.device,
        }  # fmt: skip

    def sketch(self, screener: Screener, sets: Sequence[tuple[int, str]]) -> list[Result]:
        """Sum up sets, by position and fingerprint, for the screen."""
        for position, fingerprint in sets:
            dataset = self._load(position)
            if dataset.fingerprint != fingerprint:
                raise ValueError(_CHANGED.format(dataset.name))
            self.store.write_tensors("sketches", sketch_key(screener, fingerprint), screener.sketch(dataset))
        return [Result()] * len(sets)

    def terms(self, shared: tuple[MatrixSettings, Tensor | None], members: Sequence[Member]) -> list[Result]:
        """Solve self terms and cross terms as one batch, each stored by its key.

        One that fails leaves the others: they are solved one by one then.

        Args:
            shared: the settings, and where the costs are centred.
            members: the terms.
        """
        settings, origin = shared
        ready: dict[int, Side | Exception] = {}
        notes: dict[int, list[str]] = {}
        prints = {position: fingerprint for member in members for position, fingerprint in member.sets}
        for position, fingerprint in prints.items():
            with _collected() as notes[position]:
                ready[position] = _caught(self._prepare, settings, position, fingerprint)
        self._add_statistics(settings, prints, ready, notes)
        results: list[Result | None] = [_first_error(ready, member) for member in members]
        sound = [k for k, result in enumerate(results) if result is None]
        for k, result in zip(
            sound, self._together(settings, origin, [members[k] for k in sound], ready, notes), strict=True
        ):
            results[k] = result
        return [result for result in results if result is not None]

    def _together(
        self, settings: MatrixSettings, origin: Tensor | None, members: Sequence[Member], ready: dict[int, Any],
        notes: dict[int, list[str]],
    ) -> list[Result]:  # fmt: skip
        """Members whose sets are all there, in one batch, or where that fails one by one."""
        if not members:
            return []
        prints = {position: fingerprint for member in members for position, fingerprint in member.sets}
        positions = sorted(prints, key=prints.__getitem__)  # the order of the sets must not matter to the last bit
        at = {position: k for k, position in enumerate(positions)}
        sides = [ready[position] for position in positions]
        start = time.perf_counter()
        try:
            with _collected() as said:
                pairs = [(at[member.ends[0]], at[member.ends[1]]) for member in members]
                found = solve_pairs(
                    sides, pairs, self._here(settings), origin=origin, selves=self._selves(settings, prints, at)
                )
        except Exception as error:  # whatever one of them does, the others are still solved
            if len(members) == 1:
                return [Result(error=error)]
            return [result for member in members for result in self._together(settings, origin, [member], ready, notes)]
        seconds = (time.perf_counter() - start) / len(members)
        for k, member in enumerate(members):
            told = [note for position, _ in member.sets for note in notes[position]]
            told += [] if found.values[k].converged else said
            record = _record(found, k, [ready[p].dataset for p in member.ends], seconds, list(dict.fromkeys(told)))
            ends = [fingerprint for _, fingerprint in member.sets]
            if len(ends) > 1:
                record["fingerprints"] = ends
                table = found.tables[k]
                record["label_table"] = None if table is None else table.table.tolist()
            self.store.write("selves" if len(ends) == 1 else "pairs", settings.key(*ends), record)
        return [Result() for _ in members]

    def _selves(self, settings: MatrixSettings, prints: dict[int, str], at: dict[int, int]) -> dict[int, float]:
        """Values of the self terms that are stored already, by place in the batch."""
        stored = {at[position]: self.store.read("selves", settings.key(own)) for position, own in prints.items()}
        return {k: record["dual"] for k, record in stored.items() if record is not None}

    def _here(self, settings: MatrixSettings) -> MatrixSettings:
        """The settings with this worker's share of the memory."""
        return replace(settings, options=self.options)

    def _load(self, position: int) -> LabeledDataset:
        dataset = place(self.sources[position].dataset(), self.options)
        if self.device is None:
            return dataset
        moved = dataset.to(self.device)
        vars(moved)["fingerprint"] = dataset.fingerprint  # the same anywhere, and remembered where the data came from
        return moved

    def _prepare(self, settings: MatrixSettings, position: int, fingerprint: str) -> Side:
        """A set ready for problems, from this worker's memory or anew; its class statistics where they are known."""
        key = (position, settings.label_key(fingerprint) if settings.labelled else None)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        dataset = self._load(position)
        if dataset.fingerprint != fingerprint:
            raise ValueError(_CHANGED.format(dataset.name))
        classes = None
        if settings.labelled and not callable(settings.options.label_distance):
            known = self.store.read_tensors("labels", settings.label_key(fingerprint))
            classes = None if known is None else known_statistics(dataset, known)
        return Side(dataset, classes)

    def _add_statistics(
        self, settings: MatrixSettings, prints: dict[int, str], ready: dict[int, Any], notes: dict[int, list[str]]
    ) -> None:
        """Compute the class statistics that are missing, together, or where that fails set by set, and keep them."""
        sound = {position: side for position, side in ready.items() if isinstance(side, Side)}
        missing = [position for position, side in sound.items() if settings.labelled and side.classes is None]
        with _collected() as said:
            found = _caught(self._statistics, settings, [sound[position].dataset for position in missing])
        for k, position in enumerate(missing):
            if isinstance(found, Exception):
                with _collected() as said:
                    alone = _caught(self._statistics, settings, [sound[position].dataset])
                one = alone if isinstance(alone, Exception) else alone[0]
            else:
                one = found[k]
            notes[position] += said
            if isinstance(one, Exception):
                ready[position] = one
                continue
            ready[position] = sound[position] = Side(sound[position].dataset, one)
            if not callable(settings.options.label_distance):
                self.store.write_tensors("labels", settings.label_key(prints[position]), one.tensors())
        for position, side in sound.items():
            self._cache[position, settings.label_key(prints[position]) if settings.labelled else None] = side
        while len(self._cache) > 2 and sum(side.bytes for side in self._cache.values()) > self._limit:
            self._cache.popitem(last=False)

    def _statistics(self, settings: MatrixSettings, datasets: Sequence[LabeledDataset]) -> list[ClassStatistics]:
        if not datasets:
            return []
        method, sinkhorn = settings.options.label_distance, settings.label_sinkhorn(datasets[0].x.device)
        return class_statistics_of(datasets, method, sinkhorn=sinkhorn)  # type: ignore[arg-type]


def _caught(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, or the exception it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _first_error(ready: dict[int, Any], member: Member) -> Result | None:
    """What keeps a member from being solved."""
    for position, _ in member.sets:
        if isinstance(ready[position], Exception):
            return Result(error=ready[position])
    return None


def _record(
    found: SolvedPairs, k: int, ends: Sequence[LabeledDataset], seconds: float, notes: list[str]
) -> dict[str, Any]:
    """A solved problem, JSON-safe."""
    value, info = found.values[k], found.solution.operator.info
    return {
        "dual": value.dual, "primal": value.primal, "gap": value.gap, "rounding": value.rounding,
        "marginal_error": value.marginal_error if math.isfinite(value.marginal_error) else None,
        "iterations": value.iterations, "converged": value.converged, "epsilon": found.solution.epsilon,
        "mean_cost": float(found.mean_costs[k]), "n": ends[0].n, "m": ends[-1].n, "precision": info.precision,
        "memory": info.memory, "backend": info.backend, "device": str(found.cost.device),
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


def _fair_budget(options: DistanceOptions, device: str | None, share: int) -> int | None:
    """Bytes for stored costs of one of ``share`` workers on a device; one alone takes what it finds free."""
    if options.memory_budget is not None or share == 1:
        return options.memory_budget
    if (device or "cpu").startswith("cuda"):
        return int(0.6 * torch.cuda.get_device_properties(device).total_memory) // share
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return total // (4 * share)
