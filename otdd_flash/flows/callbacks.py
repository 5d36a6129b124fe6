"""What happens after every step of a flow: progress, metrics, checkpoints, trajectories, early stopping."""

from __future__ import annotations

import csv
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otdd_flash.checks import check_count, check_fields, check_number, check_path
from otdd_flash.errors import optional_import
from otdd_flash.flows.checkpoint import Checkpoint, keep_previous, previous_path
from otdd_flash.flows.state import FlowState
from otdd_flash.tensor_files import replacing, write_safetensors

if TYPE_CHECKING:
    from otdd_flash.flows.flow import Flow


class Callback:
    """Called before the first step, after every step, and at the end, also when a step was refused."""

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Before the first step of this run; ``state.step`` is not 0 after a resume."""

    def __call__(self, flow: Flow, state: FlowState) -> bool | None:
        """After a step; ``True`` asks the flow to stop."""

    def finish(self, flow: Flow, state: FlowState) -> None:
        """At the end."""


@dataclass(eq=False)
class Progress(Callback):
    """A bar on stderr with value and rate."""

    _bar: Any = field(default=None, repr=False)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Open the bar."""
        tqdm = optional_import("tqdm", needed_for="the progress bar").tqdm
        self._bar = tqdm(desc="flow", total=steps, initial=state.step, leave=False)
        self._bar.set_postfix_str(f"value {state.at.value:.5g}")

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Move it."""
        self._bar.update()
        self._bar.set_postfix_str(f"value {state.at.value:.5g}, rate {state.rate:.3g}")

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Close it."""
        self._bar.close()


@dataclass(eq=False)
class Metrics(Callback):
    """A CSV line a step: step, value, rate, speed, event, seconds, and what the objective records.

    After a resume the lines of steps that are made again are replaced, and one that a full disk cut off is left out.

    Args:
        path: of the file.
    """

    path: str | os.PathLike[str]
    _seconds: float = field(default=0.0, repr=False)
    _names: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        check_path("path", self.path)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Write the header and the start, or cut the file at the step resumed from."""
        path = Path(self.path)
        first = _metrics(state, 0.0)
        self._names = list(first)
        lines: list[dict[str, Any]] = []
        if state.step and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                whole = (line for line in file if line.endswith("\n"))  # "1" may be the beginning of "12"
                lines = [line for line in csv.DictReader(whole) if int(line["step"]) < state.step]
        with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows([*lines, first])
        self._seconds = time.perf_counter()

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Append a line."""
        now = time.perf_counter()
        with Path(self.path).open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._names, extrasaction="ignore").writerow(_metrics(state, now - self._seconds))
        self._seconds = now


@dataclass(eq=False)
class TensorBoard(Callback):
    """The same numbers for TensorBoard (extra ``flows``): ``tensorboard --logdir folder`` shows them.

    After a resume the numbers of steps that are made again are replaced.
    """

    folder: str | os.PathLike[str]
    _writer: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_path("folder", self.folder)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Open the event file."""
        optional_import("tensorboard", needed_for="TensorBoard metrics", extra="flows")
        board = optional_import("torch.utils.tensorboard", needed_for="TensorBoard metrics", extra="flows")
        self._writer = board.SummaryWriter(str(self.folder), purge_step=state.step)
        self(flow, state)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Write a step."""
        for name, value in _metrics(state, 0.0).items():
            if isinstance(value, (int, float)) and name not in ("step", "seconds") and math.isfinite(value):
                self._writer.add_scalar(f"flow/{name}", value, state.step)

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@dataclass(eq=False)
class SaveCheckpoint(Callback):
    """``path`` holds the state of the last multiple of ``every`` steps, and of the end; see :class:`Checkpoint`.

    The one before is kept beside it, for the case that ``path`` is damaged later.
    """

    path: str | os.PathLike[str]
    every: int = 1

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_fields(self, check_count, "every")

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Save the start; what stood before may be of another flow, or damaged, and is not kept."""
        if state.step == 0:
            previous_path(self.path).unlink(missing_ok=True)
        Checkpoint.of(state, flow.source).save(self.path)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Save where it is time."""
        if state.step % self.every == 0:
            self._save(flow, state)

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Save the end."""
        self._save(flow, state)

    def _save(self, flow: Flow, state: FlowState) -> None:
        keep_previous(self.path)
        Checkpoint.of(state, flow.source).save(self.path)


@dataclass(eq=False)
class Trajectory(Callback):
    """``folder/step_00010.safetensors``: all variables and the labels, every ``every`` steps."""

    folder: str | os.PathLike[str]
    every: int = 10

    def __post_init__(self) -> None:
        check_path("folder", self.folder)
        check_fields(self, check_count, "every")

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Dump the start."""
        self._dump(state)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Dump where it is time."""
        if state.step % self.every == 0:
            self._dump(state)

    def _dump(self, state: FlowState) -> None:
        path = Path(self.folder) / f"step_{state.step:05d}.safetensors"
        write_safetensors({**state.variables, "y": state.data.y}, path, needed_for="a trajectory dump")


@dataclass(eq=False)
class EarlyStopping(Callback):
    """Stop when the value has not fallen by ``relative`` of itself in ``patience`` steps, or is below ``goal``.

    The count starts anew after a resume.
    """

    patience: int = 5
    relative: float = 1e-3
    goal: float | None = None
    _best: float = field(default=math.inf, repr=False)
    _waited: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, check_count, "patience")
        check_fields(self, check_number, "relative", closed=True)
        check_fields(self, check_number, "goal", low=-math.inf, optional=True)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Count from here."""
        self._best, self._waited = state.at.value, 0

    def __call__(self, flow: Flow, state: FlowState) -> bool:
        """Whether to stop."""
        value = state.at.value
        if value < self._best - self.relative * abs(self._best):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        return self._waited >= self.patience or (self.goal is not None and value <= self.goal)


def _metrics(state: FlowState, seconds: float) -> dict[str, Any]:
    """The line of a step."""
    record = {name: value for name, value in state.at.record.items() if isinstance(value, (int, float))}
    return {
        "step": state.step, "value": state.at.value, "rate": state.rate, "speed": state.at.speed, "event": state.event,
        "classes": state.data.num_classes, "seconds": round(seconds, 3), **record,
    }  # fmt: skip
