"""Choose the part of a pool whose distribution is nearest to a target's.

Not the nearest points: a set of near but equal points is far from any target with more than one mode. The weights of
the pool are optimised first (:mod:`otdd_flash.selection.relaxed`), the samples with the largest weights are taken, and
exchanges against the gradient improve that set until none helps. The tangent of the convex divergence at the relaxed
minimum bounds every other choice from below.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides, settled
from otdd_flash.checks import check_choice, check_count, check_fields, check_number, check_type
from otdd_flash.distance import DistanceOptions, DistanceResult, dataset_distance
from otdd_flash.errors import not_converged
from otdd_flash.selection.pool import Balance, constrain, count_of, stack
from otdd_flash.selection.records import write_columns
from otdd_flash.selection.relaxed import Constraints, Weighted, WeightProblem, rank_in_group
from otdd_flash.selection.sides import prepare
from otdd_flash.sinkhorn.divergence import Status, report_convergence
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset

# Wide enough that a target point speaks for its surroundings, not for the one pool sample nearest to it.
DEFAULT_OPTIONS = DistanceOptions(relative_epsilon=0.1)
_CANDIDATE = 1e-3  # relaxed weight, in units of the cap, above which a sample takes part in exchanges
_SINGLE_TRIES = 10


@dataclass(frozen=True)
class SearchOptions:
    """How long :func:`select` searches.

    Args:
        steps: mirror descent steps at most.
        relative_gap: they end when no weights can be better by more than this fraction of the value.
        exchanges: trials at most to improve the rounded choice by exchanging samples; 0 leaves it as it is.
    """

    steps: int = 60
    relative_gap: float = 0.01
    exchanges: int = 40

    def __post_init__(self) -> None:
        check_fields(self, check_count, "steps")
        check_fields(self, check_count, "exchanges", least=0)
        check_fields(self, check_number, "relative_gap", closed=True)


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen samples with scores and certificate.

    Args:
        idx: ``(k,)`` int64 rows of ``pool``, best first.
        weights: ``(k,)`` float64 that sum to one: equal, or in proportion to the pool's own weights.
        scores: ``(n,)`` float64 in [0, 1]: the relaxed weight of each pool sample as a fraction of its cap.
        value: debiased divergence between the chosen samples and the target.
        pool_value: the same for the whole pool.
        error: stated absolute error of ``value``.
        relaxed_value: the least value found of any weights on the pool, those of the choice among them.
        lower_bound: no choice of this size can have a smaller value; the error of the value behind it is taken off.
        converged: the transport problems behind value and bound met the tolerance, and neither contradicts the other.
        steps: mirror steps taken.
        exchanges: exchanges accepted.
        pool: all samples; several sources stacked.
        sources: names of the stacked sources.
        source_of: ``(n,)`` int64 source of each sample.
        row_of: ``(n,)`` int64 position of each sample in the original of its source.
        result: the distance between the whole pool and the target.
    """

    idx: Tensor
    weights: Tensor
    scores: Tensor
    value: float
    error: float
    pool_value: float
    relaxed_value: float
    lower_bound: float
    converged: bool
    steps: int
    exchanges: int
    pool: LabeledDataset = field(repr=False)
    sources: tuple[str, ...]
    source_of: Tensor = field(repr=False)
    row_of: Tensor = field(repr=False)
    result: DistanceResult = field(repr=False)

    @property
    def dataset(self) -> LabeledDataset:
        """The chosen samples with their weights, best first."""
        return replace(self.pool, weights=None).subset(self.idx) if self._equal else self._weighted()

    def rows(self, source: str | None = None) -> list[int]:
        """Positions in the original of a source (which may be left out where there is only one), best first.

        Raises:
            ValueError: no such source, or several and none named.
        """
        if source is None and len(self.sources) == 1:
            source = self.sources[0]
        check_choice("source", source, self.sources)
        assert source is not None
        chosen = self.idx[self.source_of[self.idx] == self.sources.index(source)]
        return self.row_of[chosen].tolist()

    def torch_subset(self, dataset: Any, source: str | None = None) -> torch.utils.data.Subset:
        """The chosen samples of the torch data set that the pool (or its named source) was made from."""
        return torch.utils.data.Subset(dataset, self.rows(source))

    def huggingface(self, dataset: Any, source: str | None = None) -> Any:
        """The chosen rows of the Hugging Face data set that the pool (or its named source) was made from."""
        return dataset.select(self.rows(source))

    def columns(self) -> dict[str, list[Any]]:
        """The table of the choice, best first: rank, source, row in it, class, weight, score."""
        idx = self.idx
        return {
            "rank": list(range(len(idx))),
            "source": [self.sources[i] for i in self.source_of[idx].tolist()],
            "row": self.row_of[idx].tolist(),
            "class": [self.pool.class_names[i] for i in self.pool.y[idx].tolist()],
            "weight": self.weights.tolist(),
            "score": self.scores[idx].tolist(),
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`columns` as Parquet or JSON lines, by the suffix of ``path``."""
        return write_columns(self.columns(), path)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe summary: values with their bound, and how many samples each source and class gave."""
        table = self.columns()
        counts = {key: dict.fromkeys(sorted(set(table[key])), 0) for key in ("source", "class")}
        for key, found in counts.items():
            for name in table[key]:
                found[name] += 1
        return {
            "selected": len(self.idx), "pool": self.pool.n, "value": self.value, "error": self.error,
            "pool_value": self.pool_value, "relaxed_value": self.relaxed_value, "lower_bound": self.lower_bound,
            "converged": self.converged, "steps": self.steps, "exchanges": self.exchanges,
            "by_source": counts["source"], "by_class": counts["class"], "distance": self.result.to_dict(),
        }  # fmt: skip

    @property
    def _equal(self) -> bool:
        return bool((self.weights == self.weights[0]).all())

    def _weighted(self) -> LabeledDataset:
        full = torch.zeros_like(self.scores)
        full[self.idx] = self.weights
        return replace(self.pool, weights=full.to(self.pool.x.device)).subset(self.idx)


@plain_torch
def select(
    pool: LabeledDataset | Sequence[LabeledDataset],
    target: LabeledDataset,
    n_to_select: int | float,
    *,
    balance: Balance = None,
    search: SearchOptions | None = None,
    options: DistanceOptions | None = None,
    **overrides: Any,
) -> Selection:
    """Choose ``n_to_select`` samples of ``pool`` that together are nearest to ``target``.

    Memory and time grow with the square of the pool (its self term): ``max_samples`` draws from a larger one.

    Args:
        pool: samples to choose from, or several sets of one width; their classes are kept apart.
        target: what the choice should be distributed like. Its label space may be another one; ``label_weight=0``
            compares features alone.
        n_to_select: a count, or a fraction of the pool in (0, 1).
        balance: ``None`` for a free choice, ``"classes"`` for equal counts of the pool's classes (as far as they have
            samples), or counts by class name.
        search: how long to search.
        options: of the distance; the default is that of :func:`~otdd_flash.dataset_distance` with a
            ``relative_epsilon`` of 0.1.
        **overrides: single fields of :class:`~otdd_flash.distance.DistanceOptions`.

    Returns:
        The choice with its value, a lower bound of any choice's value, and scores.

    Raises:
        ValueError: a count that the pool does not hold, counts by class that do not fit, options without a gradient.
        NotConvergedError: under ``strict``.
    """
    check_sides(target=target)
    check_type("search", search, SearchOptions, "give SearchOptions(steps=...)", optional=True)
    search = search or SearchOptions()
    options = settled("select", options, overrides, DEFAULT_OPTIONS)
    stacked, sources, source_of = stack(pool)
    stacked, target, options = prepare(_present(stacked), _present(target), options)
    count = count_of(n_to_select, stacked.n)
    kept = stacked.ids if stacked.ids is not None else torch.arange(stacked.n)
    source_of, row_of = source_of[0][kept.cpu()], source_of[1][kept.cpu()]
    constraints, quotas = constrain(stacked, count, balance)
    result = dataset_distance(stacked, target, options=options)
    problem = _problem(result, constraints, options)
    relaxed = problem.minimise(search.steps, search.relative_gap)
    shares = relaxed.weights / constraints.caps
    chosen, idx, exchanges = _choose(problem, relaxed, quotas, trials=search.exchanges)
    bound = _bound(relaxed, constraints, quotas)
    converged = _report(chosen, relaxed, bound, options)
    idx = idx[torch.argsort(shares[idx], descending=True, stable=True)]
    relaxed_value = min(relaxed.value, chosen.value)
    return Selection(
        idx=idx.cpu(), weights=constraints.vertex(idx)[idx].cpu(), scores=shares.clamp(0.0, 1.0).cpu(),
        value=chosen.value, error=chosen.error, pool_value=result.value, relaxed_value=relaxed_value,
        lower_bound=min(max(bound, 0.0), relaxed_value), converged=converged and result.converged,
        steps=relaxed.steps, exchanges=exchanges, pool=stacked, sources=sources, source_of=source_of, row_of=row_of,
        result=result,
    )  # fmt: skip


def _present(side: LabeledDataset) -> LabeledDataset:
    """The samples that have weight: the others can neither be chosen nor be looked for."""
    absent = side.normalised_weights <= 0
    return side.subset(~absent) if bool(absent.any()) else side


def _bound(relaxed: Weighted, constraints: Constraints, quotas: list[int]) -> float:
    """What no choice can be below: the least of the tangent at the relaxed weights, without the error of its value."""
    lowest = constraints.lowest_vertex(relaxed.gradient, quotas)
    return relaxed.value - relaxed.error + float((lowest - relaxed.weights) @ relaxed.gradient)


def _report(chosen: Weighted, relaxed: Weighted, bound: float, options: DistanceOptions) -> bool:
    """Whether value and bound are converged and agree; said loudly where not."""
    converged = chosen.converged and relaxed.converged
    if converged and bound > chosen.value + chosen.error:
        message = f"the lower bound {bound:.6g} of any choice lies above the value {chosen.value:.6g} of the one made"
        not_converged(f"{message}: lower tol (now {options.tol:.2e}), or use precision='fp64'", strict=options.strict)
        return False
    worst = max((chosen, relaxed), key=lambda found: (not found.converged, found.marginal_error))
    status = Status(converged, worst.marginal_error, worst.error, options.max_iterations)
    report_convergence(status, options.solver(chosen.weights.device), strict=options.strict)
    return converged


def _problem(result: DistanceResult, constraints: Constraints, options: DistanceOptions) -> WeightProblem:
    """The weight problem behind a solved distance, warm."""
    found = result.divergence
    assert found.self_potentials is not None
    known = found.certificates[-1]
    problem = WeightProblem(
        found.cost, found.epsilon, (known["dual"], known["primal"]), constraints,
        solver=options.solver(found.cost.device), execution=options.execution(),
    )  # fmt: skip
    problem.start(*found.potentials, found.self_potentials[0])
    if found.identical:  # the distance is zero whatever the value of its only problem, which was not certified
        problem.certify_target()
    return problem


def _candidates(shares: Tensor, constraints: Constraints, quotas: list[int]) -> Tensor:
    """Rows that rounding and exchanges may use: those of some weight, at least as many of each group as it gives."""
    return ((shares > _CANDIDATE) | _largest(shares, constraints.groups, quotas)).nonzero()[:, 0]


def _choose(
    problem: WeightProblem, relaxed: Weighted, quotas: list[int], *, trials: int
) -> tuple[Weighted, Tensor, int]:
    """Round the weights, then exchange samples, many at once, later few, while that lowers the value."""
    shares = relaxed.weights / problem.constraints.caps
    rows = _candidates(shares, problem.constraints, quotas)
    small = problem.subset(rows)
    largest = _largest(relaxed.weights[rows] / small.constraints.caps, small.constraints.groups, quotas)
    starts = [small.round(relaxed.weights[rows], quotas), largest]
    best, inside = min(
        ((small.evaluate(small.constraints.vertex(start.nonzero()[:, 0])), start) for start in starts),
        key=lambda pair: pair[0].value,
    )
    width, accepted, failed = max(1, sum(quotas) // 5), 0, 0
    for _ in range(trials):
        # single samples get several tries, each beginning with the next best one
        trial, swapped = _swap(small, inside, best.gradient, width, skip=failed // 2, grow=failed % 2 == 0)
        if trial.value < best.value - 1e-6 * abs(best.value):
            best, inside, accepted, failed = trial, swapped, accepted + 1, 0
            continue
        failed += 1
        if failed == (2 * _SINGLE_TRIES if width == 1 else 2):
            if width == 1:
                break
            width, failed = width // 2, 0
    return best, rows[inside.nonzero()[:, 0]], accepted


def _largest(shares: Tensor, groups: Tensor, quotas: list[int]) -> Tensor:
    """``(n,)`` bool: the samples of largest share in each group."""
    order = torch.argsort(shares, descending=True, stable=True)
    taken = rank_in_group(groups[order], len(quotas)) < torch.tensor(quotas, device=groups.device)[groups[order]]
    chosen = torch.zeros_like(groups, dtype=torch.bool)
    chosen[order[taken]] = True
    return chosen


def _swap(
    problem: WeightProblem, inside: Tensor, gradient: Tensor, width: int, *, skip: int, grow: bool
) -> tuple[Weighted, Tensor]:
    """Add ``width`` samples, past the ``skip`` best, and drop as many of each group (``grow``), or drop first.

    A sample that was added makes those near it superfluous, which only the gradient at the larger set shows.
    """
    groups = problem.constraints.groups
    sizes = torch.bincount(groups[inside], minlength=len(problem.constraints.masses))
    order = torch.argsort(gradient if grow else -gradient, stable=True)
    movable = order[inside[order] != grow]
    if not grow:
        # no group may be emptied
        rank = rank_in_group(groups[movable], len(sizes))
        movable = movable[rank < sizes[groups[movable]] - 1]
    first = inside.clone()
    first[movable[skip : skip + width]] = grow
    halfway = problem.evaluate(problem.constraints.vertex(first.nonzero()[:, 0])).gradient
    order = torch.argsort(-halfway if grow else halfway, stable=True)
    movable = order[first[order] == grow]
    change = (torch.bincount(groups[first], minlength=len(sizes)) - sizes).abs()
    second = first.clone()
    second[movable[rank_in_group(groups[movable], len(sizes)) < change[groups[movable]]]] = not grow
    return problem.evaluate(problem.constraints.vertex(second.nonzero()[:, 0])), second
