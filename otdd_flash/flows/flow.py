"""The loop of dataset gradient flows: init, step, terminate, and callbacks after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from otdd_flash.arguments import check_known, check_sides, settled
from otdd_flash.checks import check_callable, check_count, check_fields, check_type, shown
from otdd_flash.distance import DistanceOptions
from otdd_flash.flows.callbacks import Callback
from otdd_flash.flows.checkpoint import Checkpoint
from otdd_flash.flows.dynamics import Dynamics, FeatureFlow
from otdd_flash.flows.objectives import DatasetTransport, Objective
from otdd_flash.flows.particles import computable
from otdd_flash.flows.projections import Projection
from otdd_flash.flows.state import FlowState, Problem, StepRefusedError
from otdd_flash.flows.steppers import LineSearch, Stepper
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset


@dataclass(frozen=True, eq=False)
class FlowResult:
    """Where a flow ended.

    Args:
        data: the flowed set, in the input's dtype.
        value: the objective there.
        steps: moves made, those before a resume included.
        reason: why it ended: ``steps``, ``stalled`` or the name of the callback that asked for it.
        history: step, value, rate, speed, event and classes after every move of this call; the start first.
        state: the last state, in the precision of the flow.
    """

    data: LabeledDataset
    value: float
    steps: int
    reason: str
    history: tuple[dict[str, Any], ...] = field(repr=False)
    state: FlowState = field(repr=False)


@plain_torch_methods
@dataclass(eq=False)
class Flow:
    """A flow, ready to be run: what descends, what moves and how.

    Args:
        objective: descended.
        dynamics: what moves.
        stepper: how.
        projection: of the features, after every move.
        seed: of all noise.
    """

    objective: Objective
    dynamics: Dynamics = field(default_factory=FeatureFlow)
    stepper: Stepper = field(default_factory=LineSearch)
    projection: Projection | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_type("objective", self.objective, Objective, "give flows.DatasetTransport(target), for one")
        check_type("dynamics", self.dynamics, Dynamics, "give flows.FeatureFlow(), for one")
        check_type("stepper", self.stepper, Stepper, "give flows.LineSearch(), for one")
        check_callable("projection", self.projection, optional=True)
        check_fields(self, check_count, "seed", least=0)
        generator = torch.Generator().manual_seed(self.seed)
        self.problem = Problem(self.objective, self.dynamics, self.projection, generator)
        self.source = ""  # fingerprint of the set that it runs from

    def init(self, source: LabeledDataset) -> FlowState:
        """The state before the first move."""
        self.problem.generator.manual_seed(self.seed)
        self.source = source.fingerprint
        data = computable(source)
        variables = self.dynamics.init(data)
        return replace(self.problem.start(data, variables), carried=self.stepper.init(variables))

    def step(self, state: FlowState) -> FlowState:
        """One move.

        Raises:
            StepRefusedError: the move leads to values that are not finite; ``state`` of the error is the last good one.
        """
        self.problem.generator.set_state(state.generator)
        try:
            return self.stepper.step(self.problem, state)
        except StepRefusedError as error:
            error.state = state
            raise

    def terminate(self, state: FlowState) -> bool:
        """Whether no move helps any more."""
        return state.stalled

    def dataset(self, state: FlowState) -> LabeledDataset:
        """The data set at ``state``."""
        return self.dynamics.dataset(state.variables, state.data)

    def resume(self, source: LabeledDataset, checkpoint: Checkpoint) -> FlowState:
        """The state that a checkpoint of the same flow from the same source holds."""
        checkpoint.check_source(source)
        self.source = checkpoint.source
        data = computable(source)
        self.dynamics.init(data)
        state = checkpoint.state(data)
        return replace(state, at=self.problem.again(state.data, state.variables, state.at))

    def run(
        self,
        source: LabeledDataset,
        *,
        steps: int = 50,
        callbacks: Sequence[Callback] = (),
        resume: Checkpoint | None = None,
    ) -> FlowResult:
        """Drive the flow until it terminates, a callback asks for it or ``steps`` moves are made.

        Args:
            source: the set to move.
            steps: moves in all, those before ``resume`` included.
            callbacks: see :mod:`otdd_flash.flows.callbacks`.
            resume: continue from there; the end is bitwise that of an uninterrupted run.

        Raises:
            StepRefusedError: see :meth:`step`; callbacks are finished first.
        """
        check_sides(source=source)
        steps = check_count("steps", steps, least=0)
        check_type("resume", resume, Checkpoint, "give flows.Checkpoint.load(path)", optional=True)
        if not isinstance(callbacks, tuple | list) or not all(isinstance(entry, Callback) for entry in callbacks):
            raise TypeError(f"callbacks must be a list of flows.Callback, got {shown(callbacks)}")
        state = self.init(source) if resume is None else self.resume(source, resume)
        history, reason = [_record(state)], None
        started: list[Callback] = []
        try:
            for callback in callbacks:
                callback.start(self, state, steps)
                started.append(callback)
            while reason is None and state.step < steps and not self.terminate(state):
                state = self.step(state)
                history.append(_record(state))
                # every callback sees every step, whoever asks to stop
                stopping = [type(callback).__name__ for callback in callbacks if callback(self, state)]
                reason = stopping[0] if stopping else None
        finally:
            for callback in started:
                callback.finish(self, state)
        reason = reason or ("stalled" if state.stalled else "steps")
        data = self.dataset(state)
        data = replace(data, x=data.x.to(source.x.dtype))
        return FlowResult(data, state.at.value, state.step, reason, tuple(history), state)


@plain_torch
def gradient_flow(
    source: LabeledDataset,
    target: LabeledDataset | Objective,
    *,
    steps: int = 50,
    options: DistanceOptions | None = None,
    callbacks: Sequence[Callback] = (),
    resume: Checkpoint | None = None,
    **settings: Any,
) -> FlowResult:
    """Move a labelled data set along the Wasserstein gradient of an objective, by default its distance to a target.

    Args:
        source: the set to move.
        target: where to go, or any :class:`~otdd_flash.flows.objectives.Objective`.
        steps: moves.
        options: of the dataset distance, where ``target`` is a data set.
        callbacks: called after every move.
        resume: continue from a checkpoint.
        **settings: ``dynamics``, ``stepper``, ``projection``, ``seed`` of :class:`Flow`.

    Returns:
        The flowed set with the history of values.

    Raises:
        StepRefusedError: a step led to values that are not finite; the message names the class.

    Source: Alvarez-Melis and Fusi (2021).

    >>> import otdd_flash as otdd
    >>> from otdd_flash.flows import Euler
    >>> point, goal = otdd.from_arrays([[0.0]], [0]), otdd.from_arrays([[1.0]], [0])
    >>> moved = otdd.gradient_flow(point, goal, steps=2, stepper=Euler(rate=0.25), options=otdd.DistanceOptions(
    ...     label_distance=None, epsilon=0.1))
    >>> moved.data.x.tolist()
    [[0.75]]
    """
    check_sides(source=source)
    known = [item.name for item in fields(Flow) if item.name != "objective"]
    check_known("gradient_flow", settings, known)
    if isinstance(target, Objective):
        if options is not None:
            raise ValueError("options belong to the distance to a data set; an objective has its own")
        return Flow(target, **settings).run(source, steps=steps, callbacks=callbacks, resume=resume)
    objective = DatasetTransport(target, settled("gradient_flow", options, {}, DistanceOptions()))
    return Flow(objective, **settings).run(source, steps=steps, callbacks=callbacks, resume=resume)


def _record(state: FlowState) -> dict[str, Any]:
    return {
        "step": state.step, "value": state.at.value, "rate": state.rate, "speed": state.at.speed, "event": state.event,
        "classes": state.data.num_classes, **state.at.record,
    }  # fmt: skip
