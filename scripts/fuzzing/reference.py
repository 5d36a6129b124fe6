"""Dense float64 reference of entropic transport: two numbers between which the value lies, whatever the potentials.

    OT(a, b) = min_P <P, C> + eps KL(P | a b^T) + rho_x KL(P 1 | a) + rho_y KL(P^T 1 | b)

Any potentials give a dual value below it, any plan a primal value above it, so the interval is a proof and not an
estimate; how it was found does not matter. It is found by Newton steps on the semi-dual, the concave function of ``g``
alone that remains when ``f`` is solved for, while epsilon falls from the largest cost. All sums are taken in the log
domain. The Hessian is a graph Laplacian whose diagonal is summed from its off-diagonal entries, so that masses of
1e-13 which have to move between groups of points far apart are still seen.

Nothing here is shared with the library: numpy and scipy alone, and cost matrices as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Array = np.ndarray
LEVEL_FACTOR = 4.0
LEVEL_ERROR = 1e-10  # marginal error of the levels above the target: the small masses must be right on every one
TARGET_ERROR = 2e-14
STEPS = 120  # Newton steps allowed at one level
RIDGES = (0.0, 1e-15, 1e-12, 1e-8)
"""Added to the Hessian in shares of the column sums, the first that gives it a factor: groups of points that exchange
no mass make it singular."""
NEAR = 3.0  # epsilons: a longer step is followed by a second one
PATIENCE = 5  # steps without a smaller error, after which it is rounding


class Interval(NamedTuple):
    """Bounds of one transport value, or of a sum of such values."""

    lower: float
    upper: float

    @property
    def middle(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def width(self) -> float:
        return self.upper - self.lower

    def distance(self, value: float) -> float:
        """How far a value lies outside."""
        return max(self.lower - value, value - self.upper, 0.0)


@dataclass(frozen=True)
class Transport:
    """Costs ``(n, m)``, positive weights ``(n,), (m,)``, epsilon, and penalties, where ``inf`` is a constraint."""

    cost: Array
    a: Array
    b: Array
    epsilon: float
    rho_x: float = math.inf
    rho_y: float = math.inf

    @property
    def balanced(self) -> bool:
        return math.isinf(self.rho_x) and math.isinf(self.rho_y)

    def at(self, epsilon: float) -> Transport:
        return Transport(self.cost, self.a, self.b, epsilon, self.rho_x, self.rho_y)


class State(NamedTuple):
    """Potentials, their plan, its marginals, the marginals that they ask for, and the L1 error."""

    f: Array
    g: Array
    plan: Array
    r: Array
    c: Array
    wanted_r: Array
    wanted_c: Array
    error: float


Evaluate = Callable[[Transport, Array], State]
Step = Callable[[Transport, State], State]


def bounds(
    cost: Array, a: Array, b: Array, epsilon: float, rho: tuple[float, float] = (math.inf, math.inf)
) -> Interval:
    """Interval of ``OT(a, b)``; points of weight zero are left out."""
    rows, columns = a > 0, b > 0
    problem = Transport(cost[rows][:, columns], a[rows], b[columns], epsilon, *rho)
    if problem.cost.shape[0] < problem.cost.shape[1]:  # Newton's matrix is that of the columns
        problem = Transport(problem.cost.T, problem.b, problem.a, epsilon, rho[1], rho[0])
    return interval(problem, descend(problem, evaluate, newton_step))


def self_bounds(cost: Array, a: Array, epsilon: float, rho: float = math.inf) -> Interval:
    """Interval of ``OT(a, a)`` for symmetric costs, where both potentials are one."""
    keep = a > 0
    problem = Transport(cost[keep][:, keep], a[keep], a[keep], epsilon, rho, rho)
    return interval(problem, descend(problem, evaluate_symmetric, symmetric_step))


def descend(problem: Transport, evaluate_: Evaluate, step: Step) -> State:
    """The best potentials found at the target, epsilon falling from the largest cost by ``LEVEL_FACTOR``."""
    levels = [max(float(problem.cost.max()), problem.epsilon)]
    while levels[-1] > problem.epsilon * LEVEL_FACTOR:
        levels.append(levels[-1] / LEVEL_FACTOR)
    known: list[tuple[float, Array]] = []
    for epsilon in [*levels, problem.epsilon]:
        level = problem.at(epsilon)
        tries = [evaluate_(level, g) for g in predictions(known, epsilon, len(problem.b))]
        state = min(tries, key=lambda s: s.error if math.isfinite(s.error) else math.inf)
        state = ascend(level, state, step, TARGET_ERROR if epsilon == problem.epsilon else LEVEL_ERROR)
        known.append((epsilon, state.g))
    return state


def predictions(known: list[tuple[float, Array]], epsilon: float, size: int) -> list[Array]:
    """Starts for the next epsilon: the last potentials, and the line through the last two.

    A potential that has to carry a mass ``p`` between far groups is ``C + eps log p``: linear in epsilon.
    """
    if not known:
        return [np.zeros(size)]
    if len(known) == 1 or known[-1][0] == known[-2][0]:
        return [known[-1][1]]
    (e0, g0), (e1, g1) = known[-2:]
    return [g1, g1 + (g1 - g0) * ((epsilon - e1) / (e1 - e0))]


def ascend(problem: Transport, state: State, step: Step, goal: float) -> State:
    """Steps until the marginals are met or rounding rules."""
    best, waited = state, 0
    for _ in range(STEPS):
        if best.error <= goal * problem.a.sum() or (waited > PATIENCE and best.error < 1e-9 * problem.a.sum()):
            break
        state = step(problem, state)
        waited = 0 if state.error < 0.9 * best.error else waited + 1
        if state.error < best.error:
            best = state
    return best


def evaluate(problem: Transport, g: Array) -> State:
    """The state of ``g`` with the best ``f``: rows are met exactly, and no sum can overflow."""
    eps = problem.epsilon
    scores = (g - problem.cost) / eps + np.log(problem.b)
    top = scores.max(1)
    scores = np.exp(scores - top[:, None])
    sums = scores.sum(1)
    f = -damping(problem.rho_x, eps) * eps * (top + np.log(sums))
    r = wanted(problem.a, f, problem.rho_x)
    plan = scores * (r / sums)[:, None]
    c, target = plan.sum(0), wanted(problem.b, g, problem.rho_y)
    return State(f, g, plan, r, c, r, target, float(np.abs(c - target).sum()))


def damping(rho: float, eps: float) -> float:
    return 1.0 / (1.0 + eps / rho)


def wanted(weights: Array, potential: Array, rho: float) -> Array:
    """The marginal ``a e^{-f/rho}`` that a plan has where its potential is optimal."""
    return weights if math.isinf(rho) else weights * np.exp(np.clip(-potential / rho, -745.0, 700.0))


def sinkhorn_step(problem: Transport, state: State) -> State:
    """The best ``g`` for the state's ``f``."""
    turned = Transport(problem.cost.T, problem.b, problem.a, problem.epsilon, problem.rho_y, problem.rho_x)
    return evaluate(problem, evaluate(turned, state.f).f)


def newton_step(problem: Transport, state: State) -> State:
    """One damped Newton step of the semi-dual, or a Sinkhorn step where there is none.

    A long step is mostly a shift of groups that hardly exchange mass, of which no other error is reduced: a second one,
    with a ridge that holds the groups, follows.
    """
    first, size = damped_newton(problem, state, RIDGES)
    if first is None:
        return sinkhorn_step(problem, state)
    if size < NEAR:
        return first
    second, _ = damped_newton(problem, first, RIDGES[-1:])
    return second if second is not None and second.error < first.error else first


def damped_newton(problem: Transport, state: State, ridges: tuple[float, ...]) -> tuple[State | None, float]:
    """The step with the first ridge for which the Hessian has a factor, and its length in epsilons."""
    eps, kappa = problem.epsilon, damping(problem.rho_x, problem.epsilon)
    scaled = np.divide(state.plan, state.r[:, None], out=np.zeros_like(state.plan), where=state.r[:, None] > 0)
    links = kappa * (state.plan.T @ scaled)
    np.fill_diagonal(links, 0.0)
    diagonal = links.sum(1) + (1 - kappa) * state.c + eps / problem.rho_y * state.wanted_c
    gradient = state.wanted_c - state.c
    for ridge in ridges:
        direction = laplacian_solve(links, diagonal + ridge * state.c, eps * gradient, grounded=problem.balanced)
        if direction is None:
            continue
        # how far exponents move: f follows a common shift of g but for the part that its penalty holds back
        span, most = float(np.ptp(direction)), float(np.abs(direction).max())
        size = (kappa * span + (1 - kappa) * most) / eps + most / problem.rho_y
        return search(problem, state, direction, size, evaluate), size
    return None, 0.0


def search(problem: Transport, state: State, direction: Array, size: float, evaluate_: Evaluate) -> State | None:
    """A step along an ascent direction: ``log(1 + size)/size`` of it, which a sum of exponentials allows, or less."""
    slope = float(direction @ (state.wanted_c - state.c))
    if not (math.isfinite(size) and size > 0 and slope > 0):
        return None
    length = math.log1p(size) / size
    for _ in range(12):
        found = evaluate_(problem, state.g + length * direction)
        if math.isfinite(found.error) and float(direction @ (found.wanted_c - found.c)) > -0.5 * slope:
            return found
        length /= 3
    return None


def laplacian_solve(links: Array, diagonal: Array, right: Array, *, grounded: bool) -> Array | None:
    """``(diag(diagonal) - links) h = right``; with ``grounded`` the last entry is zero, for a kernel of constants."""
    size = len(right) - grounded
    out = np.zeros_like(right)
    if size == 0:
        return out
    try:
        factor = cho_factor(np.diag(diagonal[:size]) - links[:size, :size])
    except (np.linalg.LinAlgError, ValueError):  # not positive, not finite
        return None
    out[:size] = cho_solve(factor, right[:size], check_finite=False)
    return out if np.isfinite(out).all() else None


def evaluate_symmetric(problem: Transport, f: Array) -> State:
    """The state of ``f = g`` for a cloud against itself."""
    with np.errstate(over="ignore"):
        plan = np.exp((f[:, None] + f[None, :] - problem.cost) / problem.epsilon) * problem.a[:, None] * problem.b
    r, target = plan.sum(1), wanted(problem.a, f, problem.rho_x)
    return State(f, f, plan, r, r, target, target, float(np.abs(r - target).sum()))


def symmetric_step(problem: Transport, state: State) -> State:
    """One damped Newton step in the one potential; every point has itself at no cost, so this is well-conditioned."""
    eps = problem.epsilon
    matrix = state.plan + np.diag(state.r + eps / problem.rho_x * state.wanted_r)
    try:
        factor = cho_factor(matrix, check_finite=False)
    except (np.linalg.LinAlgError, ValueError):
        return averaged_step(problem, state)
    direction = cho_solve(factor, eps * (state.wanted_r - state.r), check_finite=False)
    size = 2 * float(np.abs(direction).max()) / min(eps, 2 * problem.rho_x)
    return search(problem, state, direction, size, evaluate_symmetric) or averaged_step(problem, state)


def averaged_step(problem: Transport, state: State) -> State:
    """Half a Sinkhorn step."""
    return evaluate_symmetric(problem, (state.f + evaluate(problem, state.f).f) / 2)


def interval(problem: Transport, state: State) -> Interval:
    """Dual value of the state's potentials and primal value of its plan, made feasible; widened by their rounding."""
    eps, masses = problem.epsilon, problem.a.sum() * problem.b.sum()
    terms = (dual_term(problem.a, state.f, problem.rho_x), dual_term(problem.b, state.g, problem.rho_y))
    lower = float(terms[0] + terms[1] - eps * (state.plan.sum() - masses))
    upper = primal_value(problem, state)
    size = float(problem.a @ np.abs(state.f) + problem.b @ np.abs(state.g)) + eps * (1 + masses)
    slack = 4e-15 * (size + (0.0 if problem.balanced else sum(map(abs, terms))))
    return Interval(lower - slack, max(upper, lower) + slack)


def dual_term(weights: Array, potential: Array, rho: float) -> float:
    if math.isinf(rho):
        return float(weights @ potential)
    return float(-rho * (weights @ np.expm1(np.clip(-potential / rho, -745.0, 700.0))))


def primal_value(problem: Transport, state: State) -> float:
    """Value of the plan of ``state`` after rounding to the constraints (Altschuler et al. 2017, algorithm 2).

    The plan is carried as its ratio to ``a b^T``, whose logarithm the entropy needs.
    """
    a, b, eps = problem.a, problem.b, problem.epsilon
    with np.errstate(under="ignore"):
        ratio = np.exp((state.f[:, None] + state.g[None, :] - problem.cost) / eps)
        hard = math.isinf(problem.rho_x), math.isinf(problem.rho_y)
        if hard[0]:
            shrunk = 1.0 / (ratio @ b)
            ratio *= (np.minimum(shrunk, 1.0) if hard[1] else shrunk)[:, None]
        if hard[1]:
            shrunk = 1.0 / (a @ ratio)
            ratio *= np.minimum(shrunk, 1.0) if hard[0] else shrunk
        if all(hard):
            missing = (np.maximum(1 - ratio @ b, 0.0), np.maximum(1 - a @ ratio, 0.0))
            total = float(a @ missing[0])
            if total > 0:
                ratio += missing[0][:, None] * missing[1][None, :] / total
    plan = ratio * a[:, None] * b[None, :]
    logs = np.log(ratio, out=np.zeros_like(ratio), where=ratio > 0)
    value = float((plan * (problem.cost + eps * logs)).sum()) - eps * float(plan.sum() - a.sum() * b.sum())
    for marginal, weights, rho in ((plan.sum(1), a, problem.rho_x), (plan.sum(0), b, problem.rho_y)):
        if not math.isinf(rho):
            value += rho * divergence(marginal, weights)
    return value


def divergence(p: Array, q: Array) -> float:
    """``KL(p | q) = sum p log(p/q) - p + q``."""
    logs = np.log(p / q, out=np.zeros_like(p), where=p > 0)
    return float((p * logs - p + q).sum())
