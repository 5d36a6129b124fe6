"""Sinkhorn divergences of many splits of one pooled sample, all in a few matrix products.

A permutation test needs the same statistic for hundreds of splits (a, b) of the same ``N`` points. The costs do not
change, only the weights, so with ``K = exp(-C / eps)`` one Sinkhorn half step of all splits is one product of ``K (N,
N)`` with the splits' scalings ``(N, B)``:

    u = 1 / K (b v)    v = 1 / K (a u)    f = eps log u, g = eps log v        (cross problem)
    s <- sqrt(s / K (a s))                                                    (self problems)

The scalings are not stabilised, which is why costs are capped at ``600 eps``: a function of the pooled sample alone, so
the test stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST_EXPONENT = 600.0
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class Statistics:
    """Debiased divergences ``(B,)`` of the splits, with the worst marginal error and the passes it took."""

    values: Tensor
    marginal_error: float
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


def drawn_weights(weights: Tensor, n: int, m: int, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """``(N, draws)`` weights of two disjoint random samples of ``n`` and ``m`` of the points, anew in every column."""
    total = len(weights)
    generator = torch.Generator().manual_seed(seed)
    sides = torch.zeros(2, total, draws, dtype=torch.bool)
    for column in range(draws):
        order = torch.randperm(total, generator=generator)
        sides[0, order[:n], column] = True
        sides[1, order[n : n + m], column] = True
    a, b = (weights[:, None] * side for side in sides.to(weights.device))
    return a / a.sum(0), b / b.sum(0)


def split_divergences(
    cost: Tensor, a: Tensor, b: Tensor, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 200
) -> Statistics:
    """``S_eps(a_k, b_k)`` for every column ``k``.

    Args:
        cost: ``(N, N)`` float64 symmetric cost of the pooled points.
        a: ``(N, B)`` weights of the first sides, columns summing to one.
        b: ``(N, B)`` weights of the second sides.
        epsilon: in units of the cost.
        tol: L1 marginal error at which the worst column counts as converged.
        max_iterations: half steps of either side at most.
    """
    kernel = torch.exp(-(cost / epsilon).clamp_max(_LARGEST_EXPONENT))
    width = max(1, _CHUNK_ELEMENTS // len(cost))
    values, error, iterations = [], 0.0, 0
    for left, right in zip(a.split(width, 1), b.split(width, 1), strict=True):
        cross = _cross(kernel, left, right, tol, max_iterations)
        selves = [_self(kernel, side, tol, max_iterations) for side in (left, right)]
        parts = (cross, *selves)
        values.append(epsilon * (cross[0] - selves[0][0] / 2 - selves[1][0] / 2))
        error = max(error, *(part[1] for part in parts))
        iterations = max(iterations, *(part[2] for part in parts))
    return Statistics(torch.cat(values), error, iterations)


def _cross(kernel: Tensor, a: Tensor, b: Tensor, tol: float, max_iterations: int) -> tuple[Tensor, float, int]:
    """``OT_eps / eps`` of every column, error and passes; exact in the second marginal, hence of mass one."""
    v = torch.ones_like(b)
    error, taken = float("inf"), 0
    for taken in range(1, max_iterations + 1):  # noqa: B007
        u = 1.0 / (kernel @ (b * v))
        new = 1.0 / (kernel @ (a * u))
        error = float((b * (v / new - 1.0).abs()).sum(0).max())
        v = new
        if error <= tol:
            break
    return (a * u.log()).sum(0) + (b * v.log()).sum(0), error, taken


def _self(kernel: Tensor, a: Tensor, tol: float, max_iterations: int) -> tuple[Tensor, float, int]:
    """The same for ``(a, a)``; the dual value with the mass that the plan has."""
    s = torch.ones_like(a)
    error, taken, row = float("inf"), 0, torch.ones_like(a)
    for taken in range(1, max_iterations + 1):  # noqa: B007
        row = s * (kernel @ (a * s))
        error = 2 * float((a * (row - 1.0).abs()).sum(0).max())
        if error <= tol:
            break
        s = s / row.sqrt()
    return 2 * (a * s.log()).sum(0) - ((a * row).sum(0) - 1.0), error, taken
