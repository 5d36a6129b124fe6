r"""First and second derivatives of a solved divergence with respect to everything it depends on.

First, by the envelope theorem, at fixed potentials for ``C_ij = w |x_i - y_j|^2 + T[l_i, l'_j]``, ``r = P 1``:

    dOT/dx_i = 2 w (r_i x_i - (P y)_i)      dOT/da_i = f_i + eps log(a_i / r_i)
    dOT/dw = sum_ij P_ij |x_i - y_j|^2      dOT/dT[k, l] = mass of P between the classes k and l

A self term ``OT(a, a)`` has the cloud on both sides and ``f = g``: its derivative in ``x`` is twice the one above.

Second, by the implicit function theorem. Along a direction of the inputs the costs move by ``C'`` and the plan by

    P' = P o (a'_i/a_i + b'_j/b_j + (f'_i + g'_j - C'_ij)/eps)
    [diag(r)  P; P^T  diag(c)] [f'; g'] = [(P o C') 1 - eps P (b'/b); (P o C')^T 1 - eps P^T (a'/a)]

``C'`` has low rank, so all sums stream. The system is reduced to ``diag(c) - P^T diag(1/r) P``, which is positive
semi-definite with the constants as kernel, and solved by conjugate gradients; a symmetric problem has ``f' = g'`` and
the well-conditioned ``diag(r) + P``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.sinkhorn.divergence import Divergence
from otdd_flash.sinkhorn.krylov import LinearSolution, conjugate_gradients
from otdd_flash.sinkhorn.motion import ClassColumns, Fields, Motion, batched
from otdd_flash.sinkhorn.products import PlanProducts


class Wanted(NamedTuple):
    """Which gradients are asked for."""

    x: bool = False
    y: bool = False
    a: bool = False
    b: bool = False
    table: bool = False
    weight: bool = False


@dataclass(frozen=True)
class ImplicitOptions:
    """How far the linear system of the potentials is solved.

    Args:
        tol: relative residual; ``None`` for 1e-11 in float64 and 1e-6 in lower precisions.
        max_iterations: products with the plan and its transpose.
    """

    tol: float | None = None
    max_iterations: int = 1000


DEFAULT_IMPLICIT = ImplicitOptions()
_GROUP_ELEMENTS = {"cuda": 1 << 23}  # of a cloud's features at a time


@dataclass
class Record:
    """What the linear solves came to: largest relative residual, products, and whether all of them converged."""

    residual: float = 0.0
    iterations: int = 0
    converged: bool = True

    def add(self, solution: LinearSolution) -> None:
        """Take one solve in."""
        self.residual = max(self.residual, solution.residual)
        self.iterations += solution.iterations
        self.converged = self.converged and solution.converged


_Term = Callable[[PlanProducts, Wanted, Fields | None, Tensor | None], Fields]


@dataclass(eq=False)
class Derivatives:
    """Gradient and Hessian products of one solved divergence.

    Args:
        found: the solved divergence; balanced.
        stored: keep the plans as matrices for Hessian products, which are then cheaper by far.
        options: accuracy of the linear solves.
        fixed_target: the self term of the second cloud is a constant, table included.
    """

    found: Divergence
    stored: bool = False
    options: ImplicitOptions = DEFAULT_IMPLICIT
    fixed_target: bool = False
    record: Record = field(default_factory=Record)

    def gradient(self, wanted: Wanted) -> Fields:
        """The gradients asked for: of the points in the precision of the solve, the others in float64.

        They are the exact gradients of the problem whose weights are the plan's own marginals: these differ from the
        weights given by ``found.marginal_error`` in L1, and the gradients' error is proportional to that.
        """
        found = self._combine(lambda p, w, _, onto: _gradient(p, w, onto), wanted, None)
        if not self.found.identical:
            return found
        # one cloud on both sides: both terms are the same sums, taken in another order
        return Fields(
            *(entry if entry is None or name == "table" else torch.zeros_like(entry)
              for name, entry in zip(Fields._fields, found, strict=True))
        )  # fmt: skip

    def hessian(self, direction: Fields, wanted: Wanted) -> Fields:
        """The entries asked for of the Hessian times ``s`` directions, each with a leading dimension ``s``."""

        def product(p: PlanProducts, want: Wanted, along: Fields | None, onto: Tensor | None) -> Fields:
            assert along is not None
            del onto
            if self.stored:
                p.store()
            return _hessian(p, want, along, self._solve(p))

        return self._combine(product, wanted, direction)

    @cached_property
    def cross(self) -> PlanProducts:
        """The plan between the two clouds."""
        return PlanProducts(self.found, (0, 1))

    @cached_property
    def selves(self) -> tuple[PlanProducts, PlanProducts]:
        """The plans of the self terms."""
        one, other = (PlanProducts(self.found, (i, i)) for i in (0, 1))
        return one, other

    def _combine(self, term: _Term, wanted: Wanted, direction: Fields | None) -> Fields:
        """``cross - (self of x)/2 - (self of y)/2``; the points and weights of a self term count twice.

        A term may take what it has for the points from what is there, and return nothing for them.
        """
        cross = term(self.cross, wanted, direction, None)
        if not self.found.debiased:
            return cross
        out: dict[str, Tensor | None] = dict(zip(Fields._fields, cross, strict=True))
        for p, points, weights in zip(self.selves, ("x", "y"), ("a", "b"), strict=True):
            want = Wanted(
                x=getattr(wanted, points), a=getattr(wanted, weights), table=wanted.table, weight=wanted.weight
            )
            along = None
            if direction is not None:
                moved, mass = getattr(direction, points), getattr(direction, weights)
                along = Fields(moved, moved, mass, mass, direction.table, direction.weight)
            if not any(want) or (along is not None and all(entry is None for entry in along)):
                continue
            if self.fixed_target and points == "y":
                continue
            own = term(p, want, along, out[points])
            for name, value, factor in (
                (points, own.x, 1.0), (weights, own.a, 1.0), ("table", own.table, 0.5), ("weight", own.weight, 0.5),
            ):  # fmt: skip
                total = out[name]
                if value is not None and total is not None:
                    out[name] = total.sub_(value, alpha=factor)
        return Fields(**out)

    def _solve(self, p: PlanProducts) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]:
        """``(f', g')``, each ``(s, .)``, from the right-hand sides of the rows and columns."""
        tol = self.options.tol or (1e-11 if p.dtype == torch.float64 else 1e-6)
        limits = {"tol": tol, "max_iterations": self.options.max_iterations}
        limits["check_every"] = 1 if p.a.device.type == "cpu" else 4

        def solve(rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
            found, f, g = _symmetric_system(p, rows, limits) if columns is None else _schur(p, rows, columns, limits)
            self.record.add(found)
            return f, g

        return solve


def _symmetric_system(p: PlanProducts, rows: Tensor, limits: dict) -> tuple[LinearSolution, Tensor, Tensor]:
    """``(diag(r) + P) h' = rows``; a point of weight zero is left alone."""
    r, _ = p.marginals
    diagonal = torch.where(r > 0, r, 1.0)
    found = conjugate_gradients(lambda h: diagonal[:, None] * h + p.forward(h), rows.T, diagonal=diagonal, **limits)
    return found, found.x.T, found.x.T


def _schur(p: PlanProducts, rows: Tensor, columns: Tensor, limits: dict) -> tuple[LinearSolution, Tensor, Tensor]:
    """``(diag(c) - P^T diag(1/r) P) g' = columns - P^T (rows / r)``, then ``f' = (rows - P g') / r``."""
    r, c = p.marginals
    inverse = torch.where(r > 0, 1.0 / torch.where(r > 0, r, 1.0), 0.0)[:, None]
    diagonal = torch.where(c > 0, c, 1.0)
    # sharp plans: the Schur complement's own diagonal, kept positive, is the better preconditioner
    precondition = torch.maximum(diagonal - p.squares, 1e-3 * diagonal)

    def matvec(g: Tensor) -> Tensor:
        return diagonal[:, None] * g - p.backward(inverse * p.forward(g))

    right = columns.T - p.backward(inverse * rows.T)
    found = conjugate_gradients(matvec, right, diagonal=precondition, kernel=(c > 0).to(c), **limits)
    return found, (inverse * (rows.T - p.forward(found.x))).T, found.x.T


def _gradient(p: PlanProducts, wanted: Wanted, onto: Tensor | None) -> Fields:
    """Gradients of ``OT`` of one problem at fixed plan; those of the rows only where it is symmetric.

    The points' gradient is subtracted from ``onto`` where that is given, and not returned.

    Features come a group of columns at a time: on a GPU several copies of a large cloud would not fit the promise of
    memory, and scores are cheap beside it.
    """
    labels, w = ClassColumns(p) if wanted.table else None, p.cost.feature_weight
    clouds = [p.cost.clouds[i].points for i in p.problem]
    out: dict[str, Tensor] = {}
    if wanted.x and onto is None:
        out["x"] = torch.empty(clouds[0].shape, dtype=p.dtype, device=clouds[0].device)
    if wanted.y:
        out["y"] = torch.empty(clouds[1].shape, dtype=p.dtype, device=clouds[1].device)
    if wanted.weight:
        out["weight"] = p.a.new_zeros(())
    for columns in _column_groups(clouds):
        x, y = p.points(columns)
        d, last = y.shape[1], columns.stop == clouds[1].shape[1]
        found = p.apply(v=_columns(y, wanted, labels if last else None), u=x if wanted.y or wanted.b else None)
        pv, r, c = found.pv, found.r, found.c
        assert pv is not None
        assert r is not None
        if wanted.x:
            pull = torch.addcmul(pv[:, :d].neg(), r[:, None].to(x.dtype), x).mul_(2 * w)
            if onto is None:
                out["x"][:, columns] = pull
            else:
                onto[:, columns] -= pull
        if wanted.weight:
            out["weight"] += _mean_distance(x, r, pv)
        if found.ptu is not None and c is not None and wanted.y:
            out["y"][:, columns] = torch.addcmul(found.ptu.neg(), c[:, None].to(y.dtype), y).mul_(2 * w)
        if last and wanted.a:
            out["a"] = _potential(p.potentials.f, p.a, r, p.epsilon)
        if last and wanted.b and c is not None:
            out["b"] = _potential(p.potentials.g, p.b, c, p.epsilon)
        if last and labels is not None:
            out["table"] = labels.scatter(pv[None, :, d + wanted.weight :].to(torch.float64))[0]
    return Fields(**out)


def _column_groups(clouds: list[Tensor]) -> list[slice]:
    """Ranges of the features, of about equal width."""
    d = clouds[0].shape[1]
    largest = d * max(len(cloud) for cloud in clouds)
    groups = -(-largest // _GROUP_ELEMENTS.get(clouds[0].device.type, max(largest, 1)))
    width = max(1, -(-d // max(groups, 1)))
    return [slice(start, min(start + width, d)) for start in range(0, d, width)] or [slice(0, 0)]


def _hessian(p: PlanProducts, wanted: Wanted, along: Fields, solve: Callable) -> Fields:
    """Derivative of :func:`_gradient` along ``s`` directions."""
    moved = Motion(p, along)
    f, g = solve(*moved.right_hand_sides())
    rows, columns = p.marginals
    w, d, (py, ptx) = p.cost.feature_weight, p.y.shape[1], p.images
    labels = ClassColumns(p) if wanted.table else None
    v, u = (torch.cat([t, torch.ones_like(t[:, :1])], 1) for t in (_columns(p.y, wanted, labels), p.x))
    dpv, dptu = p.weighted(*moved.plan_factors(f, g), v=v, u=u if wanted.y else None)
    assert dpv is not None
    drows = dpv[..., -1:]
    out: dict[str, Tensor] = {}
    ex = rows[:, None] * p.x - py
    ey = columns[:, None] * p.y - ptx
    if wanted.x:
        out["x"] = 2 * w * (drows * p.x - dpv[..., :d])
        if along.x is not None:
            out["x"] += 2 * w * rows[:, None] * along.x
        if along.y is not None:
            out["x"] -= 2 * w * batched(p.forward, along.y)
        if along.weight is not None:
            out["x"] += 2 * along.weight[:, None, None] * ex
    if dptu is not None:
        out["y"] = 2 * w * (dptu[..., d:] * p.y - dptu[..., :d])
        if along.y is not None:
            out["y"] += 2 * w * columns[:, None] * along.y
        if along.x is not None:
            out["y"] -= 2 * w * batched(p.backward, along.x)
        if along.weight is not None:
            out["y"] += 2 * along.weight[:, None, None] * ey
    if wanted.a:
        out["a"] = f
    if wanted.b:
        out["b"] = g
    if wanted.weight:
        out["weight"] = torch.stack([_mean_distance(p.x, entry[:, -1], entry) for entry in dpv])
        for points, error in ((along.x, ex), (along.y, ey)):
            if points is not None:
                out["weight"] = out["weight"] + 2 * (points * error).sum((1, 2))
    if labels is not None:
        out["table"] = labels.scatter(dpv[..., d + wanted.weight : -1])
    return Fields(**out)


def _columns(y: Tensor, wanted: Wanted, labels: ClassColumns | None) -> Tensor:
    """Right-hand columns ``[y, |y|^2, classes]``, the last two where they are wanted."""
    parts = [y]
    if wanted.weight:
        parts.append(y.square().sum(1, keepdim=True))
    if labels is not None:
        parts.append(labels.one_hot.to(y.dtype))
    return torch.cat(parts, 1) if len(parts) > 1 else y


def _mean_distance(x: Tensor, mass: Tensor, image: Tensor) -> Tensor:
    """``sum_ij P_ij |x_i - y_j|^2`` from ``P 1`` and ``P [y, |y|^2]``."""
    d = x.shape[1]
    x, image = x.to(torch.float64), image.to(torch.float64)
    return mass @ x.square().sum(1) + image[:, d].sum() - 2 * (x * image[:, :d]).sum()


def _potential(potential: Tensor, weights: Tensor, marginal: Tensor, epsilon: float) -> Tensor:
    """The potential after a full step, which is what the marginal demands; as it is where there is no weight."""
    return potential + epsilon * torch.where(weights > 0, weights / marginal, 1.0).log()
