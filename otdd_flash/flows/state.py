"""Where a flow stands, and how a place is evaluated or refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.cost import squared_norms
from otdd_flash.flows.dynamics import Dynamics, Variables
from otdd_flash.flows.objectives import Objective
from otdd_flash.flows.projections import Projection
from otdd_flash.flows.warm import Memory
from otdd_flash.sinkhorn import Divergence
from otdd_flash.types import LabeledDataset

_BLOCK_ELEMENTS = 1 << 22


class StepRefusedError(RuntimeError):
    """A step led to values that are not finite; the message names the class, ``state`` is the last good one."""

    state: FlowState | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An objective and its Wasserstein gradient at one place.

    Args:
        value: the objective.
        velocity: per variable, the gradient of each row over the row's mass.
        speed: root of ``sum_i mass_i |velocity_i|^2``: of the flow at rate 1.
        memory: what the objective remembers.
        record: plain numbers for the metrics.
        found: the solved transport problem, where the objective has one; absent right after a resume.
    """

    value: float
    velocity: Variables
    speed: float
    memory: Memory
    record: dict[str, Any]
    found: Divergence | None = field(default=None, repr=False)


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
    """

    data: LabeledDataset
    variables: Variables
    at: Evaluation
    generator: Tensor
    step: int = 0
    rate: float = math.nan
    carried: dict[str, Any] = field(default_factory=dict)
    event: str = "start"

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
            StepRefusedError: variables, value or gradient that are not finite.
        """
        return self._evaluate(variables, state.data, state.at.memory)

    def move(self, state: FlowState, variables: Variables, *, rate: float, carried: dict[str, Any]) -> FlowState:
        """The state at ``variables``, projected, relabelled and evaluated.

        Raises:
            StepRefusedError: see :meth:`evaluate`.
        """
        _refuse_nonfinite(variables, state.data, state.step + 1)
        if self.projection is not None:
            variables = {**variables, "x": self.projection(variables["x"])}
        variables = self.dynamics.project(variables)
        variables, data = self.dynamics.relabel(state.step + 1, variables, state.data)
        at = self._evaluate(variables, data, state.at.memory, state.step + 1)
        return FlowState(data, variables, at, self.generator.get_state(), state.step + 1, rate, carried, "moved")

    def promised(self, state: FlowState, moved: FlowState) -> float:
        """``sum_i mass_i <velocity_i, old_i - new_i>``: what the value falls by to first order in the move."""
        masses, total = self.dynamics.masses(state.variables, state.data), 0.0
        for name, old in state.variables.items():
            total += float(masses[name] @ _row_dots(state.at.velocity[name], old - moved.variables[name]))
        return max(total, 0.0)

    def stay(self, state: FlowState, event: str, *, carried: dict[str, Any]) -> FlowState:
        """The same place, one step later."""
        return replace(state, step=state.step + 1, rate=0.0, event=event, carried=carried)

    def _evaluate(self, variables: Variables, data: LabeledDataset, memory: Memory, step: int = 0) -> Evaluation:
        _refuse_nonfinite(variables, data, step)
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        try:
            term = self.objective.evaluate(self.dynamics.particles(leaves, data), memory)
        except OverflowError as error:
            raise StepRefusedError(f"{_where(step)}: {error} {_farthest(variables['x'], data)}") from error
        gradients = dict.fromkeys(leaves, None)
        if term.value.requires_grad:
            found = torch.autograd.grad(term.value, list(leaves.values()), allow_unused=True)
            gradients = dict(zip(leaves, found, strict=True))
        masses = self.dynamics.masses(variables, data)
        velocity, square = {}, 0.0
        for name, value in variables.items():
            gradient = gradients[name]
            gradient = torch.zeros_like(value) if gradient is None else gradient
            velocity[name] = gradient / masses[name].to(value.dtype)[:, None]
            square += float(masses[name] @ squared_norms(velocity[name]))
        total = float(term.value.detach())
        if not (math.isfinite(total) and math.isfinite(square)):
            _refuse_nonfinite(velocity, data, step)
            raise StepRefusedError(f"{_where(step)}: the value became {total} {_farthest(variables['x'], data)}")
        return Evaluation(total, velocity, math.sqrt(square), term.memory, term.record, term.found)


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


def _row_dots(u: Tensor, v: Tensor) -> Tensor:
    """``(n,)`` float64 products of rows, by blocks: no float64 copy of either."""
    rows = max(1, _BLOCK_ELEMENTS // max(u.shape[1], 1))
    pairs = zip(u.split(rows), v.split(rows), strict=True)
    return torch.cat([(p.to(torch.float64) * q.to(torch.float64)).sum(1) for p, q in pairs])


def _farthest(x: Tensor, data: LabeledDataset) -> str:
    row = int(squared_norms(x).argmax())
    return f"(class {data.class_names[int(data.y[row])]!r} lies farthest out); take a smaller rate or a line search"


def _where(step: int) -> str:
    return "the start was refused" if step == 0 else f"step {step} was refused"
