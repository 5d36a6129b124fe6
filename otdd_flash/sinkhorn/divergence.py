"""The Sinkhorn divergence of two weighted clouds, with its certificate.

OT_eps(a, b) = min_P <P, C> + eps KL(P | a b^T)
S_eps(a, b)  = OT_eps(a, b) - OT_eps(a, a)/2 - OT_eps(b, b)/2          (Feydy et al. 2019, eq. 3)

Unbalanced (``rho_x``, ``rho_y`` in the solver's options), the marginals are penalised instead of prescribed, masses may
differ, and ``S_eps`` gains ``eps/2 (m(a) - m(b))^2`` (Sejourne et al. 2019, definition 5). Each cloud keeps its own
penalty in its self problem: ``S_eps >= 0`` always, but ``S_eps(a, a) = 0`` only for ``rho_x = rho_y``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otdd_flash.checks import (
    check_flag,
    check_number,
    check_tensor,
    check_type,
    shown,
)
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import not_converged
from otdd_flash.ops import Backend, Execution, OperatorInfo, PlanOperator, Precision, Problem
from otdd_flash.ops.execution import DEFAULT_EXECUTION
from otdd_flash.sinkhorn.absent import of_both
from otdd_flash.sinkhorn.plan import TransportPlan
from otdd_flash.sinkhorn.solver import DEFAULT_OPTIONS, Progress, Solution, SolverOptions, solve
from otdd_flash.sinkhorn.terms import Term, total
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import Potentials

_HARD = 1e6  # times the largest cost: a stronger penalty moves the value by less than 1e-6 of it


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class Divergence:
    """A divergence (or plain entropic value) between two clouds of a cost.

    Args:
        value: the debiased divergence, or ``OT_eps`` where ``debiased`` is False; made of dual values.
        primal: the same combination of primal values of feasible plans.
        gap: duality gap: ``sum (primal - dual)`` over the problems with the sizes of their factors, the width of the
            interval that holds the optimal value.
        rounding: what the precision of the costs can change of ``value``.
        error: stated absolute error of ``value``: the distance to the farther end of that interval, plus ``rounding``.
        marginal_error: the largest L1 marginal error (both sides) among the problems, as a fraction of the mass.
        iterations: the most passes any problem took at the target epsilon.
        converged: every marginal error is within the tolerance, and the gaps are within
            :attr:`~otdd_flash.sinkhorn.SolverOptions.accuracy`.
        epsilon: in units of the cost.
        debiased: whether self terms were subtracted.
        potentials: ``f (n,), g (m,)`` of the cross problem; at points of weight zero their c-transforms.
        self_potentials: ``(n,), (m,)`` of the self problems where ``debiased``.
        cost: clouds and ground cost.
        info: backend, precision and memory mode used.
        certificates: dual, primal, marginal error, iterations, convergence and mass of the plan of each problem.
        rho: strengths of the penalties on the marginals of both clouds, in units of the cost; ``None`` where they are
            prescribed.
        operator: what the problems were solved with, where it was to be kept.
    """

    value: float
    primal: float
    gap: float
    rounding: float
    error: float
    marginal_error: float
    iterations: int
    converged: bool
    epsilon: float
    debiased: bool
    potentials: Potentials
    self_potentials: tuple[Tensor, Tensor] | None
    cost: DotProductCost = field(repr=False)
    info: OperatorInfo = field(repr=False)
    certificates: tuple[dict, ...] = field(repr=False)
    rho: tuple[float | None, float | None] = (None, None)
    operator: PlanOperator | None = field(default=None, repr=False)

    @property
    def identical(self) -> bool:
        """Whether both clouds were the same, so that the debiased value is zero to the last bit."""
        return self.debiased and len(self.certificates) == 1

    @property
    def status(self) -> Status:
        """Convergence, for :func:`report_convergence`."""
        return Status(self.converged, self.marginal_error, self.error, self.iterations)

    @property
    def plan(self) -> TransportPlan:
        """The cross problem's plan, applied by streaming."""
        backend: Backend = "triton" if self.info.backend == "triton" else "torch"
        precision: Precision = self.info.precision  # type: ignore[assignment]
        return TransportPlan(self.cost, (0, 1), self.potentials, self.epsilon, backend, precision)


@plain_torch
def divergence(
    cost: DotProductCost,
    epsilon: float,
    *,
    debiased: bool = True,
    part: bool = False,
    options: SolverOptions = DEFAULT_OPTIONS,
    execution: Execution = DEFAULT_EXECUTION,
    initial: list[Potentials] | None = None,
    progress: Progress | None = None,
    keep_operator: bool = False,
) -> Divergence:
    """Solve the two-cloud problem of ``cost`` and its self terms in one batch.

    Identical clouds (``x`` against itself) are one cloud: the value is then zero to the last bit.

    Args:
        cost: exactly two clouds.
        epsilon: in units of the cost.
        debiased: subtract the self terms.
        part: the value will be part of another; see :class:`~otdd_flash.sinkhorn.terms.Term`.
        options: tolerances and method.
        execution: backend, precision, memory mode.
        initial: potentials of the cross and the self problems to start from.
        progress: called with (stage, passes, worst marginal error).
        keep_operator: keep the packed clouds (and stored costs) in the result, for derivatives.
    """
    if len(cost.clouds) != 2:
        raise ValueError(f"a divergence needs a cost over two clouds, got {len(cost.clouds)}")
    options = without_weightless_penalties(cost, [(0, 1)], options)
    check_masses(cost, options)
    if options.rho_x == options.rho_y and same_cloud(cost):
        cross: Problem = (0, 0)
        problems, term = [cross], Term((0,), (0.0 if debiased else 1.0,), part=part)
    else:
        problems = [(0, 1), (0, 0), (1, 1)] if debiased else [(0, 1)]
        term = Term.of(0, range(1, len(problems)), part=part)
    operator = execution.operator(cost, problems, epsilon=epsilon, tol=options.tol)
    solution = solve(operator, epsilon, options, terms=[term], initial=initial, progress=progress)
    found = summarise(cost, solution, term, debiased=debiased)
    return replace(found, operator=operator) if keep_operator else found


@plain_torch
def sinkhorn_divergence(
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    debiased: bool = True,
    options: SolverOptions = DEFAULT_OPTIONS,
    execution: Execution = DEFAULT_EXECUTION,
) -> Divergence:
    """Debiased Sinkhorn divergence between two clouds for the squared Euclidean cost (no 1/2).

    Args:
        x: ``(n, d)`` points.
        y: ``(m, d)`` points.
        epsilon: in units of the squared distance.
        a: ``(n,)`` weights, default uniform; normalised to sum to one, except in an unbalanced problem (``rho_x`` or
            ``rho_y`` in ``options``), where their sum is the mass of the cloud.
        b: ``(m,)`` weights.
        debiased: subtract the self terms.
        options: tolerances and method.
        execution: backend, precision, memory mode.

    Returns:
        The divergence with certificate; a :class:`~otdd_flash.errors.NotConvergedWarning` is given where it is not met.

    Raises:
        ValueError: shapes or weights that do not fit.
    """
    epsilon = check_solve(epsilon, debiased, options, execution)
    normalise = options.balanced
    clouds = [make_cloud(*side, normalise=normalise) for side in ((x, a, "x"), (y, b, "y"))]
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x has {x.shape[1]} features and y {y.shape[1]}: embed or project them to one width")
    result = divergence(DotProductCost.build(clouds), epsilon, debiased=debiased, options=options, execution=execution)
    report_convergence(result.status, options, strict=False)
    return result


class Status(NamedTuple):
    """Whether a result is converged, and what says so; part of every certificate."""

    converged: bool
    marginal_error: float
    error: float
    iterations: int


def report_convergence(found: Status, options: SolverOptions, *, strict: bool) -> None:
    """Warn of a result that is not converged, or raise.

    Args:
        found: nothing is said where it is converged.
        options: tolerance and limit, for the message.
        strict: raise instead of warn.

    Raises:
        NotConvergedError: under ``strict``.
    """
    if found.converged:
        return
    message = (
        f"not converged after {found.iterations} iterations: {unmet(found.marginal_error, found.error, options)}; "
        f"raise max_iterations (now {options.max_iterations}) or epsilon, loosen tol, or use precision='fp64'"
    )
    not_converged(message, strict=strict)


def check_solve(epsilon: Any, debiased: Any, options: Any, execution: Any) -> float:
    """The epsilon as a plain float; refuses wrong values of the arguments that all divergences share.

    Raises:
        TypeError: a wrong type.
        ValueError: an epsilon that is not positive and finite.
    """
    check_flag("debiased", debiased)
    check_type("options", options, SolverOptions, "give SolverOptions(tol=...)")
    check_type("execution", execution, Execution, "give Execution(backend=...)")
    return check_number("epsilon", epsilon, high=1e300)


def unmet(marginal_error: float, error: float, options: SolverOptions) -> str:
    """What a result that is not converged lacks, in words."""
    if marginal_error <= options.tol:
        return (
            f"the marginal error {marginal_error:.2e} is within tol={options.tol:.2e}, but the value is only known to "
            f"{error:.2e}, which is more than {options.accuracy:.0e} of it, of epsilon or of 0.01 of the mean cost"
        )
    return f"the marginal error {marginal_error:.2e} is above tol={options.tol:.2e}"


def summarise(cost: DotProductCost, solution: Solution, term: Term, *, debiased: bool) -> Divergence:
    """The divergence of two clouds from the problems of a solved batch that it is made of.

    Args:
        cost: the two clouds alone.
        solution: the batch.
        term: the cross problem first and, where they were solved, both self problems.
        debiased: self terms were subtracted.
    """
    problems = list(term.problems)
    names = ("cross", "source self", "target self")
    parts = [solution.solved(p) for p in problems]
    found = total(parts, term=replace(term, problems=tuple(range(len(parts)))))
    mass_term = solution.epsilon / 2 * _mass_difference(cost) ** 2 if debiased else 0.0
    cross = solution.potentials(problems[0])
    rho = solution.options.rho_x, solution.options.rho_y
    if len(set(solution.operator.problems[problems[0]])) == 1:
        cross = of_both(cost, cross, solution.epsilon, rho)
    selves: tuple[Tensor, Tensor] | None = None
    if debiased:
        selves = (
            (cross.f, cross.g)
            if len(problems) == 1
            else (solution.potentials(problems[1]).f, solution.potentials(problems[2]).f)
        )
    return Divergence(
        **{**found._asdict(), "value": found.value + mass_term, "primal": found.primal + mass_term},
        epsilon=solution.epsilon, debiased=debiased, potentials=cross, self_potentials=selves, cost=cost,
        info=solution.operator.info, rho=rho,
        certificates=tuple(
            {"problem": name, **part.certificate()} for name, part in zip(names, parts, strict=False)
        ),
    )  # fmt: skip


def rounding_of(solution: Solution, term: Term) -> float:
    """What the precision of a solve can change of a value."""
    return sum(abs(factor) * solution.rounding(p) for p, factor in zip(term.problems, term.factors, strict=True))


def same_cloud(cost: DotProductCost) -> bool:
    """Whether both clouds hold the same points and weights, and labels that the table cannot tell apart.

    Points of weight zero are left aside.
    """
    x, y = cost.supported.clouds
    if x.points.shape != y.points.shape or not torch.equal(x.points, y.points) or not torch.equal(x.weights, y.weights):
        return False
    if cost.table is None or x.labels is None or y.labels is None:
        return True
    (ours, i), (theirs, j) = (torch.unique(cloud.labels, return_inverse=True) for cloud in (x, y))
    if not torch.equal(i, j):
        return False
    within, across, other = (cost.table[r][:, c] for r, c in ((ours, ours), (ours, theirs), (theirs, theirs)))
    return torch.equal(within, across) and torch.equal(within, other)


def _mass_difference(cost: DotProductCost) -> float:
    x, y = cost.clouds
    return float(x.weights.sum() - y.weights.sum())


def without_weightless_penalties(
    cost: DotProductCost, problems: Sequence[Problem], options: SolverOptions
) -> SolverOptions:
    """Penalties so strong that only rounding tells them from a hard constraint become one, where masses agree."""
    if options.balanced:
        return options
    masses = [float(cloud.weights.sum()) for cloud in cost.clouds]
    if any(abs(masses[i] - masses[j]) > 1e-9 * masses[i] for i, j in problems):
        return options
    largest = max(cost.bound(i, j) for i, j in problems)
    limit = _HARD * max(largest, torch.finfo(torch.float64).tiny)
    hard = {name: None for name in ("rho_x", "rho_y") if (getattr(options, name) or 0.0) > limit}
    return replace(options, **hard)  # type: ignore[arg-type]


def check_masses(cost: DotProductCost, options: SolverOptions) -> None:
    """Refuse two hard constraints that no plan can meet."""
    if not options.balanced:
        return
    masses = [float(cloud.weights.sum()) for cloud in cost.clouds]
    if abs(masses[0] - masses[1]) > 1e-6 * max(masses):
        raise ValueError(
            f"balanced transport needs equal masses, got {masses[0]:g} and {masses[1]:g}: normalise the weights, or "
            "make the problem unbalanced (rho_x, rho_y; reach in dataset_distance)"
        )


def make_cloud(points: Tensor, weights: Tensor | None, name: str, *, normalise: bool) -> PointCloud:
    """Checked points and weights as a cloud.

    Raises:
        ValueError: shapes or weights that do not fit, points that are not finite; ``name`` says whose.
    """
    check_tensor(name, points)
    points = points.detach()  # otdd_flash.sinkhorn.autograd has the differentiable divergence
    if points.dim() != 2 or points.shape[0] == 0:
        raise ValueError(f"{name} must have shape (n, d) with n >= 1, got {tuple(points.shape)}")
    points = points if points.dtype in (torch.float32, torch.float64) else points.to(torch.float32)
    if not bool(torch.isfinite(points).all()):
        bad = int((~torch.isfinite(points)).any(1).nonzero()[0])
        raise ValueError(f"{name} holds NaN or infinity, first in row {bad}")
    n = points.shape[0]
    if weights is None:
        return PointCloud(points, torch.full((n,), 1.0 / n, dtype=torch.float64, device=points.device))
    if isinstance(weights, Tensor):
        check_tensor(f"weights of {name}", weights)
    try:
        weights = torch.as_tensor(weights, dtype=torch.float64, device=points.device).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"weights of {name} must be a tensor of {n} numbers, got {shown(weights)}") from error
    total = float(weights.sum())
    if weights.shape != (n,):
        raise ValueError(f"weights of {name} must have shape ({n},), got {tuple(weights.shape)}")
    if not (bool((weights >= 0).all()) and 0 < total < math.inf):
        raise ValueError(f"weights of {name} must be non-negative and finite with a positive sum, got sum {total}")
    return PointCloud(points, weights / total if normalise else weights)
