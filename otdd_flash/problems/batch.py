"""Many transport problems between a few data sets, solved as one batch.

A set enters once, with its class statistics; a problem is a pair of sets, and a pair of a set with itself is its self
problem. What a task needs of them (a matrix, a ranking, its half-samples) is a list of such pairs; this module cuts the
list to what fits, makes one cost of the sets of each part and solves its problems together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.augment import joint_cost
from otdd_flash.cost import DotProductCost
from otdd_flash.labels.blocks import ClassStatistics, CrossTable, class_statistics_of, cross_tables
from otdd_flash.labels.samples import check_pair
from otdd_flash.memory import free_memory
from otdd_flash.problems.options import DistanceOptions
from otdd_flash.problems.settings import Settings
from otdd_flash.problems.sides import Side
from otdd_flash.sinkhorn import Solution, TransportPlan, solve
from otdd_flash.sinkhorn.divergence import without_weightless_penalties
from otdd_flash.sinkhorn.terms import Solved, Term
from otdd_flash.types import LabeledDataset

Pair = tuple[int, int]
_SCORES_ON_CPU = 1 << 20  # of a batch: beyond, a pass takes longer than what surrounds it
_NEAR = 4.0  # squared distance of means, in units of the smaller spread, up to which sets share their origin
CLASSES = 2048  # of a batch: its label table has the square of it
_SCORE_BYTES = 8  # with what surrounds a stored score
_ROW_SCORES = 32  # of a row and a column, whose histories weigh as much as so many scores


class Shape(NamedTuple):
    """What a set takes of a batch: samples, classes, and its frame."""

    n: int
    classes: int
    frame: int = 0


@dataclass(frozen=True, eq=False)
class Frames:
    """Origins of many sets: those that lie near each other have one in common, and can be in one batch.

    A cost is centred once for all of its sets, and points far from the centre lose digits. The frames are a function of
    all sets together, so that a value does not depend on what it is solved beside.

    Args:
        frame: of each set.
        origins: ``(d,)`` float64, of each frame.
    """

    frame: Mapping[int, int]
    origins: tuple[Tensor, ...]

    @classmethod
    def of(cls, sets: Mapping[int, tuple[Tensor, float]]) -> Frames:
        """Frames of sets given by mean ``(d,)`` and mean squared distance from it, in the order in which they count."""
        frame: dict[int, int] = {}
        first: list[tuple[Tensor, float]] = []
        for key, (mean, spread) in sets.items():
            near = (
                k
                for k, (origin, width) in enumerate(first)
                if len(origin) == len(mean) and float((mean - origin).square().sum()) <= _NEAR * min(spread, width)
            )
            frame[key] = next(near, len(first))
            if frame[key] == len(first):
                first.append((mean, spread))
        return cls(frame, tuple(origin for origin, _ in first))

    def origin(self, i: int, j: int) -> Tensor | None:
        """Where the costs between two sets are centred; ``None`` for sets of different widths."""
        first, second = (self.origins[self.frame[k]] for k in (i, j))
        return (first + second) / 2 if len(first) == len(second) else None


@dataclass(frozen=True, eq=False)
class SolvedPairs:
    """A solved batch.

    Args:
        pairs: positions of the two sets of each problem.
        values: of the problems, with what is known of them; the error of the label tables is part of ``rounding``, and
            their convergence of ``converged``.
        tables: ``(c, c')`` class distances of each pair of two sets.
        solution: potentials and certificates.
    """

    pairs: tuple[Pair, ...]
    values: tuple[Solved, ...]
    tables: tuple[CrossTable | None, ...]
    solution: Solution

    @property
    def cost(self) -> DotProductCost:
        """The cost over the sets of the batch."""
        return self.solution.operator.cost

    @cached_property
    def mean_costs(self) -> Tensor:
        """``(B,)`` of the problems, on the host."""
        return self.cost.means(self.solution.operator.problems)

    def plan(self, k: int) -> TransportPlan:
        """The plan of the ``k``-th problem, applied by streaming."""
        info = self.solution.operator.info
        return TransportPlan(
            self.cost, self.solution.operator.problems[k], self.solution.potentials(k), self.solution.epsilon,
            "triton" if info.backend == "triton" else "torch", info.precision,  # type: ignore[arg-type]
        )  # fmt: skip


def sides_of(datasets: Sequence[LabeledDataset], settings: Settings) -> list[Side]:
    """Placed data sets with the class statistics that the settings ask for."""
    if not settings.labelled:
        return [Side(dataset, None) for dataset in datasets]
    method = settings.options.label_distance
    statistics = class_statistics_of(datasets, method, sinkhorn=settings.label_sinkhorn(datasets[0].x.device))  # type: ignore[arg-type]
    return [Side(dataset, classes) for dataset, classes in zip(datasets, statistics, strict=True)]


def solve_pairs(
    sides: Sequence[Side],
    pairs: Sequence[Pair],
    settings: Settings,
    *,
    origin: Tensor | None = None,
    selves: Mapping[int, float] | None = None,
) -> SolvedPairs:
    """Solve the problems of ``pairs`` at the settings' epsilon.

    Args:
        sides: data sets of one width and device.
        pairs: positions in ``sides``; ``(i, i)`` is a self problem.
        settings: options and epsilons.
        origin: ``(d,)`` where the costs are centred; ``None`` for the mean of the sets.
        selves: values of self problems that were solved before, by position. A cross problem whose self problems are
            among these or in the batch is solved as well as the debiased value needs; one without them, and a self
            problem alone, as well as any debiased value would.

    Raises:
        ValueError: sets of different widths or devices, label tables that are not finite.
    """
    options, used = settings.options, sorted({k for pair in pairs for k in pair})
    at = {k: position for position, k in enumerate(used)}
    members = [sides[k] for k in used]
    for i, j in pairs:
        check_pair(sides[i].dataset, sides[j].dataset)
    tables = _tables(sides, pairs, settings)
    blocks = None
    if settings.labelled:
        blocks = {(k, k): side.classes.own for k, side in enumerate(members) if side.classes is not None}
        blocks |= {(at[i], at[j]): t.table for (i, j), t in zip(pairs, tables, strict=True) if t is not None}
    cost = joint_cost(
        [side.dataset for side in members], blocks,
        feature_weight=options.feature_weight, label_weight=options.label_weight, center=origin,
    )  # fmt: skip
    problems = [(at[i], at[j]) for i, j in pairs]
    solver = without_weightless_penalties(cost, problems, options.solver(cost.device))
    terms = _terms(pairs, selves or {}, debiased=options.debiased)
    operator = options.execution().operator(cost, problems, epsilon=settings.epsilon, tol=solver.tol)
    solution = solve(operator, settings.epsilon, solver, terms=terms)
    values = tuple(
        _with_labels(solution.solved(p), table if i != j else sides[i].classes, settings)
        for p, ((i, j), table) in enumerate(zip(pairs, tables, strict=True))
    )
    return SolvedPairs(tuple(pairs), values, tuple(tables), solution)


def score_limit(options: DistanceOptions, device: torch.device, *, share: int = 1) -> int:
    """Scores of a batch: a fraction of the memory, but on the CPU no more than pays.

    Args:
        options: may give a budget.
        device: where batches are solved.
        share: processes that do so at the same time.
    """
    if device.type == "cpu":
        return _SCORES_ON_CPU
    budget = options.memory_budget or free_memory(device) // 4
    return budget // (share * _SCORE_BYTES)


def batches(shapes: Mapping[int, Shape], pairs: Iterable[Pair], limit: int) -> Iterator[list[Pair]]:
    """Pairs that can be solved at once: of the same two frames, and in all as much as fits; at least one in each.

    Args:
        shapes: of the sets.
        pairs: keys of ``shapes``.
        limit: scores of a batch.
    """
    groups: dict[tuple[int, ...], list[Pair]] = {}
    for i, j in pairs:
        groups.setdefault(tuple(sorted({shapes[i].frame, shapes[j].frame})), []).append((i, j))
    for group in groups.values():
        yield from _cut(shapes, group, limit)


def _cut(shapes: Mapping[int, Shape], pairs: Iterable[Pair], limit: int) -> Iterator[list[Pair]]:
    """The pairs in order, cut where they become too many."""
    part: list[Pair] = []
    scores = 0
    present: set[int] = set()
    for i, j in pairs:
        size, both = shapes[i].n * shapes[j].n, {i, j}
        many = sum(shapes[k].classes for k in present | both) > CLASSES
        padded = _ROW_SCORES * (len(part) + 1) * max(shapes[k].n for k in present | both)
        if part and (scores + size + padded > limit or many):
            yield part
            part, scores, present = [], 0, set()
        part.append((i, j))
        scores, present = scores + size, present | both
    if part:
        yield part


def _terms(pairs: Sequence[Pair], selves: Mapping[int, float], *, debiased: bool) -> list[Term]:
    """The values that the problems are solved for."""
    if not debiased:
        return [Term.of(p) for p in range(len(pairs))]
    own = {i: p for p, (i, j) in enumerate(pairs) if i == j}
    terms, used = [], set()
    for p, (i, j) in enumerate(pairs):
        if i == j:
            continue
        here = [own[k] for k in (i, j) if k in own]
        known = [selves[k] for k in (i, j) if k not in own and k in selves]
        used.update(here)
        terms.append(Term.of(p, here, offset=-sum(known) / 2, part=len(here) + len(known) < 2))
    return terms + [Term.of(p, part=True) for p in own.values() if p not in used]


def _tables(sides: Sequence[Side], pairs: Sequence[Pair], settings: Settings) -> list[CrossTable | None]:
    """Class distances of the pairs of two different sets."""
    different = [k for k, (i, j) in enumerate(pairs) if i != j]
    out: list[CrossTable | None] = [None] * len(pairs)
    if not settings.labelled or not different:
        return out
    both = [(sides[pairs[k][0]].classes, sides[pairs[k][1]].classes) for k in different]
    method, sinkhorn = settings.options.label_distance, settings.label_sinkhorn(sides[0].dataset.x.device)
    for k, table in zip(different, cross_tables(both, method, sinkhorn=sinkhorn), strict=True):  # type: ignore[arg-type]
        out[k] = table
    return out


def _with_labels(value: Solved, labels: ClassStatistics | CrossTable | None, settings: Settings) -> Solved:
    """Count the error and the convergence of the class problems behind a value in."""
    if labels is None:
        return value
    rounding = value.rounding + abs(settings.options.label_weight) * labels.error
    return replace(value, rounding=rounding, converged=value.converged and labels.converged)
