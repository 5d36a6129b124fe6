"""Averaged Sinkhorn steps along a fixed schedule: the loop of GeomLoss, for its number and not for the optimum.

Both potentials move at once, half way to their softmins, once per epsilon of the schedule; a last full step at the
target epsilon ends it (Feydy 2020, "Geometric data analysis, beyond convolutions", algorithm 3.5). What comes out is
the number of the schedule: how far it is from converged depends on ``scaling`` and is not known to the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.ops.base import PlanOperator
from otdd_flash.ops.dense import Step
from otdd_flash.sinkhorn.penalty import Penalty

_SMALLEST = 1e-290


class AveragedPotentials(NamedTuple):
    """Potentials ``(B, N)``, ``(B, M)`` in the operator's layout, after the last full step and before it."""

    f: Tensor
    g: Tensor
    f_before: Tensor
    g_before: Tensor


def averaged_schedule(diameter: float, blur: float, scaling: float) -> list[float]:
    """Epsilons ``diameter^2``, then from there down to ``blur^2`` in factors ``scaling^2``, then ``blur^2``.

    The largest comes twice, as in GeomLoss for ``p = 2``.

    >>> averaged_schedule(4.0, 1.0, 0.5)
    [16.0, 16.0, 4.0, 1.0]
    """
    if diameter == 0.0:
        return [blur**2]
    start, stop, step = 2 * math.log(diameter), 2 * math.log(blur), 2 * math.log(scaling)
    count = max(0, math.ceil((stop - start) / step))
    return [diameter**2, *(math.exp(start + k * step) for k in range(count)), blur**2]


def averaged_steps(schedule: Sequence[float], rho: float | None = None) -> list[Step]:
    """The steps of a schedule: a full one from zero, half ones along it, a full one at its end.

    Args:
        schedule: epsilons in the order of the steps, the last one is the target.
        rho: strength of the KL penalty on all marginals, in units of the cost; ``None`` for hard constraints.
    """
    epsilons = [(schedule[0], 0.0), *((epsilon, 0.5) for epsilon in schedule), (schedule[-1], 0.0)]
    return [Step(epsilon, 1.0 if rho is None else 1.0 / (1.0 + epsilon / rho), kept) for epsilon, kept in epsilons]


def averaged_sinkhorn(
    operator: PlanOperator, schedule: Sequence[float], rho: float | None = None
) -> AveragedPotentials:
    """Run the schedule on every problem of ``operator``.

    Args:
        operator: costs and weights.
        schedule: epsilons in the order of the steps, the last one is the target.
        rho: strength of the KL penalty on all marginals, in units of the cost; ``None`` for hard constraints.
    """
    f = f_before = torch.zeros_like(operator.a)
    g = g_before = torch.zeros_like(operator.b)
    for epsilon, _, kept in averaged_steps(schedule, rho):
        f_before, g_before = f, g
        f, g = full_step(operator, f, g, epsilon, rho)
        if kept:
            f, g = kept * f_before + (1 - kept) * f, kept * g_before + (1 - kept) * g
    return AveragedPotentials(f, g, f_before, g_before)


def full_step(operator: PlanOperator, f: Tensor, g: Tensor, epsilon: float, rho: float | None) -> tuple[Tensor, Tensor]:
    """Damped softmins of both potentials at once, from one pass over the scores.

    ``softmin_i(g) = f_i + eps log(a_i / r_i)`` with the marginal ``r`` of the plan of ``f, g``. Where ``f`` is too far
    off for sums to be numbers, the safe softmin takes over.
    """
    r, c = operator.marginals(f, g, epsilon)
    present = operator.a > 0, operator.b > 0
    # a subnormal sum has lost its digits, and the weight over it may be infinite
    sound = [((s >= _SMALLEST) & s.isfinite() | ~p).all() for s, p in zip((r, c), present, strict=True)]
    if not bool(torch.stack(sound).all()):
        return _safe_step(operator, f, g, epsilon, rho)
    f_new = torch.where(present[0], f + epsilon * (operator.a / r).log(), 0.0)
    g_new = torch.where(present[1], g + epsilon * (operator.b / c).log(), 0.0)
    return _damped(operator, f_new, g_new, epsilon, rho)


def _safe_step(
    operator: PlanOperator, f: Tensor, g: Tensor, epsilon: float, rho: float | None
) -> tuple[Tensor, Tensor]:
    """The same with a running maximum, at twice the cost."""
    f_new = operator.softmin(g, epsilon, side="rows")
    return _damped(operator, f_new, operator.softmin(f, epsilon, side="columns"), epsilon, rho)


def _damped(operator: PlanOperator, f: Tensor, g: Tensor, epsilon: float, rho: float | None) -> tuple[Tensor, Tensor]:
    if rho is None:
        return f, g
    damping = Penalty([rho] * len(operator.problems), f.device).damping(epsilon)
    return damping * f, damping * g
