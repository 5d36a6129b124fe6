"""Divergences as objectives of :func:`otdd_flash.flows.minimise`: value, gradient, Hessian products of one solve."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.checks import check_callable, check_tensor
from otdd_flash.flows.driver import Evaluation, Objective
from otdd_flash.sinkhorn import Divergence, Execution, SolverOptions
from otdd_flash.sinkhorn.autograd import DivergenceInputs, LabelTerm
from otdd_flash.sinkhorn.divergence import check_solve, same_cloud
from otdd_flash.sinkhorn.hessian import SinkhornHessian
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import Potentials

_TIGHT = SolverOptions(tol=1e-9, max_iterations=5000)


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class SinkhornEvaluation:
    """A divergence solved at one cloud ``x``, with its derivatives in ``x``."""

    found: Divergence
    gradient: Tensor  # (n, d)

    @property
    def value(self) -> float:
        """The divergence."""
        return self.found.value

    @cached_property
    def hessian(self) -> SinkhornHessian:
        """The Hessian in ``x``, prepared when first needed."""
        return SinkhornHessian(self.found)

    def hvp(self, v: Tensor) -> Tensor:
        """``H v`` for ``v (n, d)``."""
        return (self.hessian @ v).to(v.dtype)


@plain_torch_methods
@dataclass(eq=False)
class SinkhornObjective:
    """``x -> S(x, y)``: the divergence to a fixed cloud, as a function of the points of the other.

    Each solve starts from the potentials of the last one.

    Args:
        y: ``(m, d)`` target points.
        epsilon: in units of the cost.
        a: ``(n,)`` weights of the moving points, default uniform.
        b: ``(m,)`` weights of the target.
        labels: label part of the cost.
        debiased: subtract the self terms.
        options: tolerances; second derivatives want a tight one.
        execution: backend, precision, memory mode.
    """

    y: Tensor
    epsilon: float
    a: Tensor | None = None
    b: Tensor | None = None
    labels: LabelTerm | None = None
    debiased: bool = True
    options: SolverOptions = _TIGHT
    execution: Execution = field(default_factory=Execution)
    solves: int = 0
    _last: list[Potentials] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.epsilon = check_solve(self.epsilon, self.debiased, self.options, self.execution)
        check_tensor("y", self.y, shapes=[(None, None)])

    @torch.enable_grad()
    def __call__(self, x: Tensor) -> SinkhornEvaluation:
        """Solve at ``x (n, d)``."""
        check_tensor("x", x, shapes=[(None, self.y.shape[1])])
        points = x.detach().clone().requires_grad_()
        inputs = DivergenceInputs.prepare(
            points, self.y, a=self.a, b=self.b, labels=self.labels, normalise=self.options.balanced
        )
        found = inputs.solve(
            self.epsilon, debiased=self.debiased, options=self.options, execution=self.execution,
            initial=None if same_cloud(inputs.cost()) else self._last,
        )  # fmt: skip
        self.solves += 1
        if not found.identical:
            selves = [Potentials(f, f) for f in found.self_potentials or ()]
            self._last = [found.potentials, *selves]
        (gradient,) = torch.autograd.grad(inputs.attach(found), points)
        return SinkhornEvaluation(found, gradient)


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class LinearPullback:
    """``w -> objective(design @ w)``: gradient ``D^T g``, Hessian products ``D^T H (D v)``.

    Args:
        objective: of the predictions ``(n, q)``.
        design: ``(n, p)`` matrix ``D``; a point is ``(p, q)``.
    """

    objective: Objective
    design: Tensor

    def __post_init__(self) -> None:
        check_callable("objective", self.objective)
        check_tensor("design", self.design, shapes=[(None, None)])
        if not self.design.is_floating_point():
            raise TypeError(f"design must be a tensor of floats, got {self.design.dtype}")

    def __call__(self, w: Tensor) -> Evaluation:
        """Evaluate at ``w (p, q)``."""
        check_tensor("w", w, shapes=[(self.design.shape[1], None)])
        return _PulledBack(self.objective(self.design @ w), self.design)


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class _PulledBack:
    at: Evaluation
    design: Tensor

    @property
    def value(self) -> float:
        """The objective."""
        return self.at.value

    @cached_property
    def gradient(self) -> Tensor:
        """By the chain rule."""
        return self.design.T @ self.at.gradient

    def hvp(self, v: Tensor) -> Tensor:
        """By the chain rule; the map is linear, so there is no second term."""
        return self.design.T @ self.at.hvp(self.design @ v)
