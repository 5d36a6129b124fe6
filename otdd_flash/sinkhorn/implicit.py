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

Unbalanced, ``r = a e^{-f/rho}`` at the solution: ``dOT/da_i = (rho + eps) (1 - e^{-f_i/rho}) - eps (1 - m_b)``, and in
the system ``diag(r)`` becomes ``(1 + eps/rho_x) diag(r)``, ``diag(c)`` likewise; the other formulas stay.

Points of weight zero take no part. The derivative by their weight is that formula at their potential, the c-transform;
second derivatives by weights are those of a trace of mass there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number
from otdd_flash.sinkhorn.divergence import Divergence
from otdd_flash.sinkhorn.krylov import LinearSolution, conjugate_gradients
from otdd_flash.sinkhorn.motion import ClassColumns, Fields, Motion, batched
from otdd_flash.sinkhorn.penalty import Penalty
from otdd_flash.sinkhorn.products import PlanProducts, on_support


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

    def __post_init__(self) -> None:
        check_fields(self, check_number, "tol", high=1.0, optional=True)
        check_fields(self, check_count, "max_iterations")


DEFAULT_IMPLICIT = ImplicitOptions()
_TRACE = 1e-10  # of the largest weight
_LIGHT = 1e-4  # of the largest mass
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
        found: the solved divergence.
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
        found = self._at_all_points(self._with_mass_term(found, self._mass_difference))
        if not self.found.identical:
            return found
        # one cloud on both sides: both terms are the same sums, taken in another order
        return Fields(
            *(entry if entry is None or name == "table" else torch.zeros_like(entry)
              for name, entry in zip(Fields._fields, found, strict=True))
        )  # fmt: skip

    def hessian(self, direction: Fields, wanted: Wanted) -> Fields:
        """The entries asked for of the Hessian times ``s`` directions, each with a leading dimension ``s``."""
        of_weights = wanted.a or wanted.b or direction.a is not None or direction.b is not None
        if of_weights and self.found.cost.supported is not self.found.cost:
            return self._traced.hessian(direction, wanted)

        def product(p: PlanProducts, want: Wanted, along: Fields | None, onto: Tensor | None) -> Fields:
            assert along is not None
            del onto
            if self.stored:
                p.store()
            return _hessian(p, want, along, self._solve(p))

        sides = zip((direction.x, direction.y), self.found.cost.supports, strict=True)
        x, y = (moved if moved is None or rows is None else moved[:, rows] for moved, rows in sides)
        direction = direction._replace(x=x, y=y)
        change = sum(
            sign * t.sum(1, keepdim=True) for sign, t in ((1, direction.a), (-1, direction.b)) if t is not None
        )
        return self._at_all_points(self._with_mass_term(self._combine(product, wanted, direction), change))

    @cached_property
    def cross(self) -> PlanProducts:
        """The plan between the two clouds."""
        return PlanProducts(self._present, (0, 1))

    @cached_property
    def selves(self) -> tuple[PlanProducts, PlanProducts]:
        """The plans of the self terms."""
        one, other = (PlanProducts(self._present, (i, i)) for i in (0, 1))
        return one, other

    @cached_property
    def _present(self) -> Divergence:
        """The same divergence without the points of weight zero."""
        return on_support(self.found)

    @cached_property
    def _traced(self) -> Derivatives:
        """The same with a trace of mass at the points of weight zero, whose weights may move: second derivatives are
        continuous in the weights, the potentials stay, and the error is of the size of the trace.
        """
        cost = self.found.cost
        clouds = tuple(
            replace(cloud, weights=torch.where(cloud.weights == 0, _TRACE * cloud.weights.max(), cloud.weights))
            for cloud in cost.clouds
        )
        return replace(self, found=replace(self.found, cost=replace(cost, clouds=clouds), operator=None))

    @property
    def _mass_difference(self) -> Tensor:
        x, y = self.found.cost.clouds
        return x.weights.sum() - y.weights.sum()

    def _with_mass_term(self, found: Fields, change: Tensor | int) -> Fields:
        """The derivative of ``eps/2 (m(a) - m(b))^2`` added to what the self terms leave."""
        if not self.found.debiased:
            return found
        step = self.found.epsilon * change
        return found._replace(
            a=None if found.a is None else found.a + step, b=None if found.b is None else found.b - step
        )

    def _at_all_points(self, found: Fields) -> Fields:
        """Entries of the points with weight among those of all: nothing pulls at a point without."""
        out = found._asdict()
        for side, rows in enumerate(self.found.cost.supports):
            points, weights = out["xy"[side]], out["ab"[side]]
            n = self.found.cost.clouds[side].n
            if rows is not None and points is not None:
                dim = points.dim() - 2
                shape = (*points.shape[:dim], n, points.shape[-1])
                out["xy"[side]] = points.new_zeros(shape).index_copy_(dim, rows, points)
            if rows is not None and weights is not None:
                out["ab"[side]] = self._slopes(side).index_copy_(0, rows, weights)
        return Fields(**out)

    def _slopes(self, side: int) -> Tensor:
        """The derivative by each weight of one cloud, from the potentials alone."""
        found, rho = self.found, self.found.rho[side]
        masses = [cloud.weights.sum() for cloud in found.cost.clouds]
        slope = mass_slope(found.potentials[side], found.epsilon, rho, masses[1 - side])
        if not found.debiased or found.self_potentials is None:
            return slope
        own = mass_slope(found.self_potentials[side], found.epsilon, rho, masses[side])
        return slope - own + found.epsilon * (masses[side] - masses[1 - side])

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
    """``((1 + eps/rho) diag(r) + P) h' = rows``."""
    r, _ = (slack * sums for slack, sums in zip(p.slacks, p.marginals, strict=True))
    diagonal = torch.where(r > 0, r, 1.0)
    found = conjugate_gradients(lambda h: diagonal[:, None] * h + p.forward(h), rows.T, diagonal=diagonal, **limits)
    h = _with_light(found.x, r, lambda: rows.T - p.forward(found.x)).T
    return found, h, h


def _schur(p: PlanProducts, rows: Tensor, columns: Tensor, limits: dict) -> tuple[LinearSolution, Tensor, Tensor]:
    """``(diag(c) - P^T diag(1/r) P) g' = columns - P^T (rows / r)``, then ``f' = (rows - P g') / r``.

    In an unbalanced problem ``r`` and ``c`` stand for their multiples by ``1 + eps/rho``, and the kernel is empty.
    """
    r, c = (slack * sums for slack, sums in zip(p.slacks, p.marginals, strict=True))
    kernel = (c > 0).to(c) if p.slacks == (1.0, 1.0) else None
    inverse = torch.where(r > 0, 1.0 / torch.where(r > 0, r, 1.0), 0.0)[:, None]
    diagonal = torch.where(c > 0, c, 1.0)
    # sharp plans: the Schur complement's own diagonal, kept positive, is the better preconditioner
    precondition = torch.maximum(diagonal - p.squares / p.slacks[0], 1e-3 * diagonal)

    def matvec(g: Tensor) -> Tensor:
        return diagonal[:, None] * g - p.backward(inverse * p.forward(g))

    right = columns.T - p.backward(inverse * rows.T)
    found = conjugate_gradients(matvec, right, diagonal=precondition, kernel=kernel, **limits)
    f = inverse * (rows.T - p.forward(found.x))
    return found, f.T, _with_light(found.x, c, lambda: columns.T - p.backward(f)).T


def _with_light(x: Tensor, mass: Tensor, right: Callable[[], Tensor]) -> Tensor:
    """A solution, taken from its own equations where there is so little mass that the residual says nothing of it."""
    light = (mass > 0) & (mass < _LIGHT * mass.max())
    return torch.where(light[:, None], right() / mass[:, None], x) if bool(light.any()) else x


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
            out["a"] = _mass_gradient(p, 0, r)
        if last and wanted.b and c is not None:
            out["b"] = _mass_gradient(p, 1, c)
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
        out["a"] = _moved_slope(p, 0, f, along.b)
    if wanted.b:
        out["b"] = _moved_slope(p, 1, g, along.a)
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


def mass_slope(potential: Tensor, epsilon: float, rho: float | None, other_mass: Tensor) -> Tensor:
    """``dOT/da_i = (rho + eps) (1 - e^{-f_i/rho}) - eps (1 - m_b)``; ``f_i - eps (1 - m_b)`` for a hard constraint."""
    bent = potential if rho is None else -(rho + epsilon) * torch.expm1(-potential / rho)
    return bent - epsilon * (1 - other_mass)


def _mass_gradient(p: PlanProducts, side: int, marginal: Tensor) -> Tensor:
    """:func:`mass_slope` of the potential after a full step, which is what the marginal demands."""
    weights, other = (p.a, p.b) if side == 0 else (p.b, p.a)
    damping = Penalty([p.rho[side]], weights.device).damping(p.epsilon)[0]
    potential = p.potentials[side]
    step = p.epsilon * torch.where(marginal > 0, weights / marginal, 1.0).log()  # a sum may underflow
    after = potential + step if p.rho[side] is None else damping * (potential + step)
    return mass_slope(after, p.epsilon, p.rho[side], other.sum())


def _moved_slope(p: PlanProducts, side: int, change: Tensor, other_change: Tensor | None) -> Tensor:
    """Derivative of :func:`mass_slope` along directions that move the potential and the other side's weights."""
    rho = p.rho[side]
    out = change if rho is None else p.slacks[side] * (-p.potentials[side] / rho).exp() * change
    return out if other_change is None else out + p.epsilon * other_change.sum(1, keepdim=True)
