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
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution

_FLOOR = 1e-8  # smallest weight in units of its cap: keeps every potential defined
_PASSES = 2  # Sinkhorn passes a mirror step: one update of each side
_ROUND = 10  # mirror steps between looks at the converged value
_EVALUATION_PASSES = 300
_NEGLIGIBLE = 1e-3  # of epsilon: a value that counts as zero


@dataclass(frozen=True, eq=False)
class Constraints:
    """The feasible weights: caps and the mass of every group.

    Args:
        caps: ``(n,)`` float64 ``u``.
        groups: ``(n,)`` int64 group of each sample.
        masses: ``(number of groups,)`` float64 ``q``, summing to one.
    """

    caps: Tensor
    groups: Tensor
    masses: Tensor

    def subset(self, index: Tensor) -> Constraints:
        """The same for some of the samples."""
        return Constraints(self.caps[index], self.groups[index], self.masses)

    def project(self, weights: Tensor) -> Tensor:
        """The feasible weights nearest in relative entropy: ``min(u, lambda_group w)``, exactly, by sorting."""
        out = torch.empty_like(weights)
        for group, mass in enumerate(self.masses.tolist()):
            inside = (self.groups == group).nonzero()[:, 0]
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
        out = torch.zeros_like(self.caps)
        for group, mass in enumerate(self.masses.tolist()):
            inside = (self.groups == group).nonzero()[:, 0]
            order = inside[torch.argsort(gradient[inside], stable=True)]
            before = self.caps[order].cumsum(0) - self.caps[order]
            out[order] = torch.minimum((mass - before).clamp_min(0.0), self.caps[order])
        return out


@dataclass(frozen=True, eq=False)
class Weighted:
    """Weights on the pool with what is known of them.

    Args:
        weights: ``(n,)`` float64.
        gradient: ``(n,)`` float64 of the divergence at these weights, up to a constant.
        value: the divergence.
        gap: no feasible weights are better by more.
        steps: mirror steps taken.
    """

    weights: Tensor
    gradient: Tensor
    value: float
    gap: float
    steps: int = 0


class WeightProblem:
    """The divergence of a reweighted pool to a fixed target.

    Args:
        cost: clouds (pool, target).
        epsilon: in units of the cost.
        target_value: ``OT_eps(b, b)``.
        constraints: feasible weights.
        tol: L1 marginal error at which a value counts as converged.
        execution: backend, precision, memory mode.
    """

    def __init__(
        self,
        cost: DotProductCost,
        epsilon: float,
        target_value: float,
        constraints: Constraints,
        *,
        tol: float,
        execution: Execution,
    ) -> None:
        self.cost, self.epsilon, self.target_value = cost, epsilon, target_value
        self.constraints, self.tol, self.execution = constraints, tol, execution
        self._cross, self._own = (
            make_operator(
                cost, [problem], epsilon=epsilon, backend=execution.backend, precision=execution.precision,
                memory=execution.memory, memory_budget=execution.memory_budget, deterministic=execution.deterministic,
            )
            for problem in ((0, 1), (0, 0))
        )  # fmt: skip
        self._a, self._b = cost.clouds[0].weights, cost.clouds[1].weights
        self._f, self._h = torch.zeros_like(self._a), torch.zeros_like(self._a)
        self._g = torch.zeros_like(self._b)
        self._rows_next = False

    def start(self, f: Tensor, g: Tensor, h: Tensor) -> None:
        """Potentials to begin with: cross ``f, g`` and self ``h``."""
        self._f, self._g, self._h = f.to(self._a), g.to(self._b), h.to(self._a)

    def subset(self, index: Tensor) -> WeightProblem:
        """The same problem on some samples of the pool, from the potentials reached."""
        pool, target = self.cost.clouds
        labels = None if pool.labels is None else pool.labels[index]
        weights = pool.weights[index] / pool.weights[index].sum()
        clouds = (type(pool)(pool.points[index], weights, labels), target)
        cost = DotProductCost(clouds, self.cost.feature_weight, self.cost.table, self.cost.center)
        problem = WeightProblem(
            cost, self.epsilon, self.target_value, self.constraints.subset(index), tol=self.tol,
            execution=self.execution,
        )  # fmt: skip
        problem.start(self._f[index], self._g, self._h[index])
        return problem

    def minimise(self, steps: int, relative_gap: float) -> Weighted:
        """Mirror descent from the pool's own weights, until the gap is below ``relative_gap`` of the value.

        Rounds of a few steps are judged by their converged value: one that did not lower it is undone, and the step
        halved.
        """
        best = self.evaluate(self.constraints.project(self._a))
        step, rate = 0, 1.0
        while step < steps and best.gap > relative_gap * max(abs(best.value), _NEGLIGIBLE * self.epsilon):
            weights = best.weights
            taken = min(_ROUND, steps - step)
            for _ in range(taken):
                weights = self._mirror(weights, rate)
            step += taken
            found = self.evaluate(weights)
            if found.value < best.value:
                best = found
            else:
                rate /= 2
        return replace(best, steps=step)

    def evaluate(self, weights: Tensor) -> Weighted:
        """Value, gradient and gap at ``weights``, with converged potentials."""
        weights = self._floored(weights)
        for passes in range(_EVALUATION_PASSES):
            error = self._pass(weights)
            if passes > 0 and error <= self.tol:
                break
        gradient = self._f - self._h
        gap = float(weights @ gradient - self.constraints.lowest(gradient) @ gradient)
        return Weighted(weights, gradient, self._value(weights), gap)

    def _mirror(self, weights: Tensor, rate: float) -> Tensor:
        """A few Sinkhorn passes, then one step of ``rate / eps`` along the gradient they give."""
        for _ in range(_PASSES):
            self._pass(weights)
        gradient = self._f - self._h
        moved = weights * torch.exp(-rate / self.epsilon * (gradient - gradient.min()))
        return self._floored(self.constraints.project(moved))

    def _floored(self, weights: Tensor) -> Tensor:
        weights = torch.maximum(weights, _FLOOR * self.constraints.caps)
        return weights / weights.sum()

    def _value(self, weights: Tensor) -> float:
        """Dual value; the mass of either plan is one to the tolerance."""
        return float(weights @ self._f + self._b @ self._g - weights @ self._h) - self.target_value / 2

    def _pass(self, weights: Tensor) -> float:
        """One pass over both problems: one side of the cross potentials, half a step of the self potential."""
        eps = self.epsilon
        shift = eps * torch.log(weights / self._a)
        f = self._cross.pack_rows(self._f + shift, 0)[None]
        g = self._cross.pack_columns(self._g, 0)[None]
        r, c = self._cross.marginals(f, g, eps)
        h = self._own.pack_rows(self._h + shift, 0)[None]
        s = self._own.unpack_rows(self._own.marginals(h, h, eps)[0][0], 0)
        row, column = self._cross.unpack_rows(r[0], 0), self._cross.unpack_columns(c[0], 0)
        error = (row - weights).abs().sum() + (column - self._b).abs().sum() + (s - weights).abs().sum()
        if self._rows_next:
            self._f = self._f + eps * torch.log(weights / row)
        else:
            self._g = self._g + eps * torch.log(self._b / column)
        self._rows_next = not self._rows_next
        self._h = self._h + eps / 2 * torch.log(weights / s)
        return float(error)
