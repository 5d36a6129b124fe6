"""Second-order minimisation: damped Newton-CG and Steihaug's trust region."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number
from otdd_flash.flows.driver import Evaluation, Objective, State

_SUFFICIENT_DECREASE = 1e-4  # Armijo
_BACKTRACKS = 25


@dataclass(frozen=True)
class NewtonCG:
    """Newton's direction from truncated conjugate gradients on ``H + damping I``, and Armijo's backtracking.

    The damping follows the agreement of model and objective (Levenberg and Marquardt); on meeting a direction of
    negative curvature the inner iteration ends with what it has, or with steepest descent (Nocedal and Wright, 2006,
    algorithm 7.1).

    Args:
        damping: at the start, in units of the Hessian.
        tol: gradient norm at which to stop.
        max_inner: Hessian products a step.
    """

    damping: float = 1e-3
    tol: float = 1e-8
    max_inner: int = 100

    def __post_init__(self) -> None:
        check_fields(self, check_number, "damping", "tol", closed=True)
        check_fields(self, check_count, "max_inner")

    def init(self, objective: Objective, w: Tensor) -> State:
        """Evaluate the start."""
        return State(w, objective(w), self.damping)

    def step(self, objective: Objective, state: State) -> State:
        """One damped Newton step; damped harder where no step length gives descent."""
        g = state.at.gradient
        direction, curved = _truncated_newton(state.at, state.scale, self.max_inner)
        slope = float((g * direction).sum())
        predicted = slope + 0.5 * float((direction * state.at.hvp(direction)).sum())
        length = 1.0
        for _ in range(_BACKTRACKS):
            trial = state.w + length * direction
            at = objective(trial)
            if at.value <= state.at.value + _SUFFICIENT_DECREASE * length * slope:
                agreement = (at.value - state.at.value) / predicted if predicted < 0 else 0.0
                scale = state.scale / 4 if length == 1.0 and agreement > 0.75 else state.scale
                scale = 4 * state.scale if length < 0.5 or agreement < 0.25 else scale
                return replace(state, w=trial, at=at, scale=scale, event="negative curvature" if curved else "newton")
            length /= 2
        return replace(state, scale=16 * state.scale, event="refused", done=state.event == "refused")

    def terminate(self, state: State) -> bool:
        """Gradient small, or no descent twice in a row."""
        return state.done or state.gradient_norm <= self.tol


@dataclass(frozen=True)
class TrustRegion:
    """Steihaug's trust region: conjugate gradients that stop at the boundary or follow negative curvature to it.

    Args:
        radius: at the start, in units of the point.
        max_radius: largest.
        accept: share of the predicted decrease from which a step is taken.
        tol: gradient norm at which to stop.
        max_inner: Hessian products a step.

    Source: Steihaug (1983); Nocedal and Wright, algorithms 4.1 and 7.2.
    """

    radius: float = 1.0
    max_radius: float = 1e3
    accept: float = 0.1
    tol: float = 1e-8
    max_inner: int = 100

    def __post_init__(self) -> None:
        check_fields(self, check_number, "radius", "max_radius")
        check_fields(self, check_number, "accept", high=1.0, closed=True)
        check_fields(self, check_number, "tol", closed=True)
        check_fields(self, check_count, "max_inner")

    def init(self, objective: Objective, w: Tensor) -> State:
        """Evaluate the start."""
        return State(w, objective(w), self.radius)

    def step(self, objective: Objective, state: State) -> State:
        """One step, taken or refused; a radius below rounding ends the search."""
        move, predicted, boundary = _steihaug(state.at, state.scale, self.max_inner)
        at = objective(state.w + move)
        ratio = (state.at.value - at.value) / predicted if predicted > 0 else 0.0
        ratio = ratio if math.isfinite(ratio) else -1.0
        radius = state.scale
        if ratio < 0.25:
            radius = 0.25 * float(move.norm())
        elif ratio > 0.75 and boundary:
            radius = min(2 * radius, self.max_radius)
        if ratio > self.accept:
            return replace(state, w=state.w + move, at=at, scale=radius, event="newton")
        lost = radius <= 1e-14 * (1.0 + float(state.w.norm()))
        return replace(state, scale=radius, event="refused", done=lost)

    def terminate(self, state: State) -> bool:
        """Gradient small, or the radius below rounding."""
        return state.done or state.gradient_norm <= self.tol


def _truncated_newton(at: Evaluation, damping: float, max_inner: int) -> tuple[Tensor, bool]:
    """Descent direction for ``(H + damping I) p = -g`` and whether negative curvature cut it short."""
    g = at.gradient
    goal = min(0.5, float(g.norm()) ** 0.5) * float(g.norm())
    p, r = torch.zeros_like(g), -g
    d, rho = r.clone(), float((r * r).sum())
    for k in range(max_inner):
        q = at.hvp(d) + damping * d
        curvature = float((d * q).sum())
        if curvature <= 0:
            return (d if k == 0 else p), True
        alpha = rho / curvature
        p, r = p + alpha * d, r - alpha * q
        fresh = float((r * r).sum())
        if math.sqrt(fresh) <= goal:
            break
        d, rho = r + fresh / rho * d, fresh
    return p, False


def _steihaug(at: Evaluation, radius: float, max_inner: int) -> tuple[Tensor, float, bool]:
    """Step within ``radius``, the decrease that the model predicts, and whether it ends on the boundary."""
    g = at.gradient
    goal = min(0.5, float(g.norm()) ** 0.5) * float(g.norm())
    z, hz = torch.zeros_like(g), torch.zeros_like(g)
    r, d = g.clone(), -g
    rho = float((r * r).sum())
    boundary = False
    for _ in range(max_inner):
        q = at.hvp(d)
        curvature = float((d * q).sum())
        alpha = rho / curvature if curvature > 0 else math.inf
        if curvature <= 0 or float((z + alpha * d).norm()) >= radius:
            tau = _to_boundary(z, d, radius)
            z, hz, boundary = z + tau * d, hz + tau * q, True
            break
        z, hz, r = z + alpha * d, hz + alpha * q, r + alpha * q
        fresh = float((r * r).sum())
        if math.sqrt(fresh) <= goal:
            break
        d, rho = -r + fresh / rho * d, fresh
    return z, -float((g * z).sum() + 0.5 * (z * hz).sum()), boundary


def _to_boundary(z: Tensor, d: Tensor, radius: float) -> float:
    """Positive ``tau`` with ``|z + tau d| = radius``."""
    a, b, c = float((d * d).sum()), float((z * d).sum()), float((z * z).sum()) - radius**2
    return (-b + math.sqrt(max(b * b - a * c, 0.0))) / a
