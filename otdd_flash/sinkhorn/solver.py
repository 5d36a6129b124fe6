"""Sinkhorn iterations over a batch of problems: anneal epsilon, then iterate until the marginals are met.

One pass of the operator gives both marginals of the current plan, so every pass is also its own certificate, and the
residuals ``log(a / r)``, ``log(b / c)`` of both potentials. A cross problem alternates with over-relaxation while
epsilon falls, ``f <- f + omega eps log(a / r)`` (Thibault et al. 2017); at the target, Anderson acceleration combines
the last residuals, or a fixed guarded ``omega`` where one is asked for. A symmetric problem takes damped steps,
``f <- f + theta eps log(a / r)``: the linearised map has its spectrum in ``[0, 1]``, so ``theta = 2/3`` contracts by a
third a pass.

Unbalanced problems (``rho_x``, ``rho_y``) damp the steps and change the target marginals; see
:mod:`otdd_flash.sinkhorn.penalty`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number
from otdd_flash.ops.base import PlanOperator, on_device
from otdd_flash.ops.steps import vectors_of
from otdd_flash.sinkhorn.absent import everywhere
from otdd_flash.sinkhorn.anderson import Anderson, FusedAnderson
from otdd_flash.sinkhorn.penalty import Penalty, best_shift
from otdd_flash.sinkhorn.recording import Recorder
from otdd_flash.sinkhorn.schedule import annealing
from otdd_flash.types import Potentials

_SYMMETRIC_STEP = 2.0 / 3.0
_ANNEALING_OMEGA = 1.5
# Below this fraction of the largest cost a problem resembles an assignment: one pass an annealed epsilon leaves mass at
# the wrong partner, and the target needs thousands of passes to move it. Each stage is then converged a little. So it
# is between well-separated classes of slightly unequal mass at any epsilon: there the error is seen to stand still.
_CAREFUL_BELOW = 5e-4
_STAGE_TOL = 5e-3
_STAGE_PASSES = 100
_RESOLUTION = 1e-13  # smallest epsilon, as a fraction of the largest cost
_NEGLIGIBLE = 1e-12  # mass, as a fraction of the whole, whose loss to underflow is no loss
_PATIENCE = 40  # passes in which an error must halve


@dataclass(frozen=True)
class SolverOptions:
    """How far and how to iterate.

    Args:
        tol: L1 marginal error of both sides together, as a fraction of the mass, at which a problem is converged.
        max_iterations: passes allowed at the target epsilon.
        scaling: factor of ``sqrt(epsilon)`` from one annealing step to the next, in ``(0, 1)``.
        relaxation: fixed over-relaxation ``omega`` in ``[1, 2)``, or ``None`` for Anderson acceleration.
        check_every: passes between looks at the error from the host.
        rho_x: strength of the KL penalty on marginals of the first cloud, in units of the cost; ``None`` for a hard
            constraint.
        rho_y: the same for the second cloud.
    """

    tol: float = 1e-3
    max_iterations: int = 1000
    scaling: float = 0.7
    relaxation: float | None = None
    check_every: int = 1
    rho_x: float | None = None
    rho_y: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, check_number, "tol", "scaling", high=1.0)
        check_fields(self, check_count, "max_iterations", "check_every")
        check_fields(self, check_number, "relaxation", low=1.0, high=2.0, closed=True, optional=True)
        check_fields(self, check_number, "rho_x", "rho_y", optional=True)

    @property
    def balanced(self) -> bool:
        """Whether the marginals of both clouds are prescribed."""
        return self.rho_x is None and self.rho_y is None

    def penalty_of(self, cloud: int) -> float | None:
        """Strength of the penalty on marginals of one cloud of a cost.

        Raises:
            ValueError: a cloud beyond the second where the two strengths differ.
        """
        if cloud > 1 and self.rho_x != self.rho_y:
            raise ValueError(f"rho_x and rho_y name two clouds, but the problems reach cloud {cloud}: make them equal")
        return self.rho_y if cloud == 1 else self.rho_x


DEFAULT_OPTIONS = SolverOptions()


@dataclass(frozen=True, eq=False)
class Solution:
    """Potentials of a batch of ``B`` problems in the operator's layout, with the certificate of each.

    Args:
        operator: costs and weights.
        epsilon: in units of the cost.
        options: tolerances and method.
        f, g: ``(B, N), (B, M)`` potentials.
        r, c: marginals of exactly these potentials.
        marginal_error: ``(B,)`` L1, both sides, on the host like the rest.
        iterations: ``(B,)`` passes at the target epsilon.
        converged: ``(B,)``.
        dual: ``(B,)`` dual values.
        primal: ``(B,)`` primal values.
        history: marginal errors by look and problem.
    """

    operator: PlanOperator
    epsilon: float
    options: SolverOptions
    f: Tensor
    g: Tensor
    r: Tensor
    c: Tensor
    marginal_error: Tensor
    iterations: Tensor
    converged: Tensor
    dual: Tensor
    primal: Tensor
    history: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    def potentials(self, problem: int) -> Potentials:
        """``f (n,), g (m,)`` of one problem in the clouds' own order, c-transforms at points of weight zero."""
        found = Potentials(
            self.operator.unpack_rows(self.f[problem], problem), self.operator.unpack_columns(self.g[problem], problem)
        )
        pair = self.operator.problems[problem]
        rho = self.options.penalty_of(pair[0]), self.options.penalty_of(pair[1])
        return everywhere(self.operator.cost, pair, found, self.epsilon, rho)


Progress = Callable[[str, int, float], None]


def solve(
    operator: PlanOperator,
    epsilon: float,
    options: SolverOptions = DEFAULT_OPTIONS,
    *,
    initial: list[Potentials] | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Solve every problem of ``operator`` at ``epsilon``.

    Args:
        operator: costs and weights of ``B`` problems.
        epsilon: regularisation, in units of the cost.
        options: tolerances and method.
        initial: potentials to start from, one pair a problem (a warm start: no annealing).
        progress: called with (stage, passes done, worst marginal error).

    Returns:
        The solution with a certificate per problem; not converged is reported, not raised.

    Raises:
        ValueError: an epsilon that is not a positive number.
    """
    check_number("epsilon", epsilon)
    largest = max(operator.cost.bound(i, j) for i, j in operator.problems)
    if epsilon < _RESOLUTION * largest:
        raise ValueError(
            f"epsilon={epsilon:g} is below what float64 resolves of costs up to {largest:g}: take at least "
            f"{_RESOLUTION * largest:.1g}, or an exact solver"
        )
    with on_device(operator.a.device):
        return _solve(operator, epsilon, options, initial, progress, largest)


def _solve(
    operator: PlanOperator,
    epsilon: float,
    options: SolverOptions,
    initial: list[Potentials] | None,
    progress: Progress | None,
    largest: float,
) -> Solution:
    """Anneal from the ``largest`` cost or start warm, iterate, and start again with care where that stalls."""
    state = _State(operator, options)
    careful = initial is None and epsilon < _CAREFUL_BELOW * largest
    if initial is not None:
        state.load(initial)
    elif careful:
        state.descend(largest, epsilon, progress)
    else:
        levels = annealing(largest, epsilon, options.scaling)
        for k, eps in enumerate(levels):
            state.anneal(eps, last=k + 1 == len(levels))
            if progress is not None:
                progress("anneal", state.passes, math.nan)
    solution = state.iterate(epsilon, options, progress, until_stalled=not careful)
    if not state.stalled or bool(solution.converged.all()):
        return solution
    state.done = solution.converged.clone()
    state.descend(largest, epsilon, progress)
    left = replace(options, max_iterations=options.max_iterations - int(solution.iterations.max()))
    again = state.iterate(epsilon, left, progress)
    return replace(
        again, options=options, iterations=solution.iterations + again.iterations,
        history=solution.history + again.history,
    )  # fmt: skip


class _State:
    """The loop's variables; see :func:`solve`."""

    def __init__(self, operator: PlanOperator, options: SolverOptions) -> None:
        self.operator, self.options = operator, options
        self.a, self.b = operator.a, operator.b
        self.f, self.g = torch.zeros_like(self.a), torch.zeros_like(self.b)
        self.cross = torch.tensor([i != j for i, j in operator.problems])  # on the host
        self.symmetric = ~self.cross.to(self.a.device)[:, None]
        self.mass = ((self.a.sum(1) + self.b.sum(1)) / 2).clamp_min(torch.finfo(torch.float64).tiny)
        self.rows, self.columns = (
            Penalty([options.penalty_of(problem[side]) for problem in operator.problems], self.a.device)
            for side in (0, 1)
        )
        self.r, self.c = torch.zeros_like(self.a), torch.zeros_like(self.b)
        self.error = torch.zeros_like(self.mass)
        self.least = _NEGLIGIBLE * self.mass
        self.turn = torch.ones_like(self.mass[:1])  # 1 where rows are next, 0 where columns are
        self.vectors = vectors_of(operator, self.cross) if self.rows.hard and self.columns.hard else None
        self.rows_next = True  # the same on the host, for annealing by kernels
        self.masks: dict[tuple[bool, ...], Tensor] = {}
        self.passes = 0
        self.done = torch.zeros(len(self.mass), dtype=torch.bool)  # on the host: problems to leave as they are
        self.stalled = False

    def load(self, initial: list[Potentials]) -> None:
        """Take given potentials as the start."""
        for p, (f, g) in enumerate(initial):
            self.f[p] = self.operator.pack_rows(f.to(self.f), p)
            self.g[p] = self.operator.pack_columns(g.to(self.g), p)

    def anneal(self, epsilon: float, *, last: bool) -> None:
        """One over-relaxed step of one side at an intermediate epsilon.

        Symmetric problems join at the last one: every point has itself at no cost, so that a cold start is no worse
        than the trouble of an annealed one.
        """
        active = self.cross | last
        if not bool(active.any()):
            return
        live = self._live(active)
        self.passes += 1
        if self.vectors is not None:
            sums = self.operator.marginals(self.f, self.g, epsilon, active)
            self.vectors.anneal(
                (self.f, self.g), sums, live, epsilon=epsilon, rows_by=_ANNEALING_OMEGA * self.rows_next,
                columns_by=_ANNEALING_OMEGA * (not self.rows_next), symmetric_by=_SYMMETRIC_STEP,
            )  # fmt: skip
            self.rows_next = not self.rows_next
            return
        self._marginals(epsilon, active, live)
        steps = self._alternate(*self._residuals(epsilon), _ANNEALING_OMEGA)
        for potential, step in zip((self.f, self.g), steps, strict=True):
            potential.add_(torch.where(live[:, None] != 0, step, 0.0), alpha=epsilon)

    def descend(self, largest: float, epsilon: float, progress: Progress | None) -> None:
        """Anneal the unfinished problems from the start, each stage converged a little."""
        live = ~self.done.to(self.a.device)[:, None]
        for potential in (self.f, self.g):
            potential.masked_fill_(live, 0.0)
        stage = replace(
            self.options, tol=max(self.options.tol, _STAGE_TOL), max_iterations=_STAGE_PASSES, check_every=1
        )
        for eps in annealing(largest, epsilon, self.options.scaling):
            self.iterate(eps, stage)
            if progress is not None:
                progress("anneal", self.passes, math.nan)

    def iterate(
        self, epsilon: float, options: SolverOptions, progress: Progress | None = None, *, until_stalled: bool = False
    ) -> Solution:
        """Passes at one epsilon until all problems are converged, the limit is reached or (if asked) one stalls."""
        active = ~self.done
        iterations = torch.zeros(len(self.mass), dtype=torch.int64)
        self._evaluate(epsilon, active)
        self.passes += 1
        history: list[tuple[float, ...]] = []
        advance = self._advance(epsilon, options)
        for step in range(options.max_iterations + 1):
            if step % options.check_every == 0 or step == options.max_iterations:
                host = self.error.cpu()
                history.append(tuple(host.tolist()))
                active = active & ~(host <= options.tol)
                if progress is not None:
                    progress("iterate", self.passes, float(host.max()))
                if step == options.max_iterations or not bool(active.any()):
                    break
                if until_stalled and step >= _PATIENCE:
                    before = torch.tensor(history[-1 - _PATIENCE // options.check_every], dtype=host.dtype)
                    self.stalled = bool((active & (host > before / 2)).any())
                    if self.stalled:
                        break
                if not bool(torch.isfinite(host[active]).all()):
                    self._restart(epsilon)
                    advance = self._advance(epsilon, options)
            advance(active)
            self.passes += 1
            iterations += active
        return self._solution(epsilon, self.error.cpu(), iterations, tuple(history))

    def _advance(self, epsilon: float, options: SolverOptions) -> Callable[[Tensor], None]:
        """A function that takes one step of the active problems and evaluates them, recorded where that pays."""
        move, recorder = self._method(epsilon, options), Recorder(self.operator)

        def step(active: Tensor) -> None:
            move(active)
            self._evaluate(epsilon, active)

        def advance(active: Tensor) -> None:
            self._live(active)  # made here: nothing may come from the host while a step is recorded
            recorder.run(tuple(active.tolist()), lambda: step(active))

        return advance

    def _method(self, epsilon: float, options: SolverOptions) -> Callable[[Tensor], None]:
        """A function that moves the active problems by a step from where they were evaluated."""
        if self.vectors is not None and options.relaxation is None:
            fused = FusedAnderson(self.vectors, float(self.rows_next))
            return lambda active: fused.advance(
                (self.f, self.g), (self.r, self.c), self.error, self._live(active), epsilon
            )
        method = Anderson(self.a, self.b, self.symmetric) if options.relaxation is None else None

        def move(active: Tensor) -> None:
            steps = self._residuals(epsilon)
            plain = self._alternate(*steps, options.relaxation or 1.0)
            moves = plain if method is None else method.step(self.f, self.g, steps, plain, self.error, epsilon)
            for potential, change in zip((self.f, self.g), moves, strict=True):
                potential.add_(torch.where(self._live(active)[:, None] != 0, change, 0.0), alpha=epsilon)

        return move

    def _live(self, active: Tensor) -> Tensor:
        """``(B,)`` int32 on the device, one for an active problem."""
        key = tuple(active.tolist())
        if key not in self.masks:
            self.masks[key] = active.to(self.a.device, torch.int32)
        return self.masks[key]

    def _solution(
        self, epsilon: float, error: Tensor, iterations: Tensor, history: tuple[tuple[float, ...], ...]
    ) -> Solution:
        dual, primal = self._values(epsilon)
        return Solution(
            operator=self.operator, epsilon=epsilon, options=self.options, f=self.f,
            g=torch.where(self.symmetric, _fit(self.f, self.g), self.g), r=self.r, c=self.c, marginal_error=error,
            iterations=iterations, converged=error <= self.options.tol, dual=dual.cpu(), primal=primal.cpu(),
            history=history,
        )  # fmt: skip

    def _evaluate(self, epsilon: float, active: Tensor) -> None:
        """The marginals and the error of the active problems at the current potentials, in place."""
        live = self._live(active)
        if self.vectors is None:
            self._marginals(epsilon, active, live)
            self.error.copy_(self._marginal_error())
            return
        new = self.operator.marginals(self.f, self.g, epsilon, active)
        torch.div(self.vectors.measure(new, (self.r, self.c), live, self.least), self.mass, out=self.error)

    def _marginals(self, epsilon: float, active: Tensor, live: Tensor) -> None:
        """One pass."""
        if not (self.rows.hard and self.columns.hard):
            self._shift()
        marginals = self.operator.marginals(self.f, self.g, epsilon, active)
        for kept, new in zip((self.r, self.c), marginals, strict=True):
            kept.copy_(torch.where(live[:, None] != 0, new, kept))

    def _shift(self) -> None:
        """Move mass between the potentials of unbalanced cross problems: a better dual value of the same plan."""
        shift = best_shift(self.a, self.b, self.f, self.g, self.rows, self.columns)
        shift = torch.where(self.symmetric | ~shift.isfinite(), 0.0, shift)
        self.f.add_(shift)
        self.g.sub_(shift)

    def _residuals(self, epsilon: float) -> tuple[Tensor, Tensor]:
        """Full Sinkhorn steps of both potentials in epsilons; a symmetric problem's second one is zero."""
        f_step = self.rows.step(self.f, self.a, self.r, epsilon)
        g_step = self.columns.step(self.g, self.b, self.c, epsilon)
        return f_step, torch.where(self.symmetric, 0.0, g_step)

    def _alternate(self, f_step: Tensor, g_step: Tensor, omega: float) -> tuple[Tensor, Tensor]:
        """The step of one side of the cross problems, sides taking turns, and the damped step of symmetric ones."""
        moves = (
            torch.where(self.symmetric, _SYMMETRIC_STEP, omega * self.turn) * f_step,
            omega * (1 - self.turn) * g_step,
        )
        self.turn.copy_(1 - self.turn)
        return moves

    def _restart(self, epsilon: float) -> None:
        """Two safe half steps, for sums that came out zero or infinite."""
        for potential in (self.f, self.g):
            potential.nan_to_num_(0.0, 0.0, 0.0)
        source = torch.where(self.symmetric, _fit(self.f, self.g), self.g)
        f = self.rows.damping(epsilon) * self.operator.softmin(source, epsilon, side="rows")
        self.f.copy_(torch.where(self.symmetric, (self.f + f) / 2, f))
        self.g.copy_(self.columns.damping(epsilon) * self.operator.softmin(self.f, epsilon, side="columns"))
        self._evaluate(epsilon, torch.ones_like(self.cross))

    def _marginal_error(self) -> Tensor:
        """``(|r - a'|_1 + |c - b'|_1) / mass`` where ``a' = a exp(-f / rho)`` in an unbalanced problem.

        Infinite where a sum vanished or overflowed, which calls for :meth:`_restart`.
        """
        a, b = self.a, self.b
        if not (self.rows.hard and self.columns.hard):
            g = torch.where(self.symmetric, _fit(self.f, self.g), self.g)
            a, b = self.rows.target(a, self.f), self.columns.target(b, g)
        least = self.least[:, None]
        rows = torch.where((self.r > 0) | (a <= least), (self.r - a).abs(), torch.inf).sum(1)
        columns = torch.where((self.c > 0) | (b <= least), (self.c - b).abs(), torch.inf).sum(1)
        return (rows + columns) / self.mass

    def _values(self, epsilon: float) -> tuple[Tensor, Tensor]:
        """Dual and primal value of each problem at the current potentials (DESIGN: OT_eps with KL to ``a b^T``)."""
        g = torch.where(self.symmetric, _fit(self.f, self.g), self.g)
        entropy = epsilon * (self.r.sum(1) - self.a.sum(1) * self.b.sum(1))
        dual = self.rows.dual(self.a, self.f) + self.columns.dual(self.b, g) - entropy
        primal = (self.r * self.f).sum(1) + (self.c * g).sum(1) - entropy
        return dual, primal + self.rows.primal(self.r, self.a) + self.columns.primal(self.c, self.b)


def _fit(f: Tensor, like: Tensor) -> Tensor:
    """``f`` cut or padded to the columns of ``like``."""
    return torch.nn.functional.pad(f, (0, like.shape[1] - f.shape[1]))
