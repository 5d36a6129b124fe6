"""Candidates ordered by their distance to a target, with intervals, and where the order means something.

Each replicate draws half of the rows of the target and of every candidate, without replacement; all candidates of a
replicate meet the same half of the target. The spread of such half-sample values is the spread of the value itself to
first order (``(1/m - 1/n) = 1/n`` at ``m = n/2``), at a quarter of a bootstrap's cost and without its repeated points,
and their mean minus the value estimates the value's own bias, which falls like ``1/n`` and would otherwise put small
candidates too far. Intervals are ``value - bias -+ z std``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from otdd_flash.distance import DistanceOptions
from otdd_flash.errors import NotConvergedError, NotConvergedWarning
from otdd_flash.labels.blocks import class_statistics
from otdd_flash.matrix.assemble import options_record
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.result import Failure
from otdd_flash.matrix.settings import Settings, epsilons, make_options
from otdd_flash.matrix.sources import SetSource, as_sources
from otdd_flash.matrix.worker import Prepared, cross_cost, self_cost
from otdd_flash.progress import counter
from otdd_flash.sinkhorn import Divergence, divergence
from otdd_flash.types import LabeledDataset

log = logging.getLogger("otdd_flash")


@dataclass(frozen=True, eq=False)
class RankedSet:
    """One candidate at its place.

    Args:
        name: of the candidate.
        value: squared divergence to the target, in units of the cost.
        root: its square root.
        low: lower end of the interval of the value.
        high: upper end.
        std: standard deviation of the value from sampling both sets.
        bias: how much too large the value is for these sample sizes; the interval has it subtracted.
        p_next: two-sided p-value of the difference to the next candidate; ``None`` for the last.
        certain: whether that difference is significant at the ranking's level; ``None`` for the last or without
            replicates.
        converged: every problem of the value met its tolerance.
        marginal_error: the worst of them.
        error: stated absolute error of the value.
        n: samples.
        class_names: of the candidate.
        coupling: ``(c, c')`` mass that the plan sends from each class of the candidate to each class of the target.
    """

    name: str
    value: float
    root: float
    low: float | None
    high: float | None
    std: float | None
    bias: float | None
    p_next: float | None
    certain: bool | None
    converged: bool
    marginal_error: float
    error: float
    n: int
    class_names: tuple[str, ...]
    coupling: Tensor = field(repr=False)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates from the nearest to the farthest.

    Args:
        candidates: in order.
        target: name of the target.
        target_classes: its class names.
        level: of intervals and tests.
        bootstrap: number of half-sample replicates.
        epsilon: of every problem, in units of the cost.
        seed: of the draws.
        failures: candidates that could not be compared.
        options: of the distances.
        seconds: wall time.
    """

    candidates: tuple[RankedSet, ...]
    target: str
    target_classes: tuple[str, ...]
    level: float
    bootstrap: int
    epsilon: float
    seed: int
    failures: tuple[Failure, ...]
    options: dict[str, Any] = field(repr=False)
    seconds: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Candidates from the nearest to the farthest."""
        return tuple(candidate.name for candidate in self.candidates)

    def __getitem__(self, name: str) -> RankedSet:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{name!r} is not ranked; there are {list(self.names)}")

    def matching(self, name: str) -> list[dict[str, Any]]:
        """For each class of the target, the class of candidate ``name`` that feeds it most, and with what share.

        ``share`` is the fraction of the target class that comes from ``source``; ``sent`` the fraction of ``source``
        that goes there.
        """
        candidate = self[name]
        shares = candidate.coupling / candidate.coupling.sum(0, keepdim=True)
        sent = candidate.coupling / candidate.coupling.sum(1, keepdim=True)
        best = shares.argmax(0).tolist()
        return [
            {
                "target": target, "source": candidate.class_names[i], "share": float(shares[i, j]),
                "sent": float(sent[i, j]),
            }
            for j, (target, i) in enumerate(zip(self.target_classes, best, strict=True))
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's own types."""
        ranked = [
            {**{k: v for k, v in vars(c).items() if k not in ("coupling", "class_names")},
             "class_names": list(c.class_names), "coupling": c.coupling.tolist(), "matching": self.matching(c.name)}
            for c in self.candidates
        ]  # fmt: skip
        return {
            "target": self.target, "target_classes": list(self.target_classes), "candidates": ranked,
            "level": self.level, "bootstrap": self.bootstrap, "method": "half-samples of both sets, paired by target",
            "epsilon": self.epsilon, "seed": self.seed, "options": self.options, "seconds": self.seconds,
            "failures": [{**asdict(failure), "names": list(failure.names)} for failure in self.failures],
        }  # fmt: skip

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_dict`."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        return path


def rank(
    candidates: Any,
    target: Any,
    *,
    options: DistanceOptions | None = None,
    bootstrap: int = 40,
    level: float = 0.95,
    seed: int = 0,
    **overrides: Any,
) -> Ranking:
    """Order candidate data sets by their distance to a target.

    One epsilon serves all candidates (relative to the mean of their mean costs with the target, as in
    :func:`otdd_flash.pairwise`), so that values compare; the target's self term is solved once.

    Args:
        candidates: data sets as in :func:`otdd_flash.pairwise`.
        target: a data set, a name for :func:`otdd_flash.load`, or a loader.
        options: choices as in :func:`otdd_flash.dataset_distance`.
        bootstrap: half-sample replicates behind intervals and p-values; 0 gives the order alone.
        level: of the intervals and of the test between neighbours, in ``(0, 1)``.
        seed: of all draws.
        **overrides: fields of :class:`~otdd_flash.distance.DistanceOptions`, each over ``options``.

    Returns:
        The ranking; candidates that could not be compared are in ``failures``, with a warning.

    Raises:
        TypeError: an argument that is no option, or a target that is no data set.
        ValueError: options that do not fit, too few replicates, or no candidate that could be compared.
        NotConvergedError: under ``strict``.

    Source: half-samples: Politis, Romano and Wolf (1999), "Subsampling"; McCarthy (1969).

    >>> import otdd_flash as otdd
    >>> iris = otdd.load("iris")
    >>> sets = {"others": iris.subset(range(50, 150)), "same": iris.subset(range(0, 150, 2))}
    >>> otdd.rank(sets, iris, bootstrap=0, relative_epsilon=0.1).names
    ('same', 'others')
    """
    chosen = make_options(options, {**overrides, "seed": seed}, stored=False, function="rank")
    _check(bootstrap, level)
    start = time.perf_counter()
    job = _Job(chosen, seed)
    goal = job.load(as_sources({"target": target} if _nameless(target) else [target])[0])
    sets = job.load_all(as_sources(candidates), goal)
    if not sets:
        raise ValueError(f"no candidate could be compared: {'; '.join(f.message for f in job.failures)}")
    settings = _settings(chosen, sets, goal)
    found, replicates = job.solve(settings, sets, goal, bootstrap)
    ranking = Ranking(
        candidates=_ordered(found, replicates, level), target=goal.name, target_classes=goal.class_names, level=level,
        bootstrap=bootstrap, epsilon=settings.epsilon, seed=seed, failures=tuple(job.failures),
        options=options_record(chosen), seconds=time.perf_counter() - start,
    )  # fmt: skip
    _report(ranking, chosen)
    return ranking


@dataclass
class _Job:
    """Loading and solving, with failures kept."""

    options: DistanceOptions
    seed: int
    failures: list[Failure] = field(default_factory=list)

    def load(self, source: SetSource) -> LabeledDataset:
        """A set as it will be compared."""
        dataset = source.dataset()
        if self.options.max_samples is not None and dataset.n > self.options.max_samples:
            from otdd_flash.data import subsample

            dataset = subsample(dataset, self.options.max_samples, seed=self.seed)
        return dataset if self.options.device is None else dataset.to(self.options.device)

    def load_all(self, sources: Sequence[SetSource], goal: LabeledDataset) -> list[LabeledDataset]:
        """Candidates that can be compared with ``goal``; the others become failures."""
        from otdd_flash.labels import check_pair

        loaded = []
        for source in sources:
            try:
                dataset = self.load(source)
                check_pair(dataset, goal)
            except Exception as error:  # whatever a user's loader raises, the other candidates are still ranked
                self.failures.append(Failure((source.name,), type(error).__name__, str(error)))
                log.warning("%s failed: %s", source.name, error)
            else:
                loaded.append(dataset)
        return loaded

    def solve(
        self, settings: Settings, sets: Sequence[LabeledDataset], goal: LabeledDataset, bootstrap: int
    ) -> tuple[list[RankedSet], Tensor]:
        """Each candidate on all samples, and ``(bootstrap, k)`` values of half-samples."""
        found = []
        ready, own = _prepared(goal, settings)
        with counter("rank", len(sets) * (1 + bootstrap), enabled=self.options.progress) as step:
            for dataset in sets:
                found.append(_compare(dataset, ready, own, settings))
                step()
            replicates = torch.empty(bootstrap, len(sets), dtype=torch.float64)
            for b in range(bootstrap):
                half_ready, half_own = _prepared(_half(goal, self.seed, b, "target"), settings)
                for i, dataset in enumerate(sets):
                    half = _half(dataset, self.seed, b, f"candidate {i}")
                    replicates[b, i] = _value(*_terms(half, half_ready, half_own, settings))
                    step()
        return found, replicates


def _settings(options: DistanceOptions, sets: Sequence[LabeledDataset], goal: LabeledDataset) -> Settings:
    """One epsilon for all candidates."""
    theirs, ours = [Moments.of(dataset) for dataset in sets], Moments.of(goal)
    return Settings(options, **epsilons(options, [*theirs, ours], [(moments, ours) for moments in theirs]))


def _prepared(dataset: LabeledDataset, settings: Settings) -> tuple[Prepared, Divergence | None]:
    """A set with its class statistics and its self term."""
    classes = None
    if settings.labelled:
        method = settings.options.label_distance
        classes = class_statistics(dataset, method, sinkhorn=settings.label_sinkhorn())  # type: ignore[arg-type]
    ready = Prepared(dataset, classes)
    return ready, _transport(self_cost(ready, settings.options), settings) if settings.options.debiased else None


def _transport(cost: Any, settings: Settings) -> Divergence:
    options = settings.options
    return divergence(
        cost, settings.epsilon, debiased=False, options=options.solver(cost.device), execution=options.execution()
    )


def _terms(
    dataset: LabeledDataset, goal: Prepared, goal_self: Divergence | None, settings: Settings
) -> tuple[Divergence, Divergence | None, Divergence | None]:
    """The cross problem and both self terms."""
    ready, own = _prepared(dataset, settings)
    cost, _ = cross_cost(ready, goal, settings)
    return _transport(cost, settings), own, goal_self


def _value(cross: Divergence, *selves: Divergence | None) -> float:
    """``OT(a, b) - OT(a, a)/2 - OT(b, b)/2``."""
    return cross.value - sum(own.value for own in selves if own is not None) / 2


def _compare(dataset: LabeledDataset, goal: Prepared, goal_self: Divergence | None, settings: Settings) -> RankedSet:
    """One candidate on all samples; its place and its intervals come later."""
    terms = _terms(dataset, goal, goal_self, settings)
    used = [term for term in terms if term is not None]
    same = settings.options.debiased and dataset.fingerprint == goal.dataset.fingerprint
    value = 0.0 if same else _value(*terms)
    return RankedSet(
        name=dataset.name, value=value, root=math.sqrt(max(value, 0.0)), low=None, high=None, std=None, bias=None,
        p_next=None, certain=None, converged=all(term.converged for term in used),
        marginal_error=max(term.marginal_error for term in used),
        error=0.0 if same else used[0].error + sum(term.error for term in used[1:]) / 2, n=dataset.n,
        class_names=dataset.class_names, coupling=terms[0].plan.class_coupling(dataset.y, goal.dataset.y).cpu(),
    )  # fmt: skip


def _half(dataset: LabeledDataset, seed: int, replicate: int, what: str) -> LabeledDataset:
    """Half of the rows, drawn without replacement by seed, replicate and role.

    Raises:
        ValueError: fewer than four rows.
    """
    if dataset.n < 4:
        raise ValueError(f"{dataset.name} has {dataset.n} samples: intervals need at least four, or bootstrap=0")
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{replicate}/{what}".encode()))
    rows = torch.randperm(dataset.n, generator=generator)[: dataset.n // 2].sort().values
    return dataset.subset(rows)


def _ordered(found: list[RankedSet], replicates: Tensor, level: float) -> tuple[RankedSet, ...]:
    """Candidates in order, with intervals and the test between neighbours where there are replicates."""
    order = sorted(range(len(found)), key=lambda i: found[i].value)
    if not len(replicates):
        return tuple(found[i] for i in order)
    z = NormalDist().inv_cdf((1 + level) / 2)
    ranked = []
    for place, i in enumerate(order):
        item, values = found[i], replicates[:, i]
        std, bias = float(values.std()), float(values.mean()) - item.value
        item = replace(item, std=std, bias=bias, low=item.value - bias - z * std, high=item.value - bias + z * std)
        if place + 1 < len(order):
            j = order[place + 1]
            item = _with_test(item, found[j].value - item.value, replicates[:, j] - values, z)
        ranked.append(item)
    return tuple(ranked)


def _with_test(item: RankedSet, difference: float, replicated: Tensor, z: float) -> RankedSet:
    """Whether the next candidate is farther for more than the draw of the samples."""
    std = float(replicated.std())
    corrected = 2 * difference - float(replicated.mean())
    score = corrected / std if std > 0 else math.copysign(math.inf, corrected) if corrected else 0.0
    return replace(item, p_next=math.erfc(abs(score) / math.sqrt(2)), certain=score > z)


def _check(bootstrap: int, level: float) -> None:
    if bootstrap != 0 and bootstrap < 10:
        raise ValueError(f"bootstrap must be 0 or at least 10 replicates, got {bootstrap}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")


def _nameless(target: Any) -> bool:
    """Whether the target brings no name of its own."""
    return callable(target) and not isinstance(target, (SetSource, LabeledDataset, str))


def _report(ranking: Ranking, options: DistanceOptions) -> None:
    """Say loudly what failed and what is not converged."""
    for failure in ranking.failures:
        warnings.warn(
            f"{failure.names[0]} is not ranked: {failure.error}: {failure.message}", UserWarning, stacklevel=3
        )
    loose = [candidate.name for candidate in ranking.candidates if not candidate.converged]
    if not loose:
        return
    message = f"not converged: {', '.join(loose)}; raise max_iterations or epsilon"
    if options.strict:
        raise NotConvergedError(message)
    warnings.warn(message, NotConvergedWarning, stacklevel=3)
