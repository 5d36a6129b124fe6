"""What a solved problem says at points of weight zero, which took no part in it: the c-transform.

    f(x) = -eps log sum_j b_j exp((g_j - C(x, y_j)) / eps)

is the potential of a problem at any point ``x``, and the derivative of the value by the mass there; in an unbalanced
problem it is damped by ``1 / (1 + eps/rho)``, as every half step is. Plan and marginals are zero there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops import Execution, PlanOperator, Problem
from otdd_flash.ops.support import spread
from otdd_flash.sinkhorn.penalty import Penalty
from otdd_flash.types import Potentials


def everywhere(
    cost: DotProductCost, problem: Problem, potentials: Potentials, epsilon: float,
    rho: tuple[float | None, float | None] = (None, None),
) -> Potentials:  # fmt: skip
    """Potentials at all points from those at the points with weight.

    Args:
        cost: clouds and ground cost.
        problem: the pair of clouds.
        potentials: ``f (n,), g (m,)`` of a solution, one and the same for a cloud against itself; what stands at points
            of weight zero is of no influence.
        epsilon: in units of the cost.
        rho: strengths of the penalties on the marginals, in units of the cost.
    """
    (i, j), (f, g) = problem, potentials
    rows = filled(cost, (i, j), f, g, epsilon, rho[0])
    return Potentials(rows, rows if i == j else filled(cost, (j, i), g, f, epsilon, rho[1]))


def filled(
    cost: DotProductCost, problem: Problem, own: Tensor, other: Tensor, epsilon: float, rho: float | None
) -> Tensor:
    """``own (n,)``, with the c-transforms of ``other (m,)`` at the points of weight zero of the problem's first cloud.

    Args:
        cost: clouds and ground cost.
        problem: the cloud of ``own`` and that of ``other``.
        own: potential to complete.
        other: potential of the other side.
        epsilon: in units of the cost.
        rho: strength of the penalty on the first cloud's marginal.
    """
    i, j = problem
    if cost.supports[i] is None:
        return own
    rows = (cost.clouds[i].weights == 0).nonzero()[:, 0]
    transformed = c_transform(rows_against(cost, (i, j), rows, epsilon), other, epsilon)
    damping = Penalty([rho], own.device).damping(epsilon)[0]
    return own.index_copy(0, rows, (damping * transformed).to(own.dtype))


def rows_against(cost: DotProductCost, problem: Problem, rows: Tensor, epsilon: float) -> PlanOperator:
    """An operator of some points of the first cloud, each of mass one, against the second cloud.

    What is asked of it does not depend on the masses, and the points may lie far from all others: it is computed in
    torch, in the precision that their costs need.
    """
    i, j = problem
    points = cost.clouds[i].take(rows)
    clouds = replace(points, weights=torch.ones_like(points.weights)), cost.clouds[j]
    how = Execution(backend="torch", memory="streamed")
    return how.operator(replace(cost, clouds=clouds), [(0, 1)], epsilon=epsilon)


def c_transform(operator: PlanOperator, g: Tensor, epsilon: float) -> Tensor:
    """``(n,)`` softmins of ``g (m,)`` over the columns of an operator's first problem."""
    return operator.unpack_rows(operator.softmin(operator.pack_columns(g, 0)[None], epsilon, side="rows")[0], 0)


def of_both(
    cost: DotProductCost, potentials: Potentials, epsilon: float, rho: tuple[float | None, float | None]
) -> Potentials:
    """Potentials of two clouds that are one but for points of weight zero, from the self potentials of the first."""
    (of_x, of_y), f = cost.supports, potentials.f
    if of_x is None and of_y is None:
        return potentials
    shared = f if of_x is None else f[of_x]
    g = shared if of_y is None else spread(shared, of_y, cost.clouds[1].n)
    return everywhere(cost, (0, 1), Potentials(f, g), epsilon, rho)
