"""The distance matrix of many data sets: ``pairwise`` computes what is missing, ``collect`` reads what is there."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from otdd_flash.checks import check_path, check_text
from otdd_flash.errors import not_converged, warn
from otdd_flash.matrix.assemble import assemble, failure_key, failure_record, read_folder, write_index
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.pool import (
    Batch,
    InProcess,
    Item,
    Outcome,
    Processes,
    resolve_devices,
    threads_per_worker,
    tiled,
)
from otdd_flash.matrix.result import DistanceMatrix, Failure
from otdd_flash.matrix.screening import MatrixScreening, all_pairs, screened, settle_screener, sketch_key
from otdd_flash.matrix.settings import MatrixSettings, make_options, settle
from otdd_flash.matrix.sources import SetSource, as_sources, spill
from otdd_flash.matrix.store import Store
from otdd_flash.matrix.worker import Member, Worker
from otdd_flash.problems import DistanceOptions, Frames, Shape, batches, score_limit
from otdd_flash.progress import counter
from otdd_flash.screening import Screen
from otdd_flash.screening.cut import check_screen
from otdd_flash.torch_mode import plain_torch

log = logging.getLogger("otdd_flash")


@plain_torch
def pairwise(
    datasets: Any,
    *,
    options: DistanceOptions | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    shard: str | None = None,
    screen: Screen | None = None,
    **overrides: Any,
) -> DistanceMatrix:
    """Optimal transport dataset distances between all pairs of ``k`` labelled data sets.

    ``S(a, b) = OT_eps(a, b) - OT_eps(a, a)/2 - OT_eps(b, b)/2`` with one epsilon for the whole matrix: an absolute one,
    or ``relative_epsilon`` times a reference cost of all sets together (:mod:`otdd_flash.matrix.moments`). The self
    term, the class statistics and the own label table of a set then belong to the set and are computed once; a pair
    adds its cross problem and its block of the label table. An entry equals
    ``dataset_distance(a, b, epsilon=matrix.epsilon)`` within the stated errors.

    Args:
        datasets: data sets, or names for :func:`otdd_flash.load`; a mapping from names of your own to data sets, names
            or callables that load (called in the workers: the way to have more sets than memory).
        options: choices as in :func:`otdd_flash.dataset_distance`.
        folder: keeps every finished piece under a key of contents, options and version; a second run computes only
            what is missing. ``None`` keeps nothing.
        workers: processes; ``None`` is one for each GPU under ``device="cuda"``, else one. Their threads are capped to
            an equal share of the cores.
        shard: ``"i/N"`` computes the ``i``-th of ``N`` parts of the work, ``i`` from 0; parts share ``folder``, and
            :func:`collect` or a last run without ``shard`` puts them together.
        screen: give all pairs a cheap distance and only the nearest neighbours of each set the full one; for hundreds
            of sets. The other pairs are NaN in ``values``; see ``screening`` and :meth:`DistanceMatrix.filled`.
        **overrides: fields of :class:`~otdd_flash.distance.DistanceOptions`, each over ``options``.

    Returns:
        The matrix; sets and pairs that failed are NaN there and listed in ``failures`` (with a warning), the rest is
        done.

    Raises:
        TypeError: an argument that is no option, or an entry that is no data set.
        ValueError: options that do not fit, names that repeat, a shard without folder.
        NotConvergedError: under ``strict``, after everything was computed and stored.

    >>> import otdd_flash as otdd
    >>> iris = otdd.load("iris")
    >>> matrix = otdd.pairwise({"a": iris.subset(range(0, 150, 2)), "b": iris.subset(range(1, 150, 2)), "all": iris})
    >>> matrix.names, matrix.converged, bool((matrix.values.diagonal() == 0).all())
    (('a', 'b', 'all'), True, True)
    """
    chosen = make_options(options, overrides, stored=folder is not None)
    check_path("folder", folder, optional=True)
    check_text("shard", shard, optional=True)
    check_screen(screen)
    part = _parse_shard(shard)
    if part != (0, 1) and folder is None:
        raise ValueError("shard needs folder: that is where the parts meet")
    devices = resolve_devices(chosen.device, workers)
    sources = as_sources(datasets)
    with ExitStack() as stack:
        place = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="otdd-matrix-"))
        run = _Run(sources, chosen, Store(place), part, screen)
        run.pool = stack.enter_context(closing(_pool(run, devices, stack)))
        matrix = run.execute()
    _report(matrix, strict=chosen.strict)
    return matrix


@plain_torch
def collect(folder: str | os.PathLike[str]) -> DistanceMatrix:
    """The matrix of the last run in ``folder``, from whatever shards and runs have finished there; computes nothing.

    Raises:
        FileNotFoundError: no run was started there.
    """
    check_path("folder", folder)
    return read_folder(Store(folder))


@dataclass
class _Run:
    """One call of :func:`pairwise`."""

    sources: list[SetSource]
    options: DistanceOptions
    store: Store
    part: tuple[int, int]
    screen: Screen | None = None
    pool: Any = None
    failed: set[tuple[str, ...]] = field(default_factory=set)
    devices: dict[int, torch.device] = field(default_factory=dict)  # where workers have the sets
    computed: int = 0
    reused: int = 0

    def execute(self) -> DistanceMatrix:
        """Sets, then their screen, then self terms, then pairs."""
        start = time.perf_counter()
        summaries = self._summaries()
        moments = {summary["fingerprint"]: summary["moments"] for summary in summaries.values()}
        settings, notes = settle(self.options, moments, self.store)
        log.info("matrix of %d sets, epsilon %.6g", len(self.sources), settings.epsilon)
        screening = None if self.screen is None or not moments else self._screening(self.screen, summaries, moments)
        self._work(settings, summaries, screening)
        names = [source.name for source in self.sources]
        write_index(self.store, names, summaries, settings, notes, screening)
        matrix = assemble(self.store, names, summaries, settings, notes, screening)
        return replace(matrix, computed=self.computed, reused=self.reused, seconds=time.perf_counter() - start)

    def _summaries(self) -> dict[int, dict[str, Any]]:
        """By position, of the sets that could be loaded."""
        batches = [Batch("summarise", None, (Item((source.name,), i),)) for i, source in enumerate(self.sources)]
        found = {}
        for outcome in self._outcomes(batches, "sets"):
            if outcome.error is None:
                found[outcome.item.argument] = outcome.value
        self.devices = {i: summary.pop("device") for i, summary in found.items()}
        return dict(sorted(found.items()))

    def _screening(
        self, screen: Screen, summaries: dict[int, dict[str, Any]], moments: dict[str, Moments]
    ) -> MatrixScreening:
        """Screening distances of all sets, from sketches that are kept like all other work."""
        screener = settle_screener(screen, self.options, [moments[key] for key in sorted(moments)], self.store)
        keys = {i: sketch_key(screener, summary["fingerprint"]) for i, summary in summaries.items()}
        found = {i: self.store.read_tensors("sketches", key) for i, key in keys.items()}
        batches = [
            Batch("sketch", screener, (Item((self.sources[i].name,), (i, summaries[i]["fingerprint"])),))
            for i, sketch in found.items()
            if sketch is None
        ]
        for outcome in self._outcomes(batches, "screen"):
            i = outcome.item.argument[0]
            found[i] = self.store.read_tensors("sketches", keys[i])
        return screened(screener, {i: sketch for i, sketch in found.items() if sketch}, len(self.sources))

    def _work(
        self, settings: MatrixSettings, summaries: dict[int, dict[str, Any]], screening: MatrixScreening | None
    ) -> None:
        """The items of this part that are not in the store yet."""
        prints = {i: summary["fingerprint"] for i, summary in summaries.items()}
        moments = {i: summaries[i]["moments"] for i in sorted(summaries, key=prints.__getitem__)}
        frames = Frames.of({i: (found.mean, float(found.spread)) for i, found in moments.items()})
        shapes = {i: Shape(s["n"], len(s["classes"]), frames.frame[i]) for i, s in summaries.items()}
        selves, pairs = _work_list(prints, settings, all_pairs(list(prints), screening))
        index, count = self.part
        mine = set((list(selves) + list(pairs))[index::count])
        todo: list[list[tuple[int, ...]]] = [[], []]
        for stage, (kind, items) in enumerate((("selves", selves), ("pairs", pairs))):
            for key, positions in items.items():
                if key not in mine or any((self.sources[i].name,) in self.failed for i in positions):
                    continue
                if self.store.read(kind, key) is not None:
                    self.reused += 1
                else:
                    todo[stage].append(positions)
        # one worker solves them side by side; among several, a pair would not know the self terms of another worker
        for part in [todo[0] + todo[1]] if self.pool.count == 1 else todo:
            for outcome in self._outcomes(self._batches(settings, part, prints, shapes, frames), "terms"):
                self.computed += outcome.error is None

    def _batches(
        self, settings: MatrixSettings, todo: Sequence[tuple[int, ...]], prints: dict[int, str],
        shapes: dict[int, Shape], frames: Frames,
    ) -> list[Batch]:  # fmt: skip
        """Problems to solve together: as many as fit, and no more than leave all workers something to do."""
        item = {
            (at[0], at[-1]): Item(
                tuple(self.sources[i].name for i in at), Member.of(at, [prints[i] for i in at])
            )
            for at in todo
        }  # fmt: skip
        if not todo:
            return []
        most = -(-len(todo) // self.pool.count)
        limit = score_limit(self.options, self.devices[todo[0][0]], share=self.pool.share)
        return [
            Batch(
                "terms",
                (settings, frames.origin(*part[0])),
                tuple(item[pair] for pair in part[start : start + most]),
            )
            for part in batches(shapes, item, limit)
            for start in range(0, len(part), most)
        ]

    def _outcomes(self, batches: Sequence[Batch], title: str) -> Iterator[Outcome]:
        """Run batches, keep count of items on stderr and failures in the record."""
        with counter(title, sum(len(batch.items) for batch in batches), enabled=self.options.progress) as step:
            for outcome in self.pool.run(batches):
                step()
                names = outcome.item.names
                if outcome.error is None:
                    self.store.remove("failures", failure_key(names))
                elif len(names) == 1 or not any((name,) in self.failed for name in names):
                    kind, message, trace = outcome.error
                    self.failed.add(names)
                    self.store.write("failures", failure_key(names), failure_record(Failure(names, kind, message)))
                    log.warning("%s failed: %s: %s", " x ".join(names), kind, message)
                    log.debug("%s", trace)
                yield outcome


def _work_list(
    prints: dict[int, str], settings: MatrixSettings, wanted: Iterable[tuple[int, int]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Self terms and pairs by key, each content once; equal sets make no pair, they are at distance zero."""
    selves: dict[str, tuple[int, ...]] = {}
    pairs: dict[str, tuple[int, ...]] = {}
    for i, fingerprint in prints.items():
        selves.setdefault(settings.key(fingerprint), (i,))
    for i, j in tiled(list(wanted)):
        if prints[i] != prints[j]:
            pairs.setdefault(settings.key(prints[i], prints[j]), (i, j))
    return selves, pairs


def _pool(run: _Run, devices: list[str | None], stack: ExitStack) -> InProcess | Processes:
    """Where items are executed."""
    if len(devices) == 1:
        return InProcess(Worker(run.sources, run.options, run.store, device=devices[0]))
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="otdd-sets-"))
    build = partial(_build_worker, spill(run.sources, Path(scratch)), run.options, run.store, devices)
    share = max(devices.count(device) for device in devices)
    return Processes(build, len(devices), threads_per_worker(len(devices)), share=share)


def _build_worker(
    sources: list[SetSource], options: DistanceOptions, store: Store, devices: list[str | None], slot: int
) -> Worker:
    return Worker(sources, options, store, device=devices[slot], share=devices.count(devices[slot]))


def _parse_shard(shard: str | None) -> tuple[int, int]:
    """``"i/N"`` as two numbers."""
    if shard is None:
        return 0, 1
    index, slash, count = shard.partition("/")
    if slash and index.strip().isdigit() and count.strip().isdigit() and int(index) < int(count):
        return int(index), int(count)
    raise ValueError(f"shard must be 'i/N' with 0 <= i < N, as '0/4', got {shard!r}")


def _report(matrix: DistanceMatrix, *, strict: bool) -> None:
    """Say loudly what failed and what is not converged."""
    if matrix.failures:
        first = matrix.failures[0]
        warn(
            f"{len(matrix.failures)} items of the matrix failed, the first is {' x '.join(first.names)}: "
            f"{first.error}: {first.message}"
        )
    loose = [pair for pair, certificate in matrix.certificates.items() if not certificate["converged"]]
    if not loose:
        return
    names = ", ".join(f"{matrix.names[i]} x {matrix.names[j]}" for i, j in loose[:5])
    message = (
        f"{len(loose)} of {len(matrix.certificates)} pairs are not converged ({names}); raise max_iterations or epsilon"
    )
    not_converged(message, strict=strict)
