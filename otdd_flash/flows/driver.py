"""The loop that drives a minimisation, and what passes through it.

A method is three functions: ``init`` evaluates the start, ``step`` makes one move, ``terminate`` says whether to stop.
An objective is any callable that evaluates a point; its Hessian is only known by its products, for a divergence those
of :class:`~otdd_flash.sinkhorn.hessian.SinkhornHessian`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from otdd_flash.checks import check_callable, check_count, check_tensor, shown
from otdd_flash.torch_mode import plain_torch, plain_torch_methods


class Evaluation(Protocol):
    """An objective at one point."""

    @property
    def value(self) -> float:
        """The objective."""

    @property
    def gradient(self) -> Tensor:
        """Of the point's shape."""

    def hvp(self, v: Tensor) -> Tensor:
        """Hessian times ``v``, of the point's shape."""


Objective = Callable[[Tensor], Evaluation]


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class State:
    """Where a minimisation stands.

    Args:
        w: the point.
        at: the objective there.
        scale: damping or trust radius, whichever the method adapts.
        step: moves made.
        event: what the last move was.
        curvature: smallest Hessian eigenvalue when last looked at.
        done: the method's own verdict that nothing is left to gain.
        phase: of a method with several.
        moments: Adam's first and second moments and its count.
        best: lowest value so far, and the steps since it was last lowered by a noticeable part.
    """

    w: Tensor
    at: Evaluation
    scale: float
    step: int = 0
    event: str = "start"
    curvature: float = math.nan
    done: bool = False
    phase: str = ""
    moments: tuple[Tensor, Tensor, int] | None = None
    best: tuple[float, int] = (math.inf, 0)

    @property
    def gradient_norm(self) -> float:
        """Euclidean norm of the gradient."""
        return float(self.at.gradient.norm())


class Method(Protocol):
    """One way to minimise."""

    def init(self, objective: Objective, w: Tensor) -> State:
        """The state at the start."""

    def step(self, objective: Objective, state: State) -> State:
        """One move."""

    def terminate(self, state: State) -> bool:
        """Whether to stop."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a minimisation ended.

    Args:
        w: last point.
        value: objective there.
        gradient_norm: there.
        steps: moves made.
        converged: the method ended it, not the limit of steps.
        curvature: smallest Hessian eigenvalue when last looked at.
        history: step, value, gradient norm, event and curvature after every move; the start first.
    """

    w: Tensor
    value: float
    gradient_norm: float
    steps: int
    converged: bool
    curvature: float
    history: tuple[dict, ...] = field(repr=False)

    def count(self, event: str) -> int:
        """How often ``event`` happened."""
        return sum(record["event"] == event for record in self.history)


@plain_torch
def minimise(
    objective: Objective,
    w: Tensor,
    method: Method,
    *,
    max_steps: int = 100,
    callback: Callable[[State], None] | None = None,
) -> Minimum:
    """Drive ``method`` from ``w`` until it terminates or ``max_steps`` moves are made.

    Args:
        objective: evaluates a point.
        w: start, of any shape.
        method: :class:`NewtonCG`, :class:`TrustRegion`, :class:`Adam`, :class:`AdamNewton` or one's own.
        max_steps: moves allowed.
        callback: called with the state after every move.

    Raises:
        ValueError: a start whose value or gradient is not finite.
    """
    check_callable("objective", objective)
    check_tensor("w", w)
    if not w.is_floating_point():
        raise TypeError(f"w must be a tensor of floats, got {w.dtype}")
    if isinstance(method, type) or not all(hasattr(method, name) for name in ("init", "step", "terminate")):
        raise TypeError(f"method must be NewtonCG(), TrustRegion(), Adam(), AdamNewton() or alike, got {shown(method)}")
    max_steps = check_count("max_steps", max_steps, least=0)
    check_callable("callback", callback, optional=True)
    state = method.init(objective, w)
    if not all(hasattr(state.at, name) for name in ("value", "gradient")):
        raise TypeError(f"objective must give an Evaluation, with value and gradient, got {shown(state.at)}")
    if not (math.isfinite(state.at.value) and math.isfinite(state.gradient_norm)):
        raise ValueError(f"the objective at the start is {state.at.value}, its gradient's norm {state.gradient_norm}")
    history = [_record(state)]
    while not method.terminate(state) and state.step < max_steps:
        state = replace(method.step(objective, state), step=state.step + 1)
        history.append(_record(state))
        if callback is not None:
            callback(state)
    return Minimum(
        state.w, state.at.value, state.gradient_norm, state.step, method.terminate(state), state.curvature,
        tuple(history),
    )  # fmt: skip


def _record(state: State) -> dict:
    return {
        "step": state.step, "value": state.at.value, "gradient_norm": state.gradient_norm, "event": state.event,
        "curvature": None if math.isnan(state.curvature) else state.curvature,
    }  # fmt: skip
