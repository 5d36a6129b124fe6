"""Value and gradients of a batch of Sinkhorn losses in GeomLoss's convention: along its schedule, or converged.

The cost is ``|x - y|^2 / 2``. Gradients are those of the transport problem at its optimal potentials (envelope
theorem): every plan is that of the last step, with the potential which the step gave on the side of the gradient and
the one it started from on the other, as GeomLoss has it. Points of weight zero get the potential of that step.

With a reach the value is ``OT(a, b)`` of :mod:`otdd_flash.sinkhorn.penalty`. GeomLoss's own is larger by
``eps ((m_a + m_b)/2 - m_a m_b)`` where nothing is debiased, ``m_a`` and ``m_b`` the masses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import Execution, Memory, PlanOperator, Precision
from otdd_flash.ops.blocked import FLOAT32_RANGE
from otdd_flash.ops.dense import DenseProblems, dense_problems, resolved
from otdd_flash.sinkhorn.absent import filled
from otdd_flash.sinkhorn.averaged import AveragedPotentials, averaged_sinkhorn, averaged_steps, full_step
from otdd_flash.sinkhorn.divergence import Status, report_convergence
from otdd_flash.sinkhorn.solver import SolverOptions, solve
from otdd_flash.sinkhorn.terms import Term, combine
from otdd_flash.torch_mode import plain_torch

_PULL_RANGE = 32 * FLOAT32_RANGE  # of costs over epsilon


@dataclass(frozen=True)
class LossSettings:
    """What one evaluation needs to know besides the measures.

    ``unbalanced`` says that a reach was given, ``rho`` is its square; ``None`` where it is none or too large to matter.
    ``largest`` is a bound of all costs, and ``positive`` says that no weight is zero.
    """

    epsilon: float
    unbalanced: bool
    rho: float | None
    debias: bool
    schedule: tuple[float, ...]
    tol: float | None
    max_iterations: int
    memory: Memory
    precision: Precision
    largest: float
    positive: bool


@dataclass(frozen=True, eq=False)
class Measures:
    """A batch of pairs: centred points ``x (B, n, d)``, ``y (B, m, d)``; float64 weights ``a (B, n)``, ``b (B, m)``."""

    x: Tensor
    a: Tensor
    y: Tensor
    b: Tensor


class Evaluation(NamedTuple):
    """Values ``(B,)`` float64, potentials of the cross and, where debiased, the self problems, and stored costs."""

    values: Tensor
    dual: list[AveragedPotentials]
    dense: DenseProblems | None = None


class SinkhornLoss(torch.autograd.Function):
    """Values ``(B,)`` float64 with first-order gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, y: Tensor, b: Tensor, settings: LossSettings) -> Tensor:
        """The values; keeps the potentials."""
        measures = Measures(x, a, y, b)
        found = evaluate(measures, settings)
        ctx.settings, ctx.dense = settings, found.dense
        ctx.save_for_backward(x, a, y, b, *(t for side in found.dual for t in side))
        return found.values

    @staticmethod
    @plain_torch
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients in the dtypes of the inputs."""
        x, a, y, b, *saved = ctx.saved_tensors
        measures, settings = Measures(x, a, y, b), ctx.settings
        dual = [AveragedPotentials(*saved[k : k + 4]) for k in range(0, len(saved), 4)]
        wanted = ctx.needs_input_grad
        points: list[Tensor | None] = [None, None]
        if wanted[0] or wanted[2]:
            points = _point_gradients(measures, dual, settings, (wanted[0], wanted[2]), ctx.dense)
        weights = _weight_gradients(measures, dual, settings) if wanted[1] or wanted[3] else [None, None]
        scale = grad.to(torch.float64)
        gradients = [
            (part * scale.view(-1, *[1] * (part.dim() - 1))).to(like.dtype) if wish and part is not None else None
            for wish, part, like in zip(
                wanted, (points[0], weights[0], points[1], weights[1]), (x, a, y, b), strict=False
            )
        ]
        return (*gradients, None)


def evaluate(measures: Measures, settings: LossSettings) -> Evaluation:
    """Values, potentials, and where everything was small enough to be stored what the gradient is taken from."""
    dense = None if settings.tol is not None else _dense(measures, settings)
    if dense is not None:
        return dense
    operator, batch = _operator(measures, settings), len(measures.x)
    if settings.tol is None:
        dual = _split(operator, averaged_sinkhorn(operator, settings.schedule, settings.rho), settings)
        return Evaluation(_schedule_value(measures, dual, settings), dual)
    options = SolverOptions(
        tol=settings.tol, max_iterations=settings.max_iterations, rho_x=settings.rho, rho_y=settings.rho
    )
    terms = [Term.of(k, [batch + k, 2 * batch + k] if settings.debias else ()) for k in range(batch)]
    found = solve(operator, settings.epsilon, options, terms=terms)
    values = found.dual.tolist(), found.primal.tolist()
    errors = [combine(term, *values).error for term in terms]
    status = Status(
        bool(found.converged.all()), float(found.marginal_error.max()), max(errors), int(found.iterations.max())
    )
    report_convergence(status, options, strict=False)
    parts = found.dual.to(measures.x.device).view(-1, batch)
    value = parts[0] - parts[1:].sum(0) / 2 + _mass_terms(measures, settings)
    last = full_step(operator, found.f, found.g, settings.epsilon, settings.rho)
    return Evaluation(value, _split(operator, AveragedPotentials(*last, found.f, found.g), settings))


def _dense(measures: Measures, settings: LossSettings) -> Evaluation | None:
    """The schedule's number from stored costs; ``None`` where they are not wanted, too many, or too far out."""
    if settings.memory == "streamed" or settings.precision != "auto":
        return None
    x, a, y, b = (t.detach() for t in (measures.x, measures.a, measures.y, measures.b))
    dense = dense_problems(
        x, a, y, b, epsilon=settings.epsilon, debiased=settings.debias, largest=settings.largest,
        positive=settings.positive,
    )  # fmt: skip
    pair = None if dense is None else dense.solve(averaged_steps(settings.schedule, settings.rho))
    if pair is None:
        return None
    before, after = pair
    x_side, y_side = slice(0, x.shape[1]), slice(x.shape[1], None)
    sides = [(0, x_side, y_side)] + ([(1, x_side, x_side), (1, y_side, y_side)] if settings.debias else [])
    dual = [AveragedPotentials(after[:, k, f], after[:, k, g], before[:, k, f], before[:, k, g]) for k, f, g in sides]
    return Evaluation(_schedule_value(measures, dual, settings), dual, dense)


def _operator(measures: Measures, settings: LossSettings) -> PlanOperator:
    """All cross problems of the batch, then where debiased all self problems of the first side and of the second."""
    batch = len(measures.x)
    sides = ((measures.x, measures.a), (measures.y, measures.b))
    clouds = [PointCloud(*cloud) for side in sides for cloud in zip(*side, strict=True)]
    problems = [(k, batch + k) for k in range(batch)]
    if settings.debias:
        problems += [(k, k) for k in range(2 * batch)]
    cost = DotProductCost.build(clouds, feature_weight=0.5)
    how = Execution(precision=settings.precision, memory=settings.memory)
    return how.operator(cost, problems, epsilon=settings.epsilon, tol=settings.tol)


def _split(operator: PlanOperator, found: AveragedPotentials, settings: LossSettings) -> list[AveragedPotentials]:
    """Potentials in the order of the points, ``(B, n)`` and ``(B, m)``: cross, then the selves (twice the same)."""
    each = [_of_problem(operator, found, p, settings) for p in range(len(operator.problems))]
    batch = len(each) // 3 if settings.debias else len(each)
    groups = [each[start : start + batch] for start in range(0, len(each), batch)]
    return [AveragedPotentials(*(torch.stack(side) for side in zip(*group, strict=True))) for group in groups]


def _of_problem(
    operator: PlanOperator, found: AveragedPotentials, p: int, settings: LossSettings
) -> AveragedPotentials:
    """The potentials of one problem; at points of weight zero what the last step would have given."""
    i, j = operator.problems[p]
    f, f_before = (operator.unpack_rows(side[p], p) for side in (found.f, found.f_before))
    g, g_before = (f, f_before) if i == j else (operator.unpack_columns(t[p], p) for t in (found.g, found.g_before))
    f = filled(operator.cost, (i, j), f, g_before, settings.epsilon, settings.rho)
    g = f if i == j else filled(operator.cost, (j, i), g, f_before, settings.epsilon, settings.rho)
    return AveragedPotentials(f, g, f_before, g_before)


def combined(dual: list[AveragedPotentials], settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The potentials that GeomLoss returns: those of the cross problem minus those of the self problems."""
    cross = dual[0]
    return (cross.f - dual[1].f, cross.g - dual[2].f) if settings.debias else (cross.f, cross.g)


def _schedule_value(measures: Measures, dual: list[AveragedPotentials], settings: LossSettings) -> Tensor:
    """The value of potentials: ``<a, f - f_aa> + <b, g - g_bb>``, with a reach bent by ``e^{-f/rho}``.

    Source: Feydy et al. (2019), equation 8; Sejourne et al. (2019), proposition 12.
    """
    epsilon, rho = settings.epsilon, settings.rho
    if rho is None:
        f, g = combined(dual, settings)
        total = (measures.a * f).sum(1) + (measures.b * g).sum(1)
    else:
        selves = (dual[1].f, dual[2].f) if settings.debias else (0.0 * dual[0].f, 0.0 * dual[0].g)
        sides = (measures.a, dual[0].f, selves[0]), (measures.b, dual[0].g, selves[1])
        bent = [(weights * _bent_difference(own, cross, rho)).sum(1) for weights, cross, own in sides]
        total = (rho + epsilon / 2) * (bent[0] + bent[1])
    return total - _surplus(measures, settings) if settings.unbalanced and not settings.debias else total


def _bent_difference(own: Tensor, cross: Tensor, rho: float) -> Tensor:
    """``e^{-own/rho} - e^{-cross/rho}``, with all digits where both are near one, and a number where both are huge."""
    difference = cross - own
    return -(-torch.minimum(own, cross) / rho).exp() * torch.expm1(-difference.abs() / rho) * difference.sign()


def _surplus(measures: Measures, settings: LossSettings) -> Tensor:
    """``<a, f> + <b, g>``, or what a reach makes of it, less ``OT(a, b)``: zero where all masses are one."""
    m, k = measures.a.sum(1), measures.b.sum(1)
    return settings.epsilon * ((m + k) / 2 - m * k)


def _mass_terms(measures: Measures, settings: LossSettings) -> Tensor:
    """What the value holds beyond ``OT(a, b)``, less half the self terms: zero where all masses are one."""
    if settings.debias:
        return settings.epsilon / 2 * (measures.a.sum(1) - measures.b.sum(1)).square()
    return torch.zeros_like(measures.a[:, 0]) if settings.unbalanced else _surplus(measures, settings)


def _point_gradients(
    measures: Measures, dual: list[AveragedPotentials], settings: LossSettings, wanted: tuple[bool, bool],
    dense: DenseProblems | None,
) -> list[Tensor | None]:  # fmt: skip
    """``sum_j P_ij (x_i - y_j) - sum_k P^aa_ik (x_i - x_k)`` and the same for ``y``, float64."""
    if dense is not None:
        n, both = measures.x.shape[1], dense.pull(settings.epsilon).to(torch.float64)
        return [both[:, :n], both[:, n:]]
    out: list[Tensor | None] = [torch.zeros_like(t, dtype=torch.float64) if w else None
                                for t, w in zip((measures.x, measures.y), wanted, strict=True)]  # fmt: skip
    for k in range(len(measures.x)):
        x, y = PointCloud(measures.x[k], measures.a[k]), PointCloud(measures.y[k], measures.b[k])
        # own and other are separate clouds even where they are one: the two potentials of its plan differ
        terms = [(0, x, y, dual[0].f[k], dual[0].g_before[k], 1.0), (1, y, x, dual[0].g[k], dual[0].f_before[k], 1.0)]
        if settings.debias:
            terms += [(0, x, x, dual[1].f[k], dual[1].f_before[k], -1.0),
                      (1, y, y, dual[2].f[k], dual[2].f_before[k], -1.0)]  # fmt: skip
        for side, own, other, f, g, sign in terms:
            target = out[side]
            if target is not None:
                target[k] += sign * _pull(own, other, f, g, settings)
    return out


def _pull(own: PointCloud, other: PointCloud, f: Tensor, g: Tensor, settings: LossSettings) -> Tensor:
    """``(n, d)``: ``sum_j P_ij (x_i - y_j)``, of a plan whose rows are scaled to the sums that the last step made."""
    cost, precision = DotProductCost.build([own, other], feature_weight=0.5), _pull_precision(own.points, settings)
    operator = Execution(precision=precision, memory="streamed").operator(cost, [(0, 1)], epsilon=settings.epsilon)
    product = operator.apply_plan(0, f, g, settings.epsilon, v=cost.centred(1, torch.float64))
    assert product.pv is not None
    assert product.r is not None
    mass = own.weights if settings.rho is None else own.weights * (-f / settings.rho).exp()
    means = product.pv / product.r.clamp_min(torch.finfo(torch.float64).tiny)[:, None]  # no mass, no sum
    return mass[:, None] * (cost.centred(0, torch.float64) - means)


def _pull_precision(points: Tensor, settings: LossSettings) -> Precision:
    """Float32 for gradients of float32 points on a CPU, also where potentials ask for float64.

    It takes half the time. The rounding of a row's exponent is scaled away, the others average out: errors up to
    2.4e-4 of the largest entry were seen, below those of GeomLoss in float32.
    """
    single = points.dtype == torch.float32 and points.device.type == "cpu"
    single = single and settings.precision == "auto" and settings.tol is None
    within = settings.largest <= _PULL_RANGE * settings.epsilon and resolved(settings.largest, settings.epsilon)
    return "fp32" if single and within else settings.precision


def _weight_gradients(measures: Measures, dual: list[AveragedPotentials], settings: LossSettings) -> list[Tensor]:
    """Derivatives of the value by ``a`` and ``b``, ``(B, n)`` and ``(B, m)``.

    The potentials of :func:`combined`; with a reach ``(rho + eps) (e^{-f_aa/rho} - e^{-f/rho})``, or without self terms
    ``(rho + eps) (1 - e^{-f/rho}) - eps (1 - m_b)``.
    """
    epsilon, rho = settings.epsilon, settings.rho
    if rho is None:
        out = list(combined(dual, settings))
    else:
        selves = (dual[1].f, dual[2].f) if settings.debias else (0.0 * dual[0].f, 0.0 * dual[0].g)
        cross = dual[0].f, dual[0].g
        out = [(rho + epsilon) * _bent_difference(own, side, rho) for own, side in zip(selves, cross, strict=True)]
    if settings.debias or not settings.unbalanced:
        return out
    others = measures.b.sum(1, keepdim=True), measures.a.sum(1, keepdim=True)
    return [gradient - epsilon * (1 - mass) for gradient, mass in zip(out, others, strict=True)]
