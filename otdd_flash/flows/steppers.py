"""How a flow moves: explicit Euler, momentum, any torch optimiser, a line search; and noise on top.

Velocities are Wasserstein gradients: the gradient of a row divided by its mass, so that for ``n`` equal weights
``x_i <- x_i - rate * n * dF/dx_i``, and the rate does not depend on the number of samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from otdd_flash.checks import check_count, check_fields, check_number, check_text, check_type
from otdd_flash.flows.dynamics import Variables
from otdd_flash.flows.state import FlowState, Problem, StepRefusedError


class Stepper(ABC):
    """One way to move."""

    rate: float

    def init(self, variables: Variables) -> dict[str, Any]:
        """What the stepper carries along: nested dictionaries and lists of tensors and plain values."""
        return {}

    @abstractmethod
    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """Where to go from ``state``, and what to carry along."""

    def step(self, problem: Problem, state: FlowState) -> FlowState:
        """One move.

        Raises:
            StepRefusedError: the move leads to values that are not finite.
        """
        variables, carried = self.propose(problem, state)
        return problem.settle(state, problem.move(state, variables, rate=self.rate, carried=carried))


@dataclass(frozen=True)
class Euler(Stepper):
    """``x <- x - rate * velocity``."""

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, check_number, "rate")

    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """See :class:`Stepper`."""
        return _along(state.variables, state.at.velocity, -self.rate), {}


@dataclass(frozen=True)
class Momentum(Stepper):
    """``v <- decay v - rate * velocity``, ``x <- x + v`` (Polyak 1964)."""

    rate: float = 0.05
    decay: float = 0.9

    def __post_init__(self) -> None:
        check_fields(self, check_number, "rate")
        check_fields(self, check_number, "decay", high=1.0, closed=True)

    def init(self, variables: Variables) -> dict[str, Any]:
        """See :class:`Stepper`."""
        return {"velocity": {name: torch.zeros_like(value) for name, value in variables.items()}}

    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """See :class:`Stepper`."""
        last = state.carried["velocity"]
        pull = {name: -self.rate * state.at.velocity[name] for name in last}
        velocity = {name: self.decay * last[name] + pull[name] for name in last}
        return _along(state.variables, velocity, 1.0), {"velocity": velocity}


@dataclass(frozen=True)
class TorchOptimizer(Stepper):
    """Any ``torch.optim`` optimiser, fed with the Wasserstein gradient.

    Args:
        name: of a class in ``torch.optim``.
        settings: its arguments; ``lr`` is the rate.
    """

    name: str = "Adam"
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 0.01})

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_type("settings", self.settings, dict, "give {'lr': 0.01}")
        cls = getattr(torch.optim, self.name, None)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise ValueError(f"name: torch.optim has no optimiser {self.name!r}")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The learning rate."""
        return float(self.settings.get("lr", math.nan))

    def init(self, variables: Variables) -> dict[str, Any]:
        """See :class:`Stepper`."""
        return self._build({name: value.clone() for name, value in variables.items()}).state_dict()

    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """See :class:`Stepper`."""
        moving = {name: value.clone() for name, value in state.variables.items()}
        optimizer = self._build(moving)
        optimizer.load_state_dict(state.carried)

        def closure() -> float:
            at = state.at
            if any(not torch.equal(moving[name], value) for name, value in state.variables.items()):
                at = problem.evaluate({name: value.detach().clone() for name, value in moving.items()}, state)
            for name, value in moving.items():
                value.grad = at.velocity[name].clone()
            return at.value

        optimizer.step(closure)
        return {name: value.detach() for name, value in moving.items()}, optimizer.state_dict()

    def _build(self, moving: Variables) -> torch.optim.Optimizer:
        for value in moving.values():
            value.requires_grad_()
        make: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, self.name)
        return make(list(moving.values()), **self.settings)


@dataclass(frozen=True)
class LineSearch(Stepper):
    """Backtracking: the rate is cut until ``F(new) < F - sufficient * <velocity, old - new>`` (Armijo 1966).

    ``old - new`` is the move after projection (Bertsekas 1976), ``rate * velocity`` without one. The value falls with
    every move. The next search starts from the rate found times ``grow``. Where no rate helps, the flow has stalled and
    ends.

    Args:
        rate: first rate tried.
        shrink: factor of the rate after a trial that failed.
        grow: factor of the rate after a move.
        sufficient: fraction of the promised decrease that must come true.
        trials: at most so many a move.
    """

    rate: float = 0.2
    shrink: float = 0.5
    grow: float = 1.5
    sufficient: float = 0.1
    trials: int = 15

    def __post_init__(self) -> None:
        check_fields(self, check_number, "rate")
        check_fields(self, check_number, "shrink", "sufficient", high=1.0)
        check_fields(self, check_number, "grow", low=1.0, closed=True)
        check_fields(self, check_count, "trials")

    def init(self, variables: Variables) -> dict[str, Any]:
        """See :class:`Stepper`."""
        return {"rate": self.rate}

    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """Not available: what it proposes depends on the values found."""
        raise ValueError("a line search cannot be combined with noise, which may raise the value")

    def step(self, problem: Problem, state: FlowState) -> FlowState:
        """See :class:`Stepper`."""
        rate = float(state.carried["rate"])
        refused: StepRefusedError | None = None
        for _ in range(self.trials):
            try:
                moved = self._try(problem, state, rate)
            except StepRefusedError as error:
                refused = error
            else:
                if moved is not None:
                    return moved
            rate *= self.shrink
        event = "stalled" if refused is None else f"stalled: {refused}"
        return problem.stay(state, event, carried={"rate": rate})

    def _try(self, problem: Problem, state: FlowState, rate: float) -> FlowState | None:
        """The move at ``rate``, or ``None`` where the value does not fall enough: one solve, and no gradient then."""
        variables = _along(state.variables, state.at.velocity, -rate)
        moved = problem.move(state, variables, rate=rate, carried={"rate": rate * self.grow})
        if not moved.at.value < state.at.value - self.sufficient * moved.promised:
            return None
        return problem.settle(state, moved)


@dataclass(frozen=True)
class Noisy(Stepper):
    """Another stepper, and Gaussian noise of variance ``2 * rate * temperature`` on the features (Langevin).

    With a small rate the flow then also ascends ``temperature`` times the entropy. The noise is drawn on the host by
    the flow's seed: the same on every device.
    """

    stepper: Stepper
    temperature: float

    def __post_init__(self) -> None:
        check_type("stepper", self.stepper, Stepper)
        check_fields(self, check_number, "temperature", closed=True)
        if isinstance(self.stepper, LineSearch):
            raise ValueError("a line search cannot be combined with noise, which may raise the value")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """That of the stepper."""
        return self.stepper.rate

    def init(self, variables: Variables) -> dict[str, Any]:
        """See :class:`Stepper`."""
        return self.stepper.init(variables)

    def propose(self, problem: Problem, state: FlowState) -> tuple[Variables, dict[str, Any]]:
        """See :class:`Stepper`."""
        variables, carried = self.stepper.propose(problem, state)
        x = variables["x"]
        noise = torch.randn(x.shape, generator=problem.generator, dtype=x.dtype).to(x.device)
        return {**variables, "x": x + math.sqrt(2 * self.rate * self.temperature) * noise}, carried


def _along(variables: Variables, direction: Variables, rate: float) -> Variables:
    return {name: torch.add(value, direction[name], alpha=rate) for name, value in variables.items()}
