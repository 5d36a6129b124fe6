"""The divergence as a differentiable function of points, weights, label table and feature weight.

Nothing is unrolled: the solver runs on detached data, the gradient is that of the dual at its solution (envelope
theorem), the second derivative comes from the implicit function theorem; see :mod:`otdd_flash.sinkhorn.implicit`. A
third derivative is refused.

Error of the gradient: it is the exact gradient of the problem whose weights are the marginals of the plan found, and
these differ from the weights given by ``marginal_error`` in L1. So it shrinks in proportion to ``tol``, while the
value's own error shrinks with its square.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_number, check_tensor, check_type
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import Execution
from otdd_flash.ops.execution import DEFAULT_EXECUTION
from otdd_flash.sinkhorn.divergence import (
    Divergence,
    check_solve,
    divergence,
    report_convergence,
)
from otdd_flash.sinkhorn.implicit import Derivatives, Fields, Wanted
from otdd_flash.sinkhorn.solver import DEFAULT_OPTIONS, SolverOptions
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import Potentials


@dataclass(frozen=True, eq=False)
class LabelTerm:
    """The label part of a ground cost, ``weight * table[x_labels_i, y_labels_j]``.

    Args:
        table: ``(C, C)`` squared class-to-class distances over the classes of both sides; used as ``(W + W^T)/2``, so
            that its gradient is symmetric.
        x_labels: ``(n,)`` int64 rows of the table.
        y_labels: ``(m,)`` int64 rows of the table.
        weight: factor of the table; a float or a tensor of no dimension.
    """

    table: Tensor
    x_labels: Tensor
    y_labels: Tensor
    weight: float | Tensor = 1.0


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class DifferentiableDivergence:
    """A divergence as a tensor with a graph, and its certificate.

    Args:
        value: float64 tensor of no dimension, differentiable twice.
        certificate: the solved problem.
    """

    value: Tensor
    certificate: Divergence = field(repr=False)

    @property
    def root(self) -> Tensor:
        """``sqrt(max(value, 0))``; where the value is zero within rounding its gradient is 0, not NaN.

        The root has no derivative at zero; the subgradient 0 is the one that leaves a set at its target alone.
        """
        rounding = self.certificate.rounding
        resolved = self.value.detach() > (0.0 if self.certificate.identical else rounding)
        return torch.where(resolved, self.value, 1.0).sqrt() * torch.where(
            resolved, 1.0, self.value.detach().clamp_min(0).sqrt()
        )


@plain_torch
def differentiable_divergence(
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    labels: LabelTerm | None = None,
    feature_weight: float | Tensor = 1.0,
    debiased: bool = True,
    options: SolverOptions = DEFAULT_OPTIONS,
    execution: Execution = DEFAULT_EXECUTION,
) -> DifferentiableDivergence:
    """Sinkhorn divergence for ``w |x_i - y_j|^2 + T[l_i, l'_j]``, differentiable in every tensor that it is given.

    Args:
        x: ``(n, d)`` points.
        y: ``(m, d)`` points.
        epsilon: in units of the cost; a constant.
        a: ``(n,)`` weights, default uniform; used as ``a / sum(a)``, so that the gradient is the potential
            ``f - f_self`` less its mean under ``a``, divided by ``sum(a)``. In an unbalanced problem (``rho_x`` or
            ``rho_y`` in ``options``) their sum is the mass of the cloud, and they are used as they are. A point of
            weight zero is no point; its gradient is that of the mass which would be put there.
        b: ``(m,)`` weights.
        labels: label part of the cost.
        feature_weight: ``w``; a float or a tensor of no dimension.
        debiased: subtract the self terms.
        options: tolerances and method.
        execution: backend, precision, memory mode.

    Returns:
        Value and certificate; not converged is warned of.

    Raises:
        ValueError: shapes or weights that do not fit.

    Source: Feydy et al. (2019), section 3.2, for the gradient.
    """
    epsilon = check_solve(epsilon, debiased, options, execution)
    inputs = DivergenceInputs.prepare(
        x, y, a=a, b=b, labels=labels, feature_weight=feature_weight, normalise=options.balanced
    )
    found = inputs.solve(epsilon, debiased=debiased, options=options, execution=execution)
    report_convergence(found.status, options, strict=False)
    return DifferentiableDivergence(inputs.attach(found), found)


@dataclass(frozen=True, eq=False)
class DivergenceInputs:
    """What a divergence depends on, graph and all: normalised float tensors, ready to be solved and attached.

    Args:
        x: ``(n, d)``.
        y: ``(m, d)``.
        a: ``(n,)`` float64; sum one, or the mass of the cloud in an unbalanced problem.
        b: ``(m,)`` float64, likewise.
        feature_weight: float64 of no dimension.
        table: ``(C, C)`` float64, label weight included, symmetric; ``None`` without labels.
        x_labels: ``(n,)`` rows of the table.
        y_labels: ``(m,)`` rows of the table.
    """

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    feature_weight: Tensor
    table: Tensor | None = None
    x_labels: Tensor | None = None
    y_labels: Tensor | None = None

    @classmethod
    def prepare(
        cls,
        x: Tensor,
        y: Tensor,
        *,
        a: Tensor | None = None,
        b: Tensor | None = None,
        labels: LabelTerm | None = None,
        feature_weight: float | Tensor = 1.0,
        normalise: bool = True,
    ) -> DivergenceInputs:
        """Check, cast and (unless the problem is unbalanced) normalise; see :func:`differentiable_divergence`."""
        x, y = _points(x, "x"), _points(y, "y")
        if x.shape[1] != y.shape[1] or x.device != y.device:
            raise ValueError(
                f"x and y must share width and device, got {tuple(x.shape)} on {x.device} and {tuple(y.shape)} on "
                f"{y.device}"
            )
        scale = _factor("feature_weight", feature_weight, x.device)
        check_type("labels", labels, LabelTerm, "give LabelTerm(table, x_labels, y_labels)", optional=True)
        a, b = (_weights(*side, normalise=normalise) for side in ((a, x, "a"), (b, y, "b")))
        inputs = cls(x, y, a, b, scale)
        if labels is None:
            return inputs
        table = _table(labels, x.device)
        ids = (_ids(labels.x_labels, x, table, "x_labels"), _ids(labels.y_labels, y, table, "y_labels"))
        return replace(inputs, table=table, x_labels=ids[0], y_labels=ids[1])

    def cost(self) -> DotProductCost:
        """The detached cost over the clouds ``x`` and ``y``."""
        clouds = [
            PointCloud(self.x.detach(), self.a.detach(), self.x_labels),
            PointCloud(self.y.detach(), self.b.detach(), self.y_labels),
        ]
        table = None if self.table is None else self.table.detach()
        return DotProductCost.build(clouds, feature_weight=float(self.feature_weight.detach()), table=table)

    def solve(
        self,
        epsilon: float,
        *,
        debiased: bool = True,
        options: SolverOptions = DEFAULT_OPTIONS,
        execution: Execution = DEFAULT_EXECUTION,
        initial: list[Potentials] | None = None,
    ) -> Divergence:
        """Solve at the present values, from ``initial`` potentials where given."""
        return divergence(
            self.cost(), epsilon, debiased=debiased, options=options, execution=execution, initial=initial,
            keep_operator=True,
        )  # fmt: skip

    def attach(self, found: Divergence, *, fixed_target: bool = False) -> Tensor:
        """The value of ``found``, solved from these inputs, as a tensor with a graph.

        Args:
            found: the solved problem.
            fixed_target: the self term of ``y`` is a constant, and so is its part of the table: a pass less.
        """
        derivatives = Derivatives(found, stored=found.info.memory == "cached", fixed_target=fixed_target)
        return _Value.apply(derivatives, self.x, self.y, self.a, self.b, self.table, self.feature_weight)


class _Value(torch.autograd.Function):
    """``found.value`` with the envelope gradient."""

    @staticmethod
    def forward(ctx: Any, derivatives: Derivatives, *inputs: Tensor | None) -> Tensor:
        ctx.derivatives = derivatives
        ctx.save_for_backward(*inputs)
        return torch.tensor(derivatives.found.value, dtype=torch.float64, device=derivatives.found.cost.device)

    @staticmethod
    @plain_torch
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        wanted = Wanted(*ctx.needs_input_grad[1:])
        gradients = _Gradient.apply(ctx.derivatives, wanted, *ctx.saved_tensors)
        return None, *(None if g is None else (upstream * g).to(g.dtype) for g in gradients)


class _Gradient(torch.autograd.Function):
    """The gradients, whose own derivative is the Hessian: symmetric, so that it serves as its transpose."""

    @staticmethod
    def forward(
        ctx: Any, derivatives: Derivatives, wanted: Wanted, *inputs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.derivatives = derivatives
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        gradients = derivatives.gradient(wanted)
        return tuple(
            None if g is None or entry is None else g.to(entry.dtype)
            for g, entry in zip(gradients, inputs, strict=True)
        )

    @staticmethod
    @plain_torch
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = Wanted(*ctx.needs_input_grad[2:])
        return None, None, *_HessianProduct.apply(ctx.derivatives, wanted, *upstream, *ctx.saved_tensors)


class _HessianProduct(torch.autograd.Function):
    """The Hessian times one direction; a node of the graph only to refuse what would otherwise be silently lost."""

    @staticmethod
    def forward(
        ctx: Any, derivatives: Derivatives, wanted: Wanted, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        upstream, inputs = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        direction = Fields(*(None if g is None else g.to(torch.float64)[None] for g in upstream))
        if all(entry is None for entry in direction):
            return (None,) * len(inputs)
        products = derivatives.hessian(direction, wanted)
        return tuple(
            None if h is None or entry is None else h[0].to(entry.dtype)
            for h, entry in zip(products, inputs, strict=True)
        )

    @staticmethod
    @plain_torch
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        raise NotImplementedError("a divergence is differentiable twice: its third derivatives are not available")


def _points(points: Tensor, name: str) -> Tensor:
    """Float32 or float64 points; a cast keeps the graph, so that gradients return in the given dtype."""
    check_tensor(name, points)
    if points.dim() != 2 or points.shape[0] == 0:
        raise ValueError(f"{name} must have shape (n, d) with n >= 1, got {tuple(points.shape)}")
    if not bool(torch.isfinite(points.detach()).all()):
        raise ValueError(f"{name} holds NaN or infinity")
    return points if points.dtype in (torch.float32, torch.float64) else points.to(torch.float32)


def _weights(weights: Tensor | None, points: Tensor, name: str, *, normalise: bool) -> Tensor:
    n = points.shape[0]
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=torch.float64, device=points.device)
    check_tensor(name, weights)
    if weights.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), got {tuple(weights.shape)}")
    weights = weights.to(points.device, torch.float64)
    total = float(weights.detach().sum())
    if not (bool((weights.detach() >= 0).all()) and 0 < total < torch.inf):
        raise ValueError(f"{name} must be non-negative and finite with a positive sum, got sum {total}")
    return weights / weights.sum() if normalise else weights


def _factor(name: str, value: float | Tensor, device: torch.device) -> Tensor:
    """A float64 tensor of no dimension, on the tape of what was given."""
    if isinstance(value, Tensor):
        check_tensor(name, value, shapes=[()])
    check_number(name, float(value.detach()) if isinstance(value, Tensor) else value, closed=True)
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def _table(labels: LabelTerm, device: torch.device) -> Tensor:
    check_tensor("table", labels.table)
    table = labels.table.to(device, torch.float64)
    if table.dim() != 2 or table.shape[0] != table.shape[1] or not bool(torch.isfinite(table.detach()).all()):
        raise ValueError(
            f"table must be a finite (C, C) table over the classes of both sides, got {tuple(table.shape)}"
        )
    return _factor("weight", labels.weight, device) * (table + table.T) / 2


def _ids(ids: Tensor, points: Tensor, table: Tensor, name: str) -> Tensor:
    check_tensor(name, ids)
    if ids.shape != (points.shape[0],) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must be ({points.shape[0]},) integers, got {tuple(ids.shape)} {ids.dtype}")
    if int(ids.min()) < 0 or int(ids.max()) >= table.shape[0]:
        raise ValueError(f"{name} must lie in 0..{table.shape[0] - 1}, the rows of the table, got {int(ids.max())}")
    return ids.to(points.device, torch.int64)
