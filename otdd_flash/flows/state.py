"""Where a flow stands, and how a place is evaluated or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.cost import squared_norms
from otdd_flash.flows.dynamics import Dynamics, Variables
from otdd_flash.flows.objectives import Objective
from otdd_flash.flows.projections import Projection
from otdd_flash.flows.warm import Memory
from otdd_flash.sinkhorn import Divergence
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

_BLOCK_ELEMENTS = 1 << 20  # 8 MiB in float64


class StepRefusedError(RuntimeError):
    """A step led to values that are not finite; the message names the class, ``state`` is the last good one."""

    state: FlowState | None = None


@plain_torch_methods
@dataclass(eq=False)
class Evaluation:
    """An objective at one place, and its Wasserstein gradient there, taken when first asked for.

    Args:
        value: the objective.
        memory: what the objective remembers.
        record: plain numbers for the metrics.
        found: the solved transport problem, where the objective has one; absent right after a resume.
        differentiate: gives velocity and speed; absent where both are known.
        known: velocity and speed, once taken.
    """

    value: float
    memory: Memory
    record: dict[str, Any]
    found: Divergence | None = field(default=None, repr=False)
    differentiate: Callable[[], tuple[Variables, float]] | None = field(default=None, repr=False)
    known: tuple[Variables, float] | None = field(default=None, repr=False)

    @property
    def velocity(self) -> Variables:
        """Per variable, the gradient of each row over the row's mass.

        Raises:
            StepRefusedError: it is not finite; the message names the class.
        """
        return self._taken[0]

    @property
    def speed(self) -> float:
        """Root of ``sum_i mass_i |velocity_i|^2``: of the flow at rate 1."""
        return self._taken[1]

    def release(self) -> None:
        """Let go of the velocity, which is as large as the variables; asked for again, it is taken again."""
        if self.differentiate is not None:
            self.known = None

    @property
    def _taken(self) -> tuple[Variables, float]:
        if self.known is None:
            assert self.differentiate is not None
            self.known = self.differentiate()
        return self.known


@dataclass(frozen=True, eq=False)
class FlowState:
    """Where a flow stands: everything that the next step depends on.

    Args:
        data: labels, names and weights; its features are those at the start.
        variables: what moves.
        at: the objective here.
        generator: state of the random generator.
        step: moves made.
        rate: of the last move.
        carried: the stepper's own.
        event: ``start``, ``moved``, or ``stalled`` with the reason.
        promised: what the value was to fall by in the last move, to first order.
    """

    data: LabeledDataset
    variables: Variables
    at: Evaluation
    generator: Tensor
    step: int = 0
    rate: float = math.nan
    carried: dict[str, Any] = field(default_factory=dict)
    event: str = "start"
    promised: float = math.nan

    @property
    def stalled(self) -> bool:
        """Whether no move helps any more."""
        return self.event.startswith("stalled")


@dataclass(frozen=True, eq=False)
class Problem:
    """What a stepper may ask of a flow."""

    objective: Objective
    dynamics: Dynamics
    projection: Projection | None
    generator: torch.Generator

    def start(self, data: LabeledDataset, variables: Variables) -> FlowState:
        """The state before the first move."""
        return FlowState(data, variables, self._evaluate(variables, data, {}), self.generator.get_state())

    def evaluate(self, variables: Variables, state: FlowState) -> Evaluation:
        """The objective at ``variables`` with the labels of ``state``, from what it remembers there.

        Raises:
            StepRefusedError: variables or a value that are not finite.
        """
        advance = self._advance(state, self._promised(state, variables))
        return self._evaluate(variables, state.data, state.at.memory, advance=advance)

    def again(self, data: LabeledDataset, variables: Variables, at: Evaluation) -> Evaluation:
        """An evaluation that can let go of its velocity: what a checkpoint holds cannot be differentiated anew."""
        return replace(at, differentiate=lambda: self._evaluate(variables, data, at.memory)._taken)

    def move(self, state: FlowState, variables: Variables, *, rate: float, carried: dict[str, Any]) -> FlowState:
        """The state at ``variables``, projected, relabelled and evaluated; its gradient is not taken yet.

        Args:
            state: where the move starts.
            variables: where to, before projection; taken over, so that no second copy of the features stays.
            rate: of the move.
            carried: what the stepper carries along from there.

        Raises:
            StepRefusedError: see :meth:`evaluate`.
        """
        _refuse_nonfinite(variables, state.data, state.step + 1)
        if self.projection is not None:
            projected = self.projection(variables["x"])
            if not isinstance(projected, Tensor) or projected.shape != variables["x"].shape:
                raise ValueError(f"projection must give a tensor of the shape of the features, got {shown(projected)}")
            variables["x"] = projected
        variables = self.dynamics.project(variables)
        variables, data = self.dynamics.relabel(state.step + 1, variables, state.data)
        promised = self._promised(state, variables)
        advance = self._advance(state, promised)
        at = self._evaluate(variables, data, state.at.memory, state.step + 1, advance)
        generator = self.generator.get_state()
        return FlowState(data, variables, at, generator, state.step + 1, rate, carried, "moved", promised)

    def settle(self, state: FlowState, moved: FlowState) -> FlowState:
        """``moved``, with its gradient in the place of that of ``state``: two at a time would not be needed.

        Raises:
            StepRefusedError: a gradient that is not finite.
        """
        state.at.release()
        _ = moved.at.velocity
        return moved

    def stay(self, state: FlowState, event: str, *, carried: dict[str, Any]) -> FlowState:
        """The same place, one step later."""
        return replace(state, step=state.step + 1, rate=0.0, event=event, carried=carried, promised=0.0)

    def _promised(self, state: FlowState, variables: Variables) -> float:
        """``sum_i mass_i <velocity_i, old_i - new_i>``: what the value falls by to first order in the move."""
        masses, total = self.dynamics.masses(state.variables, state.data), 0.0
        for name, old in state.variables.items():
            total += float(masses[name] @ _falls(state.at.velocity[name], old, variables[name]))
        return max(total, 0.0)

    def _advance(self, state: FlowState, promised: float) -> float:
        """The part of the way to the end that a move makes, if the root of the value falls as promised."""
        return min(promised / (2 * state.at.value), 1.0) if state.at.value > 0 else 0.0

    @torch.enable_grad()
    def _evaluate(
        self, variables: Variables, data: LabeledDataset, memory: Memory, step: int = 0, advance: float = 0.0
    ) -> Evaluation:
        _refuse_nonfinite(variables, data, step)
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        try:
            particles = replace(self.dynamics.particles(leaves, data), advance=advance)
            term = self.objective.evaluate(particles, memory)
        except OverflowError as error:
            raise StepRefusedError(f"{_where(step)}: {error} {_farthest(variables['x'], data)}") from error
        total = float(term.value.detach())
        if not math.isfinite(total):
            raise StepRefusedError(f"{_where(step)}: the value became {total} {_farthest(variables['x'], data)}")
        graph, remembered = [(term.value, leaves)], term.memory

        @torch.enable_grad()
        def differentiate() -> tuple[Variables, float]:
            if not graph:  # used up and freed: here again, from what is remembered of here
                return self._evaluate(variables, data, remembered, step)._taken
            return self._velocity(*_gradients(*graph.pop()), data, step)

        return Evaluation(total, remembered, term.record, term.found, differentiate)

    def _velocity(
        self, variables: Variables, gradients: Variables, data: LabeledDataset, step: int
    ) -> tuple[Variables, float]:
        """Gradients over masses, and the speed."""
        masses, square = self.dynamics.masses(variables, data), 0.0
        velocity: Variables = {}
        for name in list(gradients):
            divisor = torch.where(masses[name] > 0, masses[name], 1.0)  # a row without mass stays where it is
            velocity[name] = gradients.pop(name) / divisor.to(variables[name].dtype)[:, None]
            square += float(masses[name] @ squared_norms(velocity[name]))
        if not math.isfinite(square):
            _refuse_nonfinite(velocity, data, step)
        return velocity, math.sqrt(square)


def _gradients(value: Tensor, leaves: Variables) -> tuple[Variables, Variables]:
    """The leaves and the gradient of ``value`` in each, zero where it does not depend on one."""
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if value.requires_grad:
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    detached = {name: leaf.detach() for name, leaf in leaves.items()}
    return detached, {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(detached.items(), found, strict=True)
    }


def _refuse_nonfinite(variables: Variables, data: LabeledDataset, step: int) -> None:
    """Refuse rows that are not finite, or whose squared norms would not be."""
    for name, value in variables.items():
        # 64: a cost adds several squared norms
        good = 64 * squared_norms(value) < torch.finfo(value.dtype).max
        if bool(good.all()):
            continue
        rows = (~good).nonzero()[:, 0]
        y = torch.arange(data.num_classes) if len(value) != data.n else data.y.cpu()
        label = data.class_names[int(y[int(rows[0])])]
        raise StepRefusedError(
            f"{_where(step)}: {name} of class {label!r} became non-finite or too large for {value.dtype} "
            f"({len(rows)} of {len(value)} rows, first {int(rows[0])}); take a smaller rate or a line search"
        )


def _falls(velocity: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """``(n,)`` float64 products ``<velocity_i, old_i - new_i>``, by blocks of rows: no copy of any of them."""
    rows = max(1, _BLOCK_ELEMENTS // max(old.shape[1], 1))
    blocks = zip(velocity.split(rows), old.split(rows), new.split(rows), strict=True)
    return torch.cat([(v.to(torch.float64) * (o.to(torch.float64) - n)).sum(1) for v, o, n in blocks])


def _farthest(x: Tensor, data: LabeledDataset) -> str:
    row = int(squared_norms(x).argmax())
    return f"(class {data.class_names[int(data.y[row])]!r} lies farthest out); take a smaller rate or a line search"


def _where(step: int) -> str:
    return "the start was refused" if step == 0 else f"step {step} was refused"
