"""The solver's loop over a batch of problems: its variables, its steps and its looks at the error.

The steps are those of :mod:`otdd_flash.sinkhorn.solver`, which decides what to do when.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from otdd_flash.ops.base import PlanOperator
from otdd_flash.ops.steps import vectors_of
from otdd_flash.sinkhorn.aggregate import Groups, aggregated_step, ground_groups
from otdd_flash.sinkhorn.anderson import Anderson, FusedAnderson
from otdd_flash.sinkhorn.certificate import feasible_values
from otdd_flash.sinkhorn.penalty import Penalty, best_shift
from otdd_flash.sinkhorn.recording import Recorder
from otdd_flash.sinkhorn.schedule import annealing
from otdd_flash.types import Potentials

if TYPE_CHECKING:
    from otdd_flash.sinkhorn.solver import Progress, SolverOptions

_SYMMETRIC_STEP = 2.0 / 3.0
_ANNEALING_OMEGA = 1.5
_STAGE_TOL = 5e-3
_STAGE_PASSES = 100
_NEGLIGIBLE = 1e-12  # mass, as a fraction of the whole, whose loss to underflow is no loss
_PATIENCE = 40  # passes in which an error must halve
_FLAT = (12, 1e-3)  # passes after which an error must not be the same to this fraction
_SEPARATED = 0.9  # share of an error that lies between groups and not within them, by which groups are recognized
_BETWEEN = 0.6  # share from which a two-level step pays, where there are groups
_GROUPS_ON_GPU = 32  # each takes a pass there
_GROWTH = 3.0  # of an error that a two-level step may bring at first
_HELPS = 0.9  # of an error that may be left until the next such step
_REGROUP_EVERY = 5  # passes from one two-level step to the next
_SMALL = 1 << 24  # scores of all problems, whose pass takes no time beside what it costs to record another
_EXACT = 1e-13  # L1 error of the groups' masses, as a fraction of the mass, that a two-level step leaves


class Loop:
    """Potentials, marginals and errors of a batch on their way; see :func:`otdd_flash.sinkhorn.solver.solve`.

    Args:
        operator: costs and weights.
        options: method and penalties.
        progress: called with (stage, passes done, worst marginal error).
    """

    def __init__(self, operator: PlanOperator, options: SolverOptions, progress: Progress | None) -> None:
        self.operator, self.options, self.progress = operator, options, progress
        self.a, self.b = operator.a, operator.b
        self.cross = torch.tensor([i != j for i, j in operator.problems])  # on the host
        self.symmetric = ~self.cross.to(self.a.device)[:, None]
        self.mass = ((self.a.sum(1) + self.b.sum(1)) / 2).clamp_min(torch.finfo(torch.float64).tiny)
        self.rows, self.columns = (
            Penalty([options.penalty_of(problem[side]) for problem in operator.problems], self.a.device)
            for side in (0, 1)
        )
        self.error = torch.zeros_like(self.mass)
        self.least = _NEGLIGIBLE * self.mass
        self.turn = torch.ones_like(self.mass[:1])  # 1 where rows are next, 0 where columns are
        kernels = self.rows.hard and self.columns.hard and options.relaxation is None
        self.vectors = vectors_of(operator, self.cross) if kernels else None
        if self.vectors is not None:
            self.f, self.r = torch.zeros_like(self.a), torch.zeros_like(self.a)
            self.g, self.c = torch.zeros_like(self.b), torch.zeros_like(self.b)
        else:
            self._join_sides()
        self.rows_next = True  # the same on the host, for annealing by kernels
        self.live = torch.zeros(len(self.mass), dtype=torch.int32, device=self.a.device)  # one for an active problem
        self.active = torch.zeros(len(self.mass), dtype=torch.bool)  # the same on the host
        sizes = [(operator.cost.clouds[i].n, operator.cost.clouds[j].n) for i, j in operator.problems]
        self.small = sum(n * m for n, m in sizes) <= _SMALL
        # problems that a pass does: all active ones, and few others
        self.covered = torch.ones_like(self.active) if self.small and self.vectors is not None else self.active
        self.chosen: dict[tuple[bool, ...], Tensor] = {}  # of active problems, (B, 1) bool
        self.passes = 0
        self.done = torch.zeros(len(self.mass), dtype=torch.bool)  # on the host: problems to leave as they are
        self.stalled = torch.zeros_like(self.done)
        self.iterations = torch.zeros(len(self.mass), dtype=torch.int64)  # passes at the target, on the host
        self.history: list[tuple[float, ...]] = []
        self.groups: dict[int, Groups] = {}  # of the problems that take two-level steps
        self.epsilon = math.nan
        self.regrouped: dict[int, float] = {}  # error at the last of these steps at the target
        self.leave = 0.0  # marginal error that need not be lowered: that of a stage of annealing
        self.advance: Callable[[Tensor], None] = _no_step
        self.acceleration: Anderson | FusedAnderson | None = None

    def _join_sides(self) -> None:
        """Keep both sides of a problem in one row ``(B, N + M)``: tensor operations then serve both at once."""
        n = self.a.shape[1]
        self.weights = torch.cat([self.a, self.b], 1)
        self.potentials, self.sums = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.f, self.g = self.potentials[:, :n], self.potentials[:, n:]
        self.r, self.c = self.sums[:, :n], self.sums[:, n:]
        self.first = torch.arange(self.weights.shape[1], device=self.a.device)[None] < n
        self.idle = self.symmetric & ~self.first

    def load(self, initial: list[Potentials]) -> None:
        """Take given potentials as the start."""
        for p, (f, g) in enumerate(initial):
            self.f[p] = self.operator.pack_rows(f.to(self.f), p)
            self.g[p] = self.operator.pack_columns(g.to(self.g), p)

    def anneal_all(self, levels: list[float], steps: Tensor) -> None:
        """One step at each of the falling epsilons ``levels``; each problem takes the last ``steps (B,)`` of them.

        Sides take turns, counted from the end. Symmetric problems join at the last level: every point has itself at no
        cost, so that a cold start is no worse than the trouble of an annealed one.
        """
        for left in range(len(levels), 0, -1):
            active = (steps >= left) & (self.cross | (left == 1))
            if bool(active.any()):
                self._anneal(levels[-left], active, rows=left % 2 == 0)
            self._tell("anneal", math.nan)
        self.turn.fill_(1.0)
        self.rows_next = True

    def _anneal(self, epsilon: float, active: Tensor, *, rows: bool) -> None:
        """One over-relaxed step of one side at an intermediate epsilon."""
        self.passes += 1
        if self.vectors is not None:
            live = self._live(active)
            sums = self.operator.marginals(self.f, self.g, epsilon, self.covered)
            self.vectors.anneal(
                (self.f, self.g), sums, live, epsilon=epsilon, rows_by=_ANNEALING_OMEGA * rows,
                columns_by=_ANNEALING_OMEGA * (not rows), symmetric_by=_SYMMETRIC_STEP,
            )  # fmt: skip
            return
        self._marginals(epsilon, active)
        self.turn.fill_(float(rows))
        step = self._alternate(self._residuals(epsilon), _ANNEALING_OMEGA)
        self.potentials.add_(self._of_live(step, 0.0, active), alpha=epsilon)

    def descend(self, largest: float, epsilon: float) -> None:
        """Anneal the unfinished problems from the start, each stage converged a little, groups and all."""
        live = ~self.done.to(self.a.device)[:, None]
        for potential in (self.f, self.g):
            potential.masked_fill_(live, 0.0)
        goal = torch.full_like(self.done, max(self.options.tol, _STAGE_TOL), dtype=torch.float64)
        kept, before = self.iterations.clone(), len(self.history)
        self.leave = _STAGE_TOL
        for eps in annealing(largest, epsilon, self.options.scaling):
            self.begin(eps)
            self.run(goal, int(self.iterations.max()) + _STAGE_PASSES, patient=True)
            self._regroup(~self.done)
            self._tell("anneal", math.nan)
        self.leave = 0.0
        self.iterations = kept
        del self.history[before:]

    def begin(self, epsilon: float) -> None:
        """Evaluate the unfinished problems at an epsilon and forget the steps before."""
        self.epsilon = epsilon
        self._evaluate(epsilon, ~self.done)
        self.passes += 1
        self.advance = self._advance(epsilon)

    def resume(
        self, epsilon: float, moved: Tensor, advance: Callable[[Tensor], None],
        acceleration: Anderson | FusedAnderson | None,
    ) -> None:  # fmt: skip
        """Go on at an epsilon with the steps of before, after the ``moved`` problems were elsewhere."""
        self.epsilon = epsilon
        self._evaluate(epsilon, moved)
        self.passes += 1
        self.advance, self.acceleration = advance, acceleration
        self.forget(moved)

    def run(self, goal: Tensor, limit: int, *, patient: bool) -> None:
        """Passes until all unfinished problems are at their goal, the limit is reached or one stands still.

        Args:
            goal: ``(B,)`` marginal errors, on the host.
            limit: of a problem's passes at the target.
            patient: go on where an error stands still; else ``stalled`` says where one did.
        """
        every, goals, done = self.options.check_every, goal.tolist(), self.done.tolist()
        looks: list[tuple[float, ...]] = []
        active = torch.zeros_like(self.done)
        self.stalled = torch.zeros_like(self.done)
        for step in itertools.count():
            last = int(self.iterations.max()) >= limit
            if step % every == 0 or last:
                look = tuple(self.error.tolist())
                looks.append(look)
                self.history.append(look)
                flags = [not (d or error <= g) for d, error, g in zip(done, look, goals, strict=True)]
                if step == 0 or flags != active.tolist():
                    active = torch.tensor(flags)
                self._tell("iterate", _worst(look))
                if last or not any(flags):
                    return
                if not patient and any(
                    still := [f and s for f, s in zip(flags, _stand_still(looks, every), strict=True)]
                ):
                    self.stalled = torch.tensor(still)
                    return
                if not all(math.isfinite(error) for f, error in zip(flags, look, strict=True) if f):
                    self._restart(self.epsilon)
                    self.advance = self._advance(self.epsilon)
                elif self.groups and step % _REGROUP_EVERY == 0:
                    self._regroup(active & (self._between() > _BETWEEN * torch.tensor(look, dtype=torch.float64)))
            self.advance(active)
            self.passes += 1
            self.iterations += active

    def forget(self, problems: Tensor) -> None:
        """Start the acceleration of some problems anew: they were moved by something else than its steps."""
        if self.acceleration is not None:
            self.acceleration.forget(problems.to(self.a.device))

    def close(self) -> None:
        """Let go of the steps' history and recordings, which refer to this."""
        self.advance, self.acceleration = _no_step, None

    def dual_values(self) -> Tensor:
        """``(B,)`` dual values of the present potentials, lower bounds of the optimal ones; on the host."""
        rest = self.epsilon * (self.r.sum(1) - self.a.sum(1) * self.b.sum(1))
        return (self.rows.dual(self.a, self.f) + self.columns.dual(self.b, self.second) - rest).cpu()

    def feasible_values(self, active: Tensor) -> Tensor:
        """``(B,)`` primal values of feasible plans of the ``active`` problems, upper bounds; on the host."""
        self.passes += 1
        return feasible_values(
            self.operator, self.epsilon, (self.f, self.second), (self.r, self.c), (self.rows, self.columns), active
        )

    @property
    def second(self) -> Tensor:
        """``(B, M)`` second potentials; of a symmetric problem the first."""
        return torch.where(self.symmetric, _fit(self.f, self.g), self.g)

    def form_groups(self, problems: Tensor, count: int) -> None:
        """Let the cross problems among ``problems`` whose error lies between groups take two-level steps.

        Unbalanced problems take none: mass that is missing need not come from another group.
        """
        for p in (problems & self.cross).nonzero()[:, 0].tolist():
            affordable = count <= _GROUPS_ON_GPU or self.operator.info.backend != "triton"
            if affordable and float(self.rows.inverse[p]) == 0 == float(self.columns.inverse[p]):
                i, j = self.operator.problems[p]
                self.groups[p] = ground_groups(self.operator.cost, i, j, count)
        between = self._between() / self.error.cpu()
        self.groups = {p: groups for p, groups in self.groups.items() if float(between[p]) > _SEPARATED}

    def _regroup(self, problems: Tensor) -> None:
        """One two-level step of the problems that have groups, and their evaluation.

        Mass that arrives between groups arrives at a few of their points, so that the error need not fall at once. A
        step after which it has grown is undone; at the target, a problem whose error has not fallen from one such step
        to the next takes no more.
        """
        before = self.error.to("cpu", copy=True)
        if not self.leave:
            idle = [p for p in self.groups if problems[p] and before[p] > _HELPS * self.regrouped.get(p, math.inf)]
            self.groups = {p: groups for p, groups in self.groups.items() if p not in idle}
        chosen = [p for p in self.groups if bool(problems[p])]
        if not chosen:
            return
        op, moved, kept = self.operator, torch.zeros_like(self.done), (self.f.clone(), self.g.clone())
        for p in chosen:
            old = Potentials(op.unpack_rows(self.f[p], p), op.unpack_columns(self.g[p], p))
            new = aggregated_step(op, p, old, self.epsilon, self.groups[p], goal=_EXACT * float(self.mass[p]))
            self.f[p], self.g[p] = op.pack_rows(new.f, p), op.pack_columns(new.g, p)
            moved[p] = True
            if not self.leave:
                self.regrouped[p] = float(before[p])
        self._evaluate(self.epsilon, moved)
        undone = moved & ~(self.error.cpu() <= torch.clamp(_GROWTH * before, min=self.leave))
        if bool(undone.any()):
            back = undone.to(self.f.device)[:, None]
            self.f.copy_(torch.where(back, kept[0], self.f))
            self.g.copy_(torch.where(back, kept[1], self.g))
            self._evaluate(self.epsilon, undone)
        self.passes += 2
        self.iterations += 2 * moved
        self.forget(moved)

    def _between(self) -> Tensor:
        """``(B,)`` L1 errors of the masses of groups, as fractions of the mass; zero where there are no groups."""
        out = torch.zeros(len(self.done), dtype=torch.float64)
        for p, groups in self.groups.items():
            missing = (
                (groups.rows, self.operator.unpack_rows(self.r[p] - self.a[p], p)),
                (groups.columns, self.operator.unpack_columns(self.c[p] - self.b[p], p)),
            )
            sums = [torch.zeros(groups.count, dtype=m.dtype, device=m.device).index_add_(0, g, m) for g, m in missing]
            out[p] = float((sums[0].abs().sum() + sums[1].abs().sum()) / self.mass[p])
        return out

    def _tell(self, stage: str, error: float) -> None:
        if self.progress is not None:
            self.progress(stage, self.passes, error)

    def _advance(self, epsilon: float) -> Callable[[Tensor], None]:
        """A function that takes one step of the active problems and evaluates them, recorded where that pays."""
        move, recorder = self._method(epsilon), Recorder(self.operator)

        def step(active: Tensor) -> None:
            move(active)
            self._evaluate(epsilon, active)

        def advance(active: Tensor) -> None:
            self._live(active)  # made here: nothing may come from the host while a step is recorded
            recorder.run(tuple(self.covered.tolist()), lambda: step(active))

        return advance

    def _method(self, epsilon: float) -> Callable[[Tensor], None]:
        """A function that moves the active problems by a step from where they were evaluated."""
        options = self.options
        if self.vectors is not None:
            self.acceleration = fused = FusedAnderson(self.vectors, float(self.rows_next))
            return lambda active: fused.advance(
                (self.f, self.g), (self.r, self.c), self.error, self._live(active), epsilon
            )
        method = Anderson(self.weights, self.idle, self.symmetric) if options.relaxation is None else None
        self.acceleration = method

        def move(active: Tensor) -> None:
            step = self._residuals(epsilon)
            change = self._alternate(step, options.relaxation or 1.0)
            if method is None:
                self.potentials.add_(self._of_live(change, 0.0, active), alpha=epsilon)
            elif self.a.device.type != "cpu":
                change = method.step(self.potentials, step, change, self.error, epsilon)
                self.potentials.add_(self._of_live(change, 0.0, active), alpha=epsilon)
            else:
                rows = active.nonzero()[:, 0]
                method.hold(rows)
                if len(rows) == len(active):
                    self.potentials.add_(method.step(self.potentials, step, change, self.error, epsilon), alpha=epsilon)
                    return
                change = method.step(self.potentials[rows], step[rows], change[rows], self.error[rows], epsilon)
                self.potentials.index_add_(0, rows, change, alpha=epsilon)

        return move

    def _live(self, active: Tensor) -> Tensor:
        """``(B,)`` int32 on the device, one for an active problem.

        A GPU's pass goes on with finished problems until half of what it does is idle, or to the end where a pass takes
        less time than a recording: its list of tiles and its recording belong to what it covers, and are made but a few
        times. What is no longer active stays as it is.
        """
        if not torch.equal(active, self.active):
            self.active = active.clone()
            self.live.copy_(active)
            within = not bool((active & ~self.covered).any())
            busy = self.small or 2 * int(active.sum()) > int(self.covered.sum())
            if not (self.vectors is not None and within and busy):
                self.covered = self.active
        return self.live

    def _of_live(self, new: Tensor, kept: Tensor | float, active: Tensor) -> Tensor:
        """``(B, ...)`` entries of ``new`` for active problems, of ``kept`` for the others."""
        flags = tuple(active.tolist())
        if all(flags):
            return new
        if flags not in self.chosen:
            self.chosen[flags] = active.to(self.a.device)[:, None]
        return torch.where(self.chosen[flags], new, kept)

    def _evaluate(self, epsilon: float, active: Tensor) -> None:
        """The marginals and the error of the active problems at the current potentials, in place."""
        if self.vectors is None:
            self._marginals(epsilon, active)
            self.error.copy_(self._marginal_error())
            return
        live = self._live(active)
        new = self.operator.marginals(self.f, self.g, epsilon, self.covered)
        torch.div(self.vectors.measure(new, (self.r, self.c), live, self.least), self.mass, out=self.error)

    def _marginals(self, epsilon: float, active: Tensor) -> None:
        """One pass."""
        if not (self.rows.hard and self.columns.hard):
            self._shift()
        marginals = self.operator.marginals(self.f, self.g, epsilon, active)
        for kept, new in zip((self.r, self.c), marginals, strict=True):
            kept.copy_(self._of_live(new, kept, active))

    def _shift(self) -> None:
        """Move mass between the potentials of unbalanced cross problems: a better dual value of the same plan."""
        shift = best_shift(self.a, self.b, self.f, self.g, self.rows, self.columns)
        shift = torch.where(self.symmetric | ~shift.isfinite(), 0.0, shift)
        self.f.add_(shift)
        self.g.sub_(shift)

    def _residuals(self, epsilon: float) -> Tensor:
        """Full Sinkhorn steps of both potentials in epsilons; a symmetric problem's second one is zero."""
        if self.rows.hard and self.columns.hard:
            step = self.rows.step(self.potentials, self.weights, self.sums, epsilon)
        else:
            step = torch.cat([self.rows.step(self.f, self.a, self.r, epsilon),
                              self.columns.step(self.g, self.b, self.c, epsilon)], 1)  # fmt: skip
        return step.masked_fill_(self.idle, 0.0)

    def _alternate(self, step: Tensor, omega: float) -> Tensor:
        """The step of one side of the cross problems, sides taking turns, and the damped step of symmetric ones."""
        factor = omega * torch.where(self.first, self.turn, 1 - self.turn)
        self.turn.copy_(1 - self.turn)
        return torch.where(self.symmetric, _SYMMETRIC_STEP, factor).mul_(step)

    def _restart(self, epsilon: float) -> None:
        """Two safe half steps, for sums that came out zero or infinite."""
        for potential in (self.f, self.g):
            potential.nan_to_num_(0.0, 0.0, 0.0)
        f = self.rows.damping(epsilon) * self.operator.softmin(self.second, epsilon, side="rows")
        self.f.copy_(torch.where(self.symmetric, (self.f + f) / 2, f))
        self.g.copy_(self.columns.damping(epsilon) * self.operator.softmin(self.f, epsilon, side="columns"))
        self._evaluate(epsilon, torch.ones_like(self.cross))

    def _marginal_error(self) -> Tensor:
        """``(|r - a'|_1 + |c - b'|_1) / mass`` where ``a' = a exp(-f / rho)`` in an unbalanced problem.

        Infinite where a sum vanished or overflowed, which calls for :meth:`_restart`.
        """
        target = self.weights
        if not (self.rows.hard and self.columns.hard):
            target = torch.cat([self.rows.target(self.a, self.f), self.columns.target(self.b, self.second)], 1)
        off = (self.sums - target).abs_()
        there = (self.sums > 0) | (target <= self.least[:, None])
        return torch.where(there, off, torch.inf).sum(1) / self.mass


def _no_step(active: Tensor) -> None:
    """What advances a loop that has not begun."""


def _worst(errors: tuple[float, ...]) -> float:
    """The largest; NaN where there is one."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _stand_still(looks: list[tuple[float, ...]], every: int) -> list[bool]:
    """Of each problem whether its error fell too little in the last passes, from the errors at all looks."""
    back, flat = _PATIENCE // every, _FLAT[0] // every
    still = [False] * len(looks[-1])
    if len(looks) > flat:
        still = [abs(now - old) <= _FLAT[1] * now for now, old in zip(looks[-1], looks[-1 - flat], strict=True)]
    if len(looks) > back:
        still = [s or now > old / 2 for s, now, old in zip(still, looks[-1], looks[-1 - back], strict=True)]
    return still


def _fit(f: Tensor, like: Tensor) -> Tensor:
    """``f`` cut or padded to the columns of ``like``."""
    return torch.nn.functional.pad(f, (0, like.shape[1] - f.shape[1]))
