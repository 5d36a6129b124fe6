"""How far the value of a transport problem can be from its dual value: a feasible plan gives an upper bound.

The dual value of any potentials lies below the optimum. The marginal error does not bound what is missing above it: a
little mass that is left in the wrong one of two distant groups costs as much as the groups are apart. So the plan of
the potentials is rounded to one that meets its constraints (Altschuler et al. 2017, arXiv 1705.09634, algorithm 2), and
the primal value of that plan lies above the optimum:

    P'  = diag(x) P diag(y),                    x = min(1, a/r), y = min(1, b/c)   (r, c the marginals of P)
    P'' = P' + e_a e_b^T / s,                   e_a = a - P' 1, e_b = b - P'^T 1, s = |e_a|_1 = |e_b|_1

``P'`` is the plan of the potentials ``f + eps log x, g + eps log y``, so its marginals take one more pass, and

    <P', C> + eps KL = <P' 1, f + eps log x> + <P'^T 1, g + eps log y> + eps (m_a m_b - |P'|_1).

The cost of the rank-one rest needs moments of the points alone. Its entropy is bounded by

    sum (p + e) log((p + e)/q) <= sum p log(p/q) + sum e log(e/q) + m h(s/m),   h(t) = -t log t - (1 - t) log(1 - t),

since ``(p + e) h(e / (p + e))`` sums to at most ``m h(s/m)`` (Jensen). Where only one marginal is prescribed its side
is scaled by ``a/r`` and nothing is left over; where none is, every plan is feasible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.ops.base import PlanOperator
from otdd_flash.sinkhorn.penalty import Penalty

Sides = tuple[Tensor, Tensor]


def feasible_values(
    operator: PlanOperator, epsilon: float, potentials: Sides, marginals: Sides, penalties: tuple[Penalty, Penalty],
    active: Tensor,
) -> Tensor:  # fmt: skip
    """``(B,)`` primal values of rounded plans, upper bounds of the optimal values, on the host; one pass for all.

    Args:
        operator: costs and weights of ``B`` problems.
        epsilon: in units of the cost.
        potentials: ``f (B, N), g (B, M)``; ``g`` of a symmetric problem is its ``f``.
        marginals: ``r, c`` of their plans.
        penalties: on the marginals of rows and columns.
        active: ``(B,)`` bool on the host; the others' entries are infinite.
    """
    balanced = penalties[0].hard and penalties[1].hard
    kernels = balanced and operator.info.backend == "triton" and operator.a.device.type == "cuda"
    round_off = rounded_by_kernels if kernels else _rounded
    left, inner, mass, weights, rests, spread = round_off(operator, epsilon, potentials, marginals, penalties, active)
    chosen = active.nonzero()[:, 0].tolist()
    costs = inner.new_zeros(len(inner))
    costs[chosen] = _costs_of_rest(operator, chosen, left)
    # one look from the host for all
    inner, mass, a, b, left_a, left_b, spread, costs = torch.stack([inner, mass, *weights, *rests, spread, costs]).cpu()
    s = torch.minimum(left_a, left_b)
    value = inner + epsilon * (a * b - mass) + _entropy_of_rest(s, a, spread, epsilon)
    value = value + torch.where(s > 0, costs / torch.where(s > 0, s, 1.0), 0.0)
    return torch.where(active & value.isfinite(), value, torch.inf)


class Rounded(NamedTuple):
    """A rounded plan: what it lacks of its marginals, and ``(B,)`` sums."""

    left: Sides  # (B, N), (B, M)
    inner: Tensor  # <r, f> + <c, g> and the penalties
    mass: Tensor  # of the plan before the rest
    weights: Sides  # masses of both sides
    rests: Sides  # masses of what is left
    spread: Tensor  # sum of e log(e / w) over both sides


def _rounded(
    operator: PlanOperator, epsilon: float, potentials: Sides, marginals: Sides, penalties: tuple[Penalty, Penalty],
    active: Tensor,
) -> Rounded:  # fmt: skip
    weights = operator.a, operator.b
    hard = [penalty.inverse == 0 for penalty in penalties]
    both = hard[0] & hard[1]
    moved = [
        potential + epsilon * _log_scale(weight, sums, prescribed, clip=both)
        for potential, weight, sums, prescribed in zip(potentials, weights, marginals, hard, strict=True)
    ]
    r, c = operator.marginals(moved[0], moved[1], epsilon, active)
    sums = [torch.where(hard[k] & ~both, weights[k], marginal) for k, marginal in enumerate((r, c))]
    inner = _added((s * f).sum(1) + p.primal(s, w) for p, s, f, w in zip(penalties, sums, moved, weights, strict=True))
    x, y = (torch.where(both, w - s, 0.0).clamp_min_(0.0) for w, s in zip(weights, sums, strict=True))
    spread = _added(torch.xlogy(e, torch.where(w > 0, e / w, 1.0)).sum(1) for e, w in zip((x, y), weights, strict=True))
    masses = weights[0].sum(1), weights[1].sum(1)
    return Rounded((x, y), inner, r.sum(1), masses, (x.sum(1), y.sum(1)), spread)


def _added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of the rows' and the columns' part."""
    rows, columns = parts
    return rows + columns


def _log_scale(weight: Tensor, sums: Tensor, prescribed: Tensor, *, clip: Tensor) -> Tensor:
    """``log x`` of one side: ``log(a/r)``, at most zero where both are prescribed; zero where this one is free."""
    ratio = (weight / sums).log_().nan_to_num_(0.0, 0.0, 0.0)
    return torch.where(prescribed, torch.where(clip, ratio.clamp_max(0.0), ratio), 0.0)


def rounded_by_kernels(
    operator: PlanOperator, epsilon: float, potentials: Sides, marginals: Sides, penalties: tuple[Penalty, Penalty],
    active: Tensor,
) -> Rounded:  # fmt: skip
    """The same for balanced problems of the Triton backend, in a few launches."""
    from otdd_flash.kernels.rounding import clipped, rests

    weights = operator.a, operator.b
    moved = clipped(potentials, weights, marginals, epsilon)
    left, sums = rests(moved, weights, operator.marginals(moved[0], moved[1], epsilon, active))
    inner, mass, a, b, left_a, left_b, spread = sums.T
    return Rounded(left, inner, mass, (a, b), (left_a, left_b), spread)


def _entropy_of_rest(s: Tensor, total: Tensor, spread: Tensor, epsilon: float) -> Tensor:
    """Bound of what the rank-one rest adds to ``eps KL(P'' | a b^T)``."""
    rest = (total - s).clamp_min(0.0)
    mixing = torch.xlogy(s, total) - torch.xlogy(s, s) - torch.xlogy(rest, rest / total)
    return epsilon * torch.where(s > 0, spread - torch.xlogy(s, s) + mixing - s, 0.0)


def _costs_of_rest(operator: PlanOperator, problems: list[int], left: Sides) -> Tensor:
    """``<C, e_a e_b^T>`` of some problems."""
    rests = [(operator.unpack_rows(left[0][p], p), operator.unpack_columns(left[1][p], p)) for p in problems]
    pairs = [operator.problems[p] for p in problems]
    return operator.cost.totals([(*pair, *rest) for pair, rest in zip(pairs, rests, strict=True)])
