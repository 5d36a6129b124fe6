"""The best weights on a pool: the debiased divergence to a target, minimised under a cap per sample.

    min_w S_eps(w, b)    0 <= w_i <= u_i,   sum_{i in group} w_i = q_group

``S_eps`` is convex in ``w`` (Feydy et al. 2019, theorem 1) with gradient ``f - h``, cross minus self potential. A
subset of ``k`` samples with equal weights is a vertex of this set for ``u = 1/k``: the minimum bounds every subset from
below.

Mirror descent in the entropy: ``w <- projection of w exp(-(f - h) rate / eps)``, the potentials following by a few
Sinkhorn passes a step (Aubin-Frankowski et al. 2022 on mirror descent over measures). By convexity
``gap = <w, f - h> - min_{w'} <w', f - h>`` bounds what is left to gain.

Weights move while the stored costs do not: an operator built for weights ``a`` gives the plan for ``w`` when its
potentials are shifted by ``eps log(w / a)``.

A choice weighs its samples in proportion to the caps. Where these differ it may hold one above its cap, so that the
weights of the choices are not all feasible: what bounds the choices is ``min <w', f - h>`` over their own weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import PlanOperator, PlanProduct
from otdd_flash.sinkhorn import Execution, SolverOptions, solve
from otdd_flash.sinkhorn.divergence import rounding_of
from otdd_flash.sinkhorn.terms import Term, combine
from otdd_flash.types import Potentials

_FLOOR = 1e-8  # smallest weight in units of its cap: keeps every potential defined
_PASSES = 2  # Sinkhorn passes a mirror step: one update of each side
_ROUND = 10  # mirror steps between looks at the converged value, at most
_ROUNDS = 20  # in which a choice is rounded
_DEBIASED = Term.of(0, (1, 2))  # of the problems (pool, target), (pool, pool), (target, target)
_NEGLIGIBLE = 1e-3  # of epsilon: a value that counts as zero


@dataclass(frozen=True, eq=False)
class Constraints:
    """The feasible weights: caps and the mass of every group.

    Args:
        caps: ``(n,)`` float64 ``u``.
        groups: ``(n,)`` int64 group of each sample.
        masses: ``(number of groups,)`` float64 ``q``, summing to one.
        fixed: ``(n,)`` bool: samples whose weight is their cap; ``None`` for none.
    """

    caps: Tensor
    groups: Tensor
    masses: Tensor
    fixed: Tensor | None = None

    def subset(self, index: Tensor) -> Constraints:
        """The same for some of the samples."""
        return Constraints(self.caps[index], self.groups[index], self.masses)

    def free(self) -> Iterator[tuple[Tensor, float]]:
        """Of each group the samples that are not fixed, and the mass left for them."""
        for group, mass in enumerate(self.masses.tolist()):
            mine = self.groups == group
            if self.fixed is None:
                yield mine.nonzero()[:, 0], mass
            else:
                rest = mass - float(self.caps[mine & self.fixed].sum())
                yield (mine & ~self.fixed).nonzero()[:, 0], max(rest, 0.0)

    def project(self, weights: Tensor) -> Tensor:
        """The feasible weights nearest in relative entropy: ``min(u, lambda_group w)``, exactly, by sorting."""
        out = self.caps.clone()
        for inside, mass in self.free():
            if not len(inside):  # all of the group are fixed
                continue
            w, u = weights[inside], self.caps[inside]
            order = torch.argsort(w / u, descending=True)
            w_sorted, u_sorted = w[order], u[order]
            free = w_sorted.flip(0).cumsum(0).flip(0)  # mass of the samples from here on
            capped = u_sorted.cumsum(0) - u_sorted  # caps of the samples before
            factor = (mass - capped) / free
            # the first sample whose scaled weight fits under its cap fixes the factor of all after it
            fits = (factor * w_sorted <= u_sorted).nonzero()[:, 0]
            scale = factor[fits[0]] if len(fits) else torch.full_like(factor[0], torch.inf)
            out[inside] = torch.minimum(u, scale * w)
        return out

    def lowest(self, gradient: Tensor) -> Tensor:
        """The feasible weights of the smallest ``<w, gradient>``: every group filled from its smallest entries."""
        out = self.caps.clone()
        for inside, mass in self.free():
            order = inside[torch.argsort(gradient[inside], stable=True)]
            before = self.caps[order].cumsum(0) - self.caps[order]
            out[order] = torch.minimum((mass - before).clamp_min(0.0), self.caps[order])
        return out

    def vertex(self, index: Tensor) -> Tensor:
        """``(n,)`` weights of the choice ``index``: in proportion to the caps, every group with its mass."""
        weights = torch.zeros_like(self.caps)
        weights[index] = self.caps[index]
        mass = torch.zeros_like(self.masses).index_add_(0, self.groups, weights)
        return weights * (self.masses / mass.clamp_min(1e-300))[self.groups]

    def lowest_vertex(self, gradient: Tensor, quotas: list[int]) -> Tensor:
        """``(n,)`` weights of the choice of ``quotas`` samples of each group with the smallest ``<w, gradient>``.

        A group's part is a ratio of sums, whose minimum Dinkelbach's iteration (1967) finds exactly.
        """
        chosen = []
        for group, count in enumerate(quotas):
            inside = (self.groups == group).nonzero()[:, 0]
            caps, slope = self.caps[inside], gradient[inside]
            ratio = slope.max() if count else torch.zeros_like(self.masses[0])
            best = inside[:0]
            while count:
                taken = torch.argsort(caps * (slope - ratio), stable=True)[:count]
                lower = (caps[taken] @ slope[taken]) / caps[taken].sum()
                if len(best) and not lower < ratio:
                    break
                best, ratio = inside[taken], lower
            chosen.append(best)
        return self.vertex(torch.cat(chosen))


@dataclass(frozen=True, eq=False)
class Weighted:
    """Weights on the pool with what is known of them.

    Args:
        weights: ``(n,)`` float64.
        gradient: ``(n,)`` float64 of the divergence at these weights, up to a constant.
        value: the divergence.
        gap: no feasible weights are better by more.
        error: stated absolute error of ``value``.
        marginal_error: L1, of the worse of the two problems.
        converged: both problems are solved to the tolerance and the value is known well enough.
        steps: mirror steps taken.
    """

    weights: Tensor
    gradient: Tensor
    value: float
    gap: float
    error: float
    marginal_error: float
    converged: bool
    steps: int = 0


def rank_in_group(groups: Tensor, count: int) -> Tensor:
    """Position of each entry of ``groups (n,)``, numbers below ``count``, among the entries of its group."""
    return torch.nn.functional.one_hot(groups, count).cumsum(0).gather(1, groups[:, None])[:, 0] - 1


class Reweighted:
    """An operator of the problems (pool, target) and (pool, pool) under other weights of the pool.

    Args:
        operator: for the pool's own weights.
        weights: ``(n,)`` positive.
    """

    def __init__(self, operator: PlanOperator, weights: Tensor) -> None:
        self._inner = operator
        self.cost, self.problems, self.info = operator.cost, operator.problems, operator.info
        ratio = torch.log(weights / operator.cost.clouds[0].weights)
        self._rows = torch.stack([operator.pack_rows(ratio, p) for p in (0, 1)])
        self._columns = torch.stack([torch.zeros_like(operator.b[0]), operator.pack_columns(ratio, 1)])
        self.a = torch.stack([operator.pack_rows(weights, p) for p in (0, 1)])
        self.b = torch.stack([operator.b[0], operator.pack_columns(weights, 1)])

    def marginals(self, f: Tensor, g: Tensor, epsilon: float, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Row and column sums; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        return self._inner.marginals(f + epsilon * self._rows, g + epsilon * self._columns, epsilon, active)

    def softmin(self, potential: Tensor, epsilon: float, *, side: Literal["rows", "columns"]) -> Tensor:
        """Safe half step; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        shift = self._columns if side == "rows" else self._rows
        return self._inner.softmin(potential + epsilon * shift, epsilon, side=side)

    def apply_plan(
        self, problem: int, f: Tensor, g: Tensor, epsilon: float, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> PlanProduct:
        """``P v`` and ``P^T u``; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        f = f + epsilon * self.unpack_rows(self._rows[problem], problem)
        g = g + epsilon * self.unpack_columns(self._columns[problem], problem)
        return self._inner.apply_plan(problem, f, g, epsilon, v=v, u=u)

    def pack_rows(self, values: Tensor, problem: int) -> Tensor:
        """To the row layout."""
        return self._inner.pack_rows(values, problem)

    def unpack_rows(self, values: Tensor, problem: int) -> Tensor:
        """From the row layout."""
        return self._inner.unpack_rows(values, problem)

    def pack_columns(self, values: Tensor, problem: int) -> Tensor:
        """To the column layout."""
        return self._inner.pack_columns(values, problem)

    def unpack_columns(self, values: Tensor, problem: int) -> Tensor:
        """From the column layout."""
        return self._inner.unpack_columns(values, problem)


class WeightProblem:
    """The divergence of a reweighted pool to a fixed target.

    Args:
        cost: clouds (pool, target).
        epsilon: in units of the cost.
        target: dual and primal value of ``OT_eps(b, b)``.
        constraints: feasible weights.
        solver: tolerances of the transport problems.
        execution: backend, precision, memory mode.
    """

    def __init__(
        self,
        cost: DotProductCost,
        epsilon: float,
        target: tuple[float, float],
        constraints: Constraints,
        *,
        solver: SolverOptions,
        execution: Execution,
    ) -> None:
        self.cost, self.epsilon, self.target = cost, epsilon, target
        self.constraints, self.solver, self.execution = constraints, solver, execution
        self._operator = execution.operator(cost, [(0, 1), (0, 0)], epsilon=epsilon)
        n, m = (cloud.weights for cloud in cost.clouds)
        self.start(torch.zeros_like(n), torch.zeros_like(m), torch.zeros_like(n))

    def start(self, f: Tensor, g: Tensor, h: Tensor) -> None:
        """Potentials to begin with: cross ``f, g`` and self ``h``."""
        self._cross, self._own = Potentials(f, g), Potentials(h, h)

    def certify_target(self) -> None:
        """Bound the target's own value, where the target is the pool itself and nothing bounds it yet."""
        found = solve(
            self._operator, self.epsilon, self.solver, initial=[self._cross, self._own],
            terms=[Term((1,), (-0.5,), offset=self.target[0] / 2)],
        )  # fmt: skip
        self.target = float(found.dual[1]), float(found.primal[1])

    def subset(self, index: Tensor) -> WeightProblem:
        """The same problem on some samples of the pool, from the potentials reached."""
        pool, target = self.cost.clouds
        labels = None if pool.labels is None else pool.labels[index]
        kept = PointCloud(pool.points[index], pool.weights[index] / pool.weights[index].sum(), labels)
        cost = DotProductCost((kept, target), self.cost.feature_weight, self.cost.table, self.cost.center)
        problem = WeightProblem(
            cost, self.epsilon, self.target, self.constraints.subset(index), solver=self.solver,
            execution=self.execution,
        )  # fmt: skip
        problem.start(self._cross.f[index], self._cross.g, self._own.f[index])
        return problem

    def minimise(self, steps: int, relative_gap: float) -> Weighted:
        """Mirror descent from the pool's own weights, until the gap is below ``relative_gap`` of the value.

        Steps are judged by the converged value they lead to, first singly, then in longer and longer rounds; what did
        not lower it is undone and not counted, and followed by a single, at last a smaller step.
        """
        best = self.evaluate(self.constraints.project(self.cost.clouds[0].weights))
        step, length, rate, failures = 0, 1, 1.0, 0
        while step < steps and failures < steps:
            if best.gap <= relative_gap * max(abs(best.value), _NEGLIGIBLE * self.epsilon):
                break
            weights = best.weights
            for _ in range(length):
                weights = self._mirror(weights, rate)
            found = self.evaluate(weights)
            if found.value < best.value:
                step += length
                best, length, rate = found, min(2 * length, _ROUND, max(1, steps - step)), min(1.5 * rate, 1.0)
                continue
            failures += 1
            length, rate = (1, rate) if length > 1 else (1, rate / 4)
        return replace(best, steps=step)

    def round(self, weights: Tensor, quotas: list[int]) -> Tensor:
        """``(n,)`` bool choice of ``quotas`` samples of each group: some of the largest weights are fixed at their cap,
        the others move to make up for it, and so on until all are fixed.
        """
        free = self.constraints
        groups, left = free.groups, torch.tensor(quotas, device=weights.device)
        chosen = torch.zeros_like(groups, dtype=torch.bool)
        chunk = -(-sum(quotas) // _ROUNDS)
        while bool(left.any()):
            order = torch.argsort(torch.where(chosen, -1.0, weights / free.caps), descending=True, stable=True)
            open_rows = order[~chosen[order]]
            open_rows = open_rows[rank_in_group(groups[open_rows], len(quotas)) < left[groups[open_rows]]][:chunk]
            chosen[open_rows] = True
            left = left - torch.bincount(groups[open_rows], minlength=len(quotas))
            self.constraints = replace(free, fixed=chosen)
            for _ in range(_ROUND if bool(left.any()) else 0):
                weights = self._mirror(weights, 1.0)
        self.constraints = free
        return chosen

    def evaluate(self, weights: Tensor) -> Weighted:
        """Value, gradient and gap at ``weights``, with converged potentials."""
        weights = self._floored(weights)
        term = Term((0, 1), (1.0, -0.5), offset=-self.target[0] / 2)
        found = solve(
            Reweighted(self._operator, weights), self.epsilon, self.solver, initial=[self._cross, self._own],
            terms=[term],
        )  # fmt: skip
        self._cross, self._own = found.potentials(0), found.potentials(1)
        gradient = self._cross.f - self._own.f
        gap = float(weights @ gradient - self.constraints.lowest(gradient) @ gradient)
        dual, primal = (
            [*values.tolist(), target] for values, target in zip((found.dual, found.primal), self.target, strict=True)
        )
        bounds = combine(_DEBIASED, dual, primal)
        return Weighted(
            weights, gradient, bounds.value, gap, bounds.error + rounding_of(found, term),
            float(found.marginal_error.max()), bool(found.converged.all()),
        )  # fmt: skip

    def _mirror(self, weights: Tensor, rate: float) -> Tensor:
        """A few Sinkhorn passes, then one step of ``rate / eps`` along the gradient they give."""
        operator = Reweighted(self._operator, weights)
        eps = self.epsilon
        (f, g), h = self._cross, self._own.f
        for part in range(_PASSES):
            both = torch.stack([operator.pack_rows(f, 0), operator.pack_rows(h, 1)])
            other = torch.stack([operator.pack_columns(g, 0), operator.pack_columns(h, 1)])
            r, c = operator.marginals(both, other, eps)
            if part % 2:
                f = f + eps * torch.log(weights / operator.unpack_rows(r[0], 0))
            else:
                g = g + eps * torch.log(self.cost.clouds[1].weights / operator.unpack_columns(c[0], 0))
            h = h + eps / 2 * torch.log(weights / operator.unpack_rows(r[1], 1))
        self.start(f, g, h)
        gradient = f - h
        moved = weights * torch.exp(-rate / eps * (gradient - gradient.min()))
        return self._floored(self.constraints.project(moved))

    def _floored(self, weights: Tensor) -> Tensor:
        weights = torch.maximum(weights, _FLOOR * self.constraints.caps)
        return weights / weights.sum()
