"""Candidates ordered by their distance to a target, with intervals, and where the order means something.

Each replicate draws half of the rows of the target and of every candidate, without replacement; all candidates of a
replicate meet the same half of the target. The spread of such half-sample values is the spread of the value itself to
first order (``(1/m - 1/n) = 1/n`` at ``m = n/2``), at a quarter of a bootstrap's cost and without its repeated points,
and their mean minus the value estimates the value's own bias, which falls like ``1/n`` and would otherwise put small
candidates too far. Intervals are ``value - bias -+ z std``.

Thousands of candidates are screened first: each is loaded, summed up and forgotten, and the nearest by the screen are
loaded again for the full distance. Epsilon comes from all of them, so their values do not depend on the screen.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from torch import Tensor

from otdd_flash.checks import check_count, check_number
from otdd_flash.errors import not_converged, warn
from otdd_flash.matrix.assemble import options_record
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.result import Failure
from otdd_flash.matrix.settings import epsilons, make_options
from otdd_flash.matrix.sources import SetSource, as_sources
from otdd_flash.problems import DistanceOptions, Settings, place
from otdd_flash.progress import counter
from otdd_flash.screening import Screen
from otdd_flash.screening.cut import Cut, check_screen, cut, rank_correlation
from otdd_flash.screening.screener import Screener
from otdd_flash.selection.comparison import Comparison
from otdd_flash.selection.ranking import RankedSet, Ranking, RankScreening
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

log = logging.getLogger("otdd_flash")


@plain_torch
def rank(
    candidates: Any,
    target: Any,
    *,
    options: DistanceOptions | None = None,
    bootstrap: int = 40,
    level: float = 0.95,
    screen: Screen | None = None,
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
        screen: order all candidates by a cheap distance first and compute the full one for the nearest alone; for
            thousands of them.
        **overrides: fields of :class:`~otdd_flash.distance.DistanceOptions`, each over ``options``; ``seed`` is that of
            all draws, the half-samples among them.

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
    chosen = make_options(options, overrides, stored=False, function="rank")
    _check(bootstrap, level)
    check_screen(screen)
    start = time.perf_counter()
    job = _Job(chosen, least=4 if bootstrap else 1)
    goal = job.load(as_sources({"target": target} if _nameless(target) else [target])[0])
    seen = job.look(as_sources(candidates, "candidates"), goal, screen)
    job.require(seen)
    settings = _settings(chosen, [item.moments for item in seen], goal)
    kept = None if screen is None else cut([item.screened for item in seen], screen)
    screened = time.perf_counter() - start
    sets = job.load_all(seen if kept is None else [seen[i] for i in kept.kept], goal)
    job.require(sets)
    found, replicates = job.solve(settings, sets, goal, bootstrap)
    ranking = Ranking(
        candidates=_ordered(found, replicates, level), target=goal.name, target_classes=goal.class_names, level=level,
        bootstrap=bootstrap, epsilon=settings.epsilon, seed=chosen.seed, failures=tuple(job.failures),
        options=options_record(chosen), seconds=time.perf_counter() - start,
    )  # fmt: skip
    if screen is not None and kept is not None:
        ranking = _with_screening(ranking, seen, screen, kept, screened)
    _report(ranking, chosen)
    return ranking


@dataclass(frozen=True, eq=False)
class _Seen:
    """A candidate after the first look: in memory, or (screened) to be loaded again where it is kept."""

    source: SetSource
    moments: Moments
    dataset: LabeledDataset | None
    screened: float


@dataclass
class _Job:
    """Loading and solving, with failures kept."""

    options: DistanceOptions
    least: int  # samples of a set: half-samples need four
    failures: list[Failure] = field(default_factory=list)

    def load(self, source: SetSource) -> LabeledDataset:
        """A set as it will be compared."""
        dataset = place(source.dataset(), self.options)
        if dataset.n < self.least:
            raise ValueError(f"{dataset.name} has {dataset.n} samples: intervals need at least four, or bootstrap=0")
        return dataset

    def look(self, sources: Sequence[SetSource], goal: LabeledDataset, screen: Screen | None) -> list[_Seen]:
        """Candidates that can be compared with ``goal``; the others become failures."""
        from otdd_flash.labels import check_pair

        screener = None if screen is None else _screener(screen, self.options, goal)
        own = None if screener is None else screener.sketch(goal)
        found = []
        with counter("screen", len(sources), enabled=screen is not None and bool(self.options.progress)) as step:
            for source in sources:
                try:
                    dataset = self.load(source)
                    check_pair(dataset, goal)
                    moments = Moments.of(dataset)
                    if screener is None or own is None:
                        found.append(_Seen(source, moments, dataset, math.nan))
                    else:
                        value = screener.distance(own, screener.sketch(dataset))
                        found.append(_Seen(source, moments, None, math.inf if math.isnan(value) else value))
                except Exception as error:  # whatever a user's loader raises, the other candidates are still ranked
                    self._failed(source, error)
                step()
        return found

    def require(self, left: Sequence[Any]) -> None:
        """Go on only with something to compare."""
        if not left:
            raise ValueError(f"no candidate could be compared: {'; '.join(f.message for f in self.failures)}")

    def load_all(self, seen: Sequence[_Seen], goal: LabeledDataset) -> list[LabeledDataset]:
        """Those that are to be compared, in memory."""
        from otdd_flash.labels import check_pair

        loaded = []
        for item in seen:
            try:
                dataset = self.load(item.source) if item.dataset is None else item.dataset
                check_pair(dataset, goal)
                loaded.append(dataset)
            except Exception as error:  # likewise
                self._failed(item.source, error)
        return loaded

    def _failed(self, source: SetSource, error: Exception) -> None:
        self.failures.append(Failure((source.name,), type(error).__name__, str(error)))

    def solve(
        self, settings: Settings, sets: Sequence[LabeledDataset], goal: LabeledDataset, bootstrap: int
    ) -> tuple[list[RankedSet], Tensor]:
        """Each candidate on all samples, and ``(bootstrap, k)`` values of half-samples."""
        comparison = Comparison.of(goal, sets, settings)
        with counter("rank", len(sets) * (1 + bootstrap), enabled=self.options.progress) as step:
            return comparison.whole(step), comparison.halves(bootstrap, step)


def _settings(options: DistanceOptions, theirs: Sequence[Moments], goal: LabeledDataset) -> Settings:
    """One epsilon for all candidates."""
    ours = Moments.of(goal)
    return Settings(options, **epsilons(options, [*theirs, ours], [(moments, ours) for moments in theirs]))


def _screener(screen: Screen, options: DistanceOptions, goal: LabeledDataset) -> Screener:
    """Seen from the target alone: a candidate's screening distance does not depend on the other candidates."""
    ours = Moments.of(goal)
    return Screener.of(screen, options, ours.mean.to(goal.x.device), float(ours.spread))


def _with_screening(ranking: Ranking, seen: Sequence[_Seen], screen: Screen, kept: Cut, seconds: float) -> Ranking:
    """The ranking with what the screen saw of all candidates."""
    values = {item.source.name: item.screened for item in sorted(seen, key=lambda item: item.screened)}
    candidates = tuple(replace(item, screened=values[item.name]) for item in ranking.candidates)
    agreement = rank_correlation([values[item.name] for item in candidates], [item.value for item in candidates])
    report = RankScreening(screen, values, ranking.names, kept.near_ties, kept.left, agreement, seconds)
    return replace(ranking, candidates=candidates, screening=report)


def _ordered(found: list[RankedSet], replicates: Tensor, level: float) -> tuple[RankedSet, ...]:
    """Candidates in order, with intervals and the test between neighbours where there are replicates."""
    order = sorted(range(len(found)), key=lambda i: found[i].value)
    if not len(replicates):
        return tuple(found[i] for i in order)
    z = NormalDist().inv_cdf((1 + level) / 2)
    ranked = []
    for position, i in enumerate(order):
        item, values = found[i], replicates[:, i]
        std, bias = float(values.std()), float(values.mean()) - item.value
        item = replace(item, std=std, bias=bias, low=item.value - bias - z * std, high=item.value - bias + z * std)
        if position + 1 < len(order):
            j = order[position + 1]
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
    bootstrap = check_count("bootstrap", bootstrap, least=0)
    if bootstrap != 0 and bootstrap < 10:
        raise ValueError(f"bootstrap must be 0 or at least 10 replicates, got {bootstrap}")
    check_number("level", level, high=1.0)


def _nameless(target: Any) -> bool:
    """Whether the target brings no name of its own."""
    return callable(target) and not isinstance(target, (SetSource, LabeledDataset, str))


def _report(ranking: Ranking, options: DistanceOptions) -> None:
    """Say loudly what failed and what is not converged."""
    for failure in ranking.failures:
        warn(f"{failure.names[0]} is not ranked: {failure.error}: {failure.message}")
    loose = [candidate.name for candidate in ranking.candidates if not candidate.converged]
    if not loose:
        return
    message = f"not converged: {', '.join(loose)}; raise max_iterations or epsilon"
    not_converged(message, strict=options.strict)
