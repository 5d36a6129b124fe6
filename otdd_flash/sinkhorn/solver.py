"""Sinkhorn iterations over a batch of problems: anneal epsilon, then iterate until the marginals are met.

One pass of the operator gives both marginals of the current plan, and with them the residuals ``log(a / r)``,
``log(b / c)`` of both potentials. A cross problem alternates with over-relaxation while
epsilon falls, ``f <- f + omega eps log(a / r)`` (Thibault et al. 2017); at the target, Anderson acceleration combines
the last residuals, or a fixed guarded ``omega`` where one is asked for. A symmetric problem takes damped steps,
``f <- f + theta eps log(a / r)``: the linearised map has its spectrum in ``[0, 1]``, so ``theta = 2/3`` contracts by a
third a pass.

Unbalanced problems (``rho_x``, ``rho_y``) damp the steps and change the target marginals; see
:mod:`otdd_flash.sinkhorn.penalty`.

Marginals that are met do not bound the value. Once they are, one more pass gives each problem an interval that holds
its optimal value (:mod:`otdd_flash.sinkhorn.certificate`); a problem is converged when that is narrow enough, too, and
goes on otherwise. Problems that stand still, as those of separated groups do, take two-level steps
(:mod:`otdd_flash.sinkhorn.aggregate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number
from otdd_flash.ops.base import UNIT_ROUNDOFF, PlanOperator, exponent_roundoff, marginal_resolution, on_device
from otdd_flash.sinkhorn.absent import everywhere
from otdd_flash.sinkhorn.loop import Loop
from otdd_flash.sinkhorn.schedule import annealing
from otdd_flash.sinkhorn.terms import Solved, Term, allowed_gaps
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import Potentials

# Below this fraction of the largest cost a problem resembles an assignment: one pass an annealed epsilon leaves mass at
# the wrong partner, and the target needs thousands of passes to move it. Each stage is then converged a little. So it
# is between well-separated classes of slightly unequal mass at any epsilon: there the error is seen to stand still.
_CAREFUL_BELOW = 5e-4
_RESOLUTION = 1e-13  # smallest epsilon, as a fraction of the largest cost
_ACCURACY = 1e-3  # of a value, as a fraction, unless the tolerance is looser
_SMALL = 0.01  # of the mean cost: a value below it, and below epsilon, is known as well as if it were that large
_GROUPS = (32, 256)  # of a problem that stands still, and of one that stands still again
_GAP_OF_ERROR = 0.33  # typical gap, as a fraction of the marginal error times the mean cost
_FAR = 5e-3  # marginal error from which a problem that stands still starts again
_CLOSER = 0.5  # of the error at which a gap was too wide: the error to go for at most
_SUMS = 16  # unit roundoffs of float64: what sums over potentials and over problems can lose
_FLOOR = 8.0  # unit roundoffs: marginal errors that cannot be told from zero


@dataclass(frozen=True)
class SolverOptions:
    """How far and how to iterate.

    Args:
        tol: a problem is converged when the L1 marginal error of both sides together is at most this fraction of the
            mass, and its value is known to :attr:`accuracy`.
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

    @property
    def accuracy(self) -> float:
        """Error of a value that is needed for convergence, as a fraction.

        Of the value, or of epsilon or a hundredth of the mean cost, whichever of these two is smaller, where the value
        is less than that.
        """
        return max(self.tol, _ACCURACY)

    def penalty_of(self, cloud: int) -> float | None:
        """Strength of the penalty on marginals of one cloud of a cost.

        Raises:
            ValueError: a cloud beyond the second where the two strengths differ.
        """
        if cloud > 1 and self.rho_x != self.rho_y:
            raise ValueError(f"rho_x and rho_y name two clouds, but the problems reach cloud {cloud}: make them equal")
        return self.rho_y if cloud == 1 else self.rho_x


DEFAULT_OPTIONS = SolverOptions()


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class Solution:
    """Potentials of a batch of ``B`` problems in the operator's layout, with the certificate of each.

    Args:
        operator: costs and weights.
        epsilon: in units of the cost.
        options: tolerances and method.
        f, g: ``(B, N), (B, M)`` potentials.
        r, c: marginals of exactly these potentials.
        marginal_error: ``(B,)`` L1, both sides, as a fraction of the mass, with what the precision leaves open; on the
            host like the rest.
        iterations: ``(B,)`` passes at the target epsilon.
        converged: ``(B,)`` the marginal error is within the tolerance and the gap within what was allowed.
        dual: ``(B,)`` dual values, lower bounds of the optimal values.
        primal: ``(B,)`` primal values of feasible plans, upper bounds.
        passes: of the batch, all stages and the certificate together.
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
    passes: int = 0
    history: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    @property
    def gap(self) -> Tensor:
        """``(B,)`` width of the interval that holds the optimal value."""
        return (self.primal - self.dual).clamp_min(0.0)

    def solved(self, problem: int) -> Solved:
        """What is known of one problem."""
        return Solved(
            dual=float(self.dual[problem]), primal=float(self.primal[problem]), rounding=self.rounding(problem),
            marginal_error=float(self.marginal_error[problem]), iterations=int(self.iterations[problem]),
            converged=bool(self.converged[problem]), mass=float(self._masses[problem]),
        )  # fmt: skip

    def rounding(self, problem: int) -> float:
        """What the precision of the costs can change of a problem's value."""
        operator = self.operator
        roundoff = UNIT_ROUNDOFF[operator.info.precision] + _SUMS * UNIT_ROUNDOFF["fp64"]
        return roundoff * (operator.cost.bound(*operator.problems[problem]) + self.epsilon)

    @cached_property
    def _masses(self) -> Tensor:
        """``(B,)`` masses of the plans, on the host."""
        return self.r.sum(1).cpu()

    def potentials(self, problem: int) -> Potentials:
        """``f (n,), g (m,)`` of one problem in the clouds' own order, c-transforms at points of weight zero."""
        found = Potentials(
            self.operator.unpack_rows(self.f[problem], problem), self.operator.unpack_columns(self.g[problem], problem)
        )
        pair = self.operator.problems[problem]
        rho = self.options.penalty_of(pair[0]), self.options.penalty_of(pair[1])
        return everywhere(self.operator.cost, pair, found, self.epsilon, rho)


Progress = Callable[[str, int, float], None]


@plain_torch
def solve(
    operator: PlanOperator,
    epsilon: float,
    options: SolverOptions = DEFAULT_OPTIONS,
    *,
    terms: Sequence[Term] | None = None,
    initial: list[Potentials] | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Solve every problem of ``operator`` at ``epsilon``.

    Args:
        operator: costs and weights of ``B`` problems.
        epsilon: regularisation, in units of the cost.
        options: tolerances and method.
        terms: the values that are made of the problems and must be known to ``options.accuracy``; by default those of
            the single problems.
        initial: potentials to start from, one pair a problem (a warm start: no annealing).
        progress: called with (stage, passes done, worst marginal error).

    Returns:
        The solution with a certificate per problem; not converged is reported, not raised.

    Raises:
        ValueError: an epsilon that is not a positive number.
    """
    check_number("epsilon", epsilon)
    largest = torch.tensor([operator.cost.bound(i, j) for i, j in operator.problems], dtype=torch.float64)
    least = _RESOLUTION * float(largest.max())
    if epsilon < least:
        raise ValueError(
            f"epsilon={epsilon:g} is below what float64 resolves of costs up to {least / _RESOLUTION:g}: take at least "
            f"{least:.1g}, or an exact solver"
        )
    if terms is None:
        terms = [Term.of(p) for p in range(len(operator.problems))]
    with on_device(operator.a.device):
        run = _Run(operator, epsilon, options, terms, largest, progress)
        try:
            run.start(initial)
            return run.finish()
        finally:
            run.loop.close()


class _Run:
    """One solve: where it starts, how close it must come, and what it does where it stands still."""

    def __init__(
        self, operator: PlanOperator, epsilon: float, options: SolverOptions, terms: Sequence[Term], largest: Tensor,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.loop = Loop(operator, options, progress)
        self.epsilon, self.options, self.terms, self.largest = epsilon, options, terms, largest
        self.mean = operator.cost.means(operator.problems)
        precision = operator.info.precision
        self.resolution = marginal_resolution(precision, self.mean / epsilon)
        self.floor = torch.full_like(self.mean, _FLOOR * exponent_roundoff(precision))
        self.goal = torch.maximum(options.tol - self.resolution, self.floor).clamp_min(options.tol / 4)
        self.base = self.goal  # what the tolerance asks for; the gap may ask for more
        self.primal = torch.full_like(self.mean, torch.inf)
        self.careful = torch.zeros_like(self.loop.done)
        self.tries = 0

    def start(self, initial: list[Potentials] | None) -> None:
        """Take the given potentials, or anneal from the largest cost."""
        loop, scaling = self.loop, self.options.scaling
        if initial is not None:
            loop.load(initial)
        else:
            self.careful = self.epsilon < _CAREFUL_BELOW * self.largest
            steps = [len(annealing(bound, self.epsilon, scaling)) for bound in self.largest.tolist()]
            hasty = torch.where(self.careful, 0, torch.tensor(steps))
            loop.anneal_all(annealing(float(self.largest.max()), self.epsilon, scaling), hasty)
            self._descend(self.careful)
        loop.begin(self.epsilon)

    def finish(self) -> Solution:
        """Iterate and certify until every value is known well enough, or the passes are used up."""
        loop, options = self.loop, self.options
        while True:
            loop.run(self.goal, options.max_iterations, patient=False)
            error = loop.error.cpu()
            spent = int(loop.iterations.max()) >= options.max_iterations
            if bool(loop.stalled.any()) and not spent and self._unstick():
                continue
            dual = loop.dual_values()
            allowed = self._allowed(dual)
            if not spent and self._tighten(error, allowed):
                continue
            ready = spent | (error <= self.goal) | (loop.stalled & (error <= self.base))
            self._certify(ready & ~(self.primal - dual <= allowed))
            gap = (self.primal - dual).clamp_min(0.0)
            known = (error <= self.base) & (gap <= allowed)
            if spent or bool(known.all()) or not self._go_on(error, gap, allowed, known):
                return self._solution(dual, error, known)

    def _unstick(self) -> bool:
        """Two-level steps for what stands still; False where there is nothing left to try.

        A problem with groups starts again with them, as does one that a hasty start has left far from its solution.
        """
        if self.tries == len(_GROUPS):
            return False
        loop = self.loop
        loop.form_groups(loop.stalled, _GROUPS[self.tries])
        self.tries += 1
        far = (loop.error.cpu() > _FAR) & ~self.careful
        grouped = torch.tensor([p in loop.groups for p in range(len(far))])
        again = loop.stalled & (grouped | far)
        if self.tries == 1 and bool(again.any()):
            advance, acceleration = loop.advance, loop.acceleration
            self._descend(again)
            loop.resume(self.epsilon, again, advance, acceleration)
        return True

    def _descend(self, problems: Tensor) -> None:
        """Anneal some problems from the start, each stage converged a little; the others stay as they are."""
        if not bool(problems.any()):
            return
        loop = self.loop
        loop.done = ~problems
        loop.descend(float(self.largest[problems].max()), self.epsilon)
        loop.done = torch.zeros_like(loop.done)

    def _allowed(self, dual: Tensor) -> Tensor:
        """``(B,)`` largest gaps with which every term is known well enough, or as well as its precision allows."""
        accuracy = self.options.accuracy
        rounding = UNIT_ROUNDOFF[self.loop.operator.info.precision] * (self.largest + self.epsilon) / accuracy
        least = torch.where(self.mean > 0, _SMALL * self.mean, self.epsilon).clamp_max(self.epsilon)
        floor = (least * self.loop.mass.cpu()).clamp_min(rounding)
        return allowed_gaps(self.terms, dual, floor, accuracy)

    def _tighten(self, error: Tensor, allowed: Tensor) -> bool:
        """Ask for a smaller marginal error before the first certificate where it is all but sure to fail."""
        likely = (allowed / (_GAP_OF_ERROR * self.mean)).nan_to_num_(torch.inf)
        better = torch.maximum(likely, self.floor)
        fresh = self.primal.isinf() & (error <= self.goal) & (error > better)
        self.goal = torch.where(fresh, better, self.goal)
        return bool(fresh.any())

    def _certify(self, wanted: Tensor) -> None:
        """Upper bounds of the ``wanted`` problems, as they stand."""
        if not bool(wanted.any()):
            return
        found = self.loop.feasible_values(wanted)
        self.primal = torch.where(wanted, torch.minimum(found, self.primal), self.primal)

    def _go_on(self, error: Tensor, gap: Tensor, allowed: Tensor, known: Tensor) -> bool:
        """Set goals for what is not known well enough; False where the precision allows none."""
        closer = error * (allowed / gap * 0.8).clamp_max(_CLOSER)
        goal = torch.maximum(closer, self.floor)
        hopeful = ~known & (error > self.floor)
        self.goal = torch.where(hopeful & (error <= self.goal), goal, self.goal)
        return bool(hopeful.any())

    def _solution(self, dual: Tensor, error: Tensor, known: Tensor) -> Solution:
        loop, tol = self.loop, self.options.tol
        stated = error + self.resolution
        return Solution(
            operator=loop.operator, epsilon=self.epsilon, options=self.options, f=loop.f, g=loop.second, r=loop.r,
            c=loop.c, marginal_error=stated, iterations=loop.iterations, converged=known & (stated <= tol),
            dual=dual, primal=self.primal, passes=loop.passes, history=tuple(loop.history),
        )  # fmt: skip
