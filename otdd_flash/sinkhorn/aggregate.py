"""Two-level steps: the masses between groups of points, which single steps move by a little each, found at once.

Where groups of points lie many epsilons apart, the plan hardly couples them, and a Sinkhorn step hardly moves mass from
one to another. What is missing is one number a group: summed over groups, the plan is a small matrix ``P_kl``, and

    f_i <- f_i + eps u_k,   g_j <- g_j + eps v_l      with   diag(e^u) P_kl diag(e^v)   of the groups' own masses

is the Newton-Sinkhorn step of that small problem, exact in one go. Labels need no groups of their own: groups are
formed under the ground cost, in which distant classes lie apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost, squared_norms
from otdd_flash.ops.base import PlanOperator
from otdd_flash.types import Potentials

_COLDEST = 8.0  # decades of the small plan that are taken at once: entries below e^-8 of the largest wait
_NEWTON_STEPS = 60
_AWAY = 1e4  # epsilons by which a potential is lowered to leave its point out
_RIDGE = 1e-13  # of the scaled Hessian, which is singular along (1, -1)


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of one problem: ``rows (n,), columns (m,)`` ids below ``count``."""

    rows: Tensor
    columns: Tensor
    count: int


def ground_groups(cost: DotProductCost, i: int, j: int, count: int) -> Groups:
    """At most ``count`` groups of the points of problem ``(i, j)``, as far apart as they come.

    Farthest-point traversal under the ground cost (Gonzalez 1985): of groups that are separated, each gets a center of
    its own as long as there are no more than ``count``.
    """
    points = torch.cat([cost.centred(k, cost.clouds[k].points.dtype) for k in dict.fromkeys((i, j))])
    labels = None if cost.table is None else torch.cat([cost.labels_of(k) for k in dict.fromkeys((i, j))])
    weights = torch.cat([cost.clouds[k].weights for k in dict.fromkeys((i, j))])
    norms = squared_norms(points)
    nearest = torch.where(weights > 0, norms, -1.0)  # the first center lies farthest from the middle
    group = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for k in range(min(count, len(points))):
        at = nearest.argmax()[None]
        center = points.index_select(0, at)[0]
        distance = cost.feature_weight * (norms + norms.index_select(0, at) - 2 * (points @ center))
        if labels is not None and cost.table is not None:
            distance = distance + cost.table.index_select(0, labels.index_select(0, at))[0][labels]
        closer = (distance < nearest) if k else torch.ones_like(weights, dtype=torch.bool)
        group = torch.where(closer, k, group)
        nearest = torch.where(weights > 0, torch.where(closer, distance, nearest), -1.0)
    n = cost.clouds[i].n
    return Groups(group[:n], group if i == j else group[n:], min(count, len(points)))


def aggregated_step(operator: PlanOperator, problem: int, potentials: Potentials, epsilon: float, groups: Groups,
                    goal: float) -> Potentials:  # fmt: skip
    """Potentials whose plan has the groups' masses.

    Args:
        operator: costs and weights.
        problem: position of the problem.
        potentials: near enough to the solution that the plan's entries are numbers.
        epsilon: in units of the cost.
        groups: of its points.
        goal: L1 error of the groups' masses that will do.
    """
    f, g = potentials
    symmetric = operator.problems[problem][0] == operator.problems[problem][1]
    masses = [
        torch.zeros(groups.count, dtype=torch.float64, device=f.device).index_add_(0, ids, weights)
        for ids, weights in (
            (groups.rows, operator.unpack_rows(operator.a[problem], problem)),
            (groups.columns, operator.unpack_columns(operator.b[problem], problem)),
        )
    ]
    small = aggregated_plan(operator, problem, potentials, epsilon, groups)
    u, v = scale_to(small.cpu(), masses[0].cpu(), masses[1].cpu(), symmetric=symmetric, goal=goal)
    return Potentials(f + epsilon * u.to(f)[groups.rows], g + epsilon * v.to(f)[groups.columns])


def aggregated_plan(
    operator: PlanOperator, problem: int, potentials: Potentials, epsilon: float, groups: Groups
) -> Tensor:
    """``(k, l)`` float64 masses of the plan between groups.

    A product with the plan on a GPU carries its entries in float16: what has yet to grow by many orders of magnitude is
    lost. There each group's columns are summed in a pass of their own, in float32.
    """
    f, g = potentials
    small = torch.zeros(groups.count, groups.count, dtype=torch.float64, device=f.device)
    if operator.info.backend != "triton":
        one_hot = torch.nn.functional.one_hot(groups.columns, groups.count).to(torch.float64)
        product = operator.apply_plan(problem, f, g, epsilon, v=one_hot).pv
        assert product is not None
        return small.index_add_(0, groups.rows, product)
    active = torch.zeros(len(operator.problems), dtype=torch.bool)
    active[problem] = True
    rows, columns = torch.zeros_like(operator.a), torch.zeros_like(operator.b)
    rows[problem] = operator.pack_rows(f, problem)
    for group in range(groups.count):
        alone = torch.where(groups.columns == group, g, g - _AWAY * epsilon)
        columns[problem] = operator.pack_columns(alone, problem)
        sums = operator.unpack_rows(operator.marginals(rows, columns, epsilon, active)[0][problem], problem)
        small[:, group].index_add_(0, groups.rows, sums)
    return small


def scale_to(plan: Tensor, a: Tensor, b: Tensor, *, symmetric: bool, goal: float) -> tuple[Tensor, Tensor]:
    """``u, v`` for which ``diag(e^u) plan diag(e^v)`` has the marginals ``a, b``, by Newton on the dual.

    Entries may differ by hundreds of orders of magnitude, and mass may have to go through the smallest. The plan is
    therefore taken to the power ``1/t`` for falling temperatures ``t``, as in annealing.

    Args:
        plan: ``(k, l)`` float64, non-negative.
        a: ``(k,)`` masses of the rows.
        b: ``(l,)`` masses of the columns.
        symmetric: ``plan`` and marginals are those of a self problem, and ``u = v``.
        goal: L1 error to stop at.
    """
    log_plan = plan.log()
    known = log_plan.isfinite()
    u, v = torch.zeros_like(a), torch.zeros_like(b)
    if not bool(known.any()):
        return u, v
    spread = float(log_plan[known].max() - log_plan[known].min())
    temperature = max(1.0, spread / _COLDEST)
    while True:
        u, v = _newton(log_plan / temperature, a, b, (u, v), symmetric=symmetric, goal=goal)
        if temperature == 1.0:
            return u, v
        colder = max(1.0, temperature / 2)
        u, v = u * (temperature / colder), v * (temperature / colder)
        temperature = colder


def _newton(
    log_plan: Tensor, a: Tensor, b: Tensor, start: tuple[Tensor, Tensor], *, symmetric: bool, goal: float
) -> tuple[Tensor, Tensor]:
    """Damped Newton ascent of ``<a, u> + <b, v> - sum exp(u + log_plan + v)``."""
    u, v = start
    present = (a > 0) & log_plan.isfinite().any(1), (b > 0) & log_plan.isfinite().any(0)
    best, kept = math.inf, (u, v)
    for step in range(_NEWTON_STEPS):
        if step == 0 or not symmetric:  # half steps first: every row and column has mass, and the Hessian is scaled
            u = torch.where(present[0], a.log() - torch.logsumexp(log_plan + v, 1), 0.0)
            v = u if symmetric else torch.where(present[1], b.log() - torch.logsumexp(log_plan + u[:, None], 0), 0.0)
        plan = (log_plan + u[:, None] + v[None, :]).exp()
        r, c = plan.sum(1), plan.sum(0)
        error = float((r - a)[present[0]].abs().sum() + (c - b)[present[1]].abs().sum())
        if error < best:
            best, kept = error, (u, v)
        if not math.isfinite(error) or error <= goal:
            break
        du, dv = _direction(plan, (r, c), ((a - r) * present[0], (b - c) * present[1]), symmetric=symmetric)
        longest = float(torch.maximum(du.abs().max(), dv.abs().max()))
        if not math.isfinite(longest) or longest == 0:
            break
        damping = math.log1p(2 * longest) / (2 * longest)  # of a self-concordant exponential: always an ascent
        u, v = u + damping * du, v + damping * dv
    return kept


def _direction(
    plan: Tensor, sums: tuple[Tensor, Tensor], gradient: tuple[Tensor, Tensor], *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Newton direction, in variables scaled by the roots of the sums."""
    roots = [torch.where(s > 0, s, 1.0).sqrt() for s in sums]
    coupling = plan / (roots[0][:, None] * roots[1][None, :])
    if symmetric:
        matrix = torch.eye(len(coupling), dtype=coupling.dtype) * (1 + _RIDGE) + coupling
        du = torch.linalg.solve(matrix, gradient[0] / roots[0]) / roots[0]
        return du, du
    k = len(roots[0])
    matrix = torch.eye(k + len(roots[1]), dtype=coupling.dtype) * (1 + _RIDGE)
    matrix[:k, k:], matrix[k:, :k] = coupling, coupling.T
    right = torch.cat([part / root for part, root in zip(gradient, roots, strict=True)])
    found = torch.linalg.solve(matrix, right) / torch.cat(roots)
    return found[:k], found[k:]
