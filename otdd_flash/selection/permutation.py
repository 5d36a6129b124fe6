"""Sinkhorn divergences of many splits of one pooled sample, all in a few matrix products.

A permutation test needs the same statistic for hundreds of splits (a, b) of the same ``N`` points. The costs do not
change, only the weights, so with ``K = exp(-C / eps)`` one Sinkhorn half step of all splits is one product of ``K (N,
N)`` with the splits' scalings ``(N, B)``:

    u = 1 / K (b v)    v = 1 / K (a u)    f = eps log u, g = eps log v        (cross problem)
    s <- sqrt(s / K (a s))                                                    (self problems)

The scalings are not stabilised, which is why costs are capped at ``600 eps``: a function of the pooled sample alone, so
the test stays exact. A split leaves the product when it is converged: its value does not depend on which others are
solved beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_LARGEST_EXPONENT = 600.0
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class Statistics:
    """Debiased divergences ``(B,)`` of the splits.

    Args:
        values: in units of the cost.
        marginal_error: the worst L1 marginal error of all problems.
        iterations: the most passes of any.
        error: of the first value: its distance to the farther end of an interval that holds the optimal one.
    """

    values: Tensor
    marginal_error: float
    iterations: int
    error: float

    @property
    def value(self) -> float:
        """The first of the values."""
        return float(self.values[0])


class _Solved(NamedTuple):
    """Values ``(B,)`` in units of epsilon, scalings ``(N, B)`` of both sides, worst error, most passes."""

    values: Tensor
    left: Tensor
    right: Tensor
    error: float
    iterations: int


def split_weights(weights: Tensor, n: int, permutations: int, seed: int) -> tuple[Tensor, Tensor]:
    """``(N, 1 + B)`` weights of both sides of every split; the first split is the given one, its first ``n`` points.

    Args:
        weights: ``(N,)`` positive; they stay with their points and are normalised on either side.
        n: points of the first side.
        permutations: ``B`` random splits.
        seed: of the draw.
    """
    total = len(weights)
    generator = torch.Generator().manual_seed(seed)
    side = torch.zeros(total, 1 + permutations, dtype=torch.bool)
    side[:n, 0] = True
    for column in range(1, 1 + permutations):
        side[torch.randperm(total, generator=generator)[:n], column] = True
    side = side.to(weights.device)
    a, b = (weights[:, None] * part for part in (side, ~side))
    return a / a.sum(0), b / b.sum(0)


def split_divergences(
    cost: Tensor, a: Tensor, b: Tensor, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 1000
) -> Statistics:
    """``S_eps(a_k, b_k)`` for every column ``k``.

    Args:
        cost: ``(N, N)`` float64 symmetric cost of the pooled points.
        a: ``(N, B)`` weights of the first sides, columns summing to one.
        b: ``(N, B)`` weights of the second sides.
        epsilon: in units of the cost.
        tol: L1 marginal error at which a problem is converged.
        max_iterations: half steps of either side at most.
    """
    kernel = torch.exp(-(cost / epsilon).clamp_max(_LARGEST_EXPONENT))
    width = max(1, _CHUNK_ELEMENTS // len(cost))
    values, gap, solved = [], 0.0, []
    for k, (left, right) in enumerate(zip(a.split(width, 1), b.split(width, 1), strict=True)):
        cross = _cross(kernel, left, right, tol, max_iterations)
        selves = [_self(kernel, side, tol, max_iterations) for side in (left, right)]
        values.append(epsilon * (cross.values - selves[0].values / 2 - selves[1].values / 2))
        if k == 0:
            above = _excess(kernel, left, right, cross)
            below = _excess(kernel, left, left, selves[0]) / 2 + _excess(kernel, right, right, selves[1]) / 2
            gap = epsilon * max(above, below)
        solved += [cross, *selves]
    error, iterations = max(part.error for part in solved), max(part.iterations for part in solved)
    return Statistics(torch.cat(values), error, iterations, gap)


def _cross(kernel: Tensor, a: Tensor, b: Tensor, tol: float, max_iterations: int) -> _Solved:
    """``OT_eps / eps`` of every column; exact in the second marginal, hence of mass one: a lower bound."""
    u, v = torch.ones_like(a), torch.ones_like(b)
    errors, taken = torch.full_like(a[0], torch.inf), 0
    going = torch.arange(a.shape[1], device=a.device)
    for taken in range(1, max_iterations + 1):  # noqa: B007
        left, right, old = a[:, going], b[:, going], v[:, going]
        u[:, going] = 1.0 / (kernel @ (right * old))
        v[:, going] = 1.0 / (kernel @ (left * u[:, going]))
        errors[going] = (right * (old / v[:, going] - 1.0).abs()).sum(0)
        going = going[errors[going] > tol]
        if not len(going):
            break
    return _Solved((a * u.log()).sum(0) + (b * v.log()).sum(0), u, v, float(errors.max()), taken)


def _self(kernel: Tensor, a: Tensor, tol: float, max_iterations: int) -> _Solved:
    """The same for ``(a, a)``; the dual value with the mass that the plan has."""
    s, rows = torch.ones_like(a), torch.ones_like(a)
    errors, taken = torch.full_like(a[0], torch.inf), 0
    going = torch.arange(a.shape[1], device=a.device)
    for taken in range(1, max_iterations + 1):
        side, scaling = a[:, going], s[:, going]
        rows[:, going] = scaling * (kernel @ (side * scaling))
        errors[going] = 2 * (side * (rows[:, going] - 1.0).abs()).sum(0)
        going = going[errors[going] > tol]
        if not len(going) or taken == max_iterations:
            break
        s[:, going] = s[:, going] / rows[:, going].sqrt()
    values = 2 * (a * s.log()).sum(0) - ((a * rows).sum(0) - 1.0)
    return _Solved(values, s, s, float(errors.max()), taken)


def _excess(kernel: Tensor, a: Tensor, b: Tensor, solved: _Solved) -> float:
    """How far the first column's value can lie below the optimal one, in units of epsilon.

    The plan is rounded to one with both marginals (Altschuler et al. 2017): its primal value is an upper bound.
    """
    rows, columns = a[:, 0] > 0, b[:, 0] > 0
    a, b, kernel = a[rows, 0], b[columns, 0], kernel[rows][:, columns]
    plan = (a * solved.left[rows, 0])[:, None] * kernel * (b * solved.right[columns, 0])
    plan = plan * (a / plan.sum(1)).clamp_max(1.0)[:, None]
    plan = plan * (b / plan.sum(0)).clamp_max(1.0)
    missing = [(side - plan.sum(axis)).clamp_min(0.0) for side, axis in ((a, 1), (b, 0))]
    mass = float(missing[0].sum())
    if mass > 0:
        plan = plan + missing[0][:, None] * missing[1] / mass
    primal = torch.xlogy(plan, plan / (kernel * (a[:, None] * b))).sum()
    return max(0.0, float(primal - solved.values[0]))
