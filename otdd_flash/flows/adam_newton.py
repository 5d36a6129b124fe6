"""Adam, and the hybrid that watches the smallest eigenvalue, leaves saddles and ends with a trust region."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number, check_type, shown
from otdd_flash.flows.driver import Evaluation, Objective, State
from otdd_flash.flows.newton import TrustRegion
from otdd_flash.sinkhorn.krylov import Spectrum, lanczos

_DOUBLINGS = 25


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) on the same protocol, for comparison and as the first phase of :class:`AdamNewton`.

    Args:
        lr: step length, in units of the point.
        betas: decay of the moments.
        tol: gradient norm at which to stop.
    """

    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    tol: float = 1e-8

    def __post_init__(self) -> None:
        check_fields(self, check_number, "lr")
        check_fields(self, check_number, "tol", closed=True)
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise TypeError(f"betas must be two numbers in [0, 1), got {shown(self.betas)}")
        for beta in self.betas:
            check_number("betas", beta, high=1.0, closed=True)

    def init(self, objective: Objective, w: Tensor) -> State:
        """Evaluate the start."""
        at = objective(w)
        return State(w, at, self.lr, moments=(torch.zeros_like(w), torch.zeros_like(w), 0), best=(at.value, 0))

    def step(self, objective: Objective, state: State) -> State:
        """One step."""
        assert state.moments is not None
        first, second, count = state.moments
        g, count = state.at.gradient, count + 1
        first = torch.lerp(g, first, self.betas[0])
        second = torch.lerp(g.square(), second, self.betas[1])
        corrected = first / (1 - self.betas[0] ** count)
        spread = (second / (1 - self.betas[1] ** count)).sqrt() + 1e-12
        w = state.w - self.lr * corrected / spread
        at = objective(w)
        lowest, since = state.best
        best = (at.value, 0) if at.value < 0.999 * lowest else (lowest, since + 1)
        return replace(state, w=w, at=at, moments=(first, second, count), event="adam", best=best)

    def terminate(self, state: State) -> bool:
        """Gradient small."""
        return state.gradient_norm <= self.tol


@dataclass(frozen=True)
class AdamNewton:
    """Adam far away, Newton near by, and no rest at saddles.

    Every ``watch_every`` Adam steps, and when Adam no longer gains, the Hessian's smallest eigenvalue is looked at:

    - all positive: the trust region takes over;
    - negative where Adam no longer gains, or where Newton's gradient has vanished: a saddle. The point moves along the
      eigenvector, in the direction and by the length (doubled or halved) that lowers the objective most, and the trust
      region, which follows negative curvature, goes on from there;
    - else Adam goes on.

    It ends where the gradient vanishes and no eigenvalue is negative beyond ``saddle_tol``.

    Args:
        adam: first phase.
        newton: second phase; its ``tol`` is that of the whole.
        watch_every: Adam steps between looks at the spectrum.
        patience: Adam steps without a gain of 0.1 % that count as no gain.
        saddle_tol: an eigenvalue below ``-saddle_tol`` times the largest magnitude is negative.
        escape_length: first length tried, in units of the point.
        max_lanczos: Hessian products a look.
        seed: of the Lanczos start vectors.
    """

    adam: Adam = field(default_factory=Adam)
    newton: TrustRegion = field(default_factory=TrustRegion)
    watch_every: int = 25
    patience: int = 10
    saddle_tol: float = 1e-6
    escape_length: float = 0.1
    max_lanczos: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        check_type("adam", self.adam, Adam)
        check_type("newton", self.newton, TrustRegion)
        check_fields(self, check_number, "saddle_tol", closed=True)
        check_fields(self, check_number, "escape_length")
        check_fields(self, check_count, "watch_every", "patience", "max_lanczos")
        check_fields(self, check_count, "seed", least=0)

    def init(self, objective: Objective, w: Tensor) -> State:
        """Evaluate the start; Adam begins."""
        return replace(self.adam.init(objective, w), phase="adam")

    def step(self, objective: Objective, state: State) -> State:
        """A move of the phase, a look at the spectrum, or an escape."""
        if state.phase == "adam":
            flat = state.best[1] >= self.patience or self.adam.terminate(state)
            watch = state.event == "adam" and state.step % self.watch_every == 0
            if flat or watch:
                return self._look(objective, state, flat=flat)
            return self.adam.step(objective, state)
        if self.newton.terminate(state):
            return self._look(objective, state, flat=True)
        return self.newton.step(objective, state)

    def terminate(self, state: State) -> bool:
        """At a minimum: the look that found no negative eigenvalue at a vanished gradient was the last move."""
        return state.phase == "end"

    def _look(self, objective: Objective, state: State, *, flat: bool) -> State:
        """Decide by the smallest eigenvalue."""
        spectrum = smallest_eigenpair(state.at, state.w, seed=self.seed + state.step, max_steps=self.max_lanczos)
        smallest = float(spectrum.smallest[0])
        radius = max(abs(smallest), abs(float(spectrum.largest[0])))
        looked = replace(state, curvature=smallest, event="look")
        if smallest < -self.saddle_tol * radius:
            if not flat:
                return self.adam.step(objective, looked)
            escaped = escape(objective, looked, spectrum.smallest_vectors[:, 0], self.escape_length)
            return replace(escaped, phase="newton", scale=self.newton.radius, done=False)
        if state.phase == "newton":
            return replace(looked, phase="end")
        return replace(looked, phase="newton", scale=self.newton.radius, event="to newton")


def smallest_eigenpair(at: Evaluation, w: Tensor, *, seed: int = 0, max_steps: int = 60) -> Spectrum:
    """Both ends of the Hessian's spectrum at an evaluated point; vectors are flat."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(w.numel(), generator=generator, dtype=torch.float64).to(w)
    return lanczos(lambda v: at.hvp(v.reshape(w.shape)).reshape(-1), start, tol=1e-6, max_steps=max_steps)


def escape(objective: Objective, state: State, vector: Tensor, length: float) -> State:
    """Leave a saddle along ``+- vector``: the longest doubling, or the first halving, that lowers the objective.

    Where no length does, the state stays, marked as such and ended.
    """
    vector = vector.reshape(state.w.shape)
    down = -1.0 if float((state.at.gradient * vector).sum()) > 0 else 1.0
    for sign in (down, -down):
        best = _search(objective, state, sign * vector, length)
        if best is not None:
            return replace(state, w=best[0], at=best[1], event="escape", best=(best[1].value, 0))
    return replace(state, event="stuck", phase="end")


def _search(objective: Objective, state: State, vector: Tensor, length: float) -> tuple[Tensor, Evaluation] | None:
    best = None
    for _ in range(_DOUBLINGS):
        w = state.w + length * vector
        at = objective(w)
        lower = at.value < (state.at.value if best is None else best[1].value)
        if best is not None and not lower:
            return best
        if lower:
            best, length = (w, at), 2 * length
        else:
            length /= 2
    return best
