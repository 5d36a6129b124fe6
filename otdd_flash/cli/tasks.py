"""The registry of tasks: adding one to the command line is one entry here and one YAML file in ``conf/``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Job:
    """What a task knows about the run that it is part of.

    Args:
        folder: the run's folder, where results are written.
        multirun: one of several jobs of a sweep: results on stdout are kept to one line each.
    """

    folder: Path
    multirun: bool = False


@dataclass(frozen=True)
class Task:
    """One task of the console command.

    Args:
        name: the word after ``otdd``; also the name of its primary config in ``conf/``.
        summary: one line for ``otdd --help``.
        function: ``module:name`` of ``function(config, job)``, imported when the task runs.
        schema: ``module:name`` of the dataclass that its config is checked against.
    """

    name: str
    summary: str
    function: str
    schema: str

    @property
    def program(self) -> str:
        """The command as typed, for messages."""
        return f"otdd {self.name}"

    def load_function(self) -> Callable[[Any, Job], None]:
        """The task's function."""
        return _load(self.function)

    def load_schema(self) -> type:
        """The task's config dataclass."""
        return _load(self.schema)


def _load(target: str) -> Any:
    """The object behind ``module:name``."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


TASKS = {
    task.name: task
    for task in (
        Task(
            name="distance",
            summary="distance between two labelled data sets, with a certificate of convergence",
            function="otdd_flash.cli.distance:run",
            schema="otdd_flash.cli.config:DistanceConfig",
        ),
        Task(
            name="matrix",
            summary="distances between all pairs of many data sets, in parallel, resumable",
            function="otdd_flash.cli.matrix:run",
            schema="otdd_flash.cli.config:MatrixConfig",
        ),
        Task(
            name="flow",
            summary="move one labelled data set towards another along the gradient of their distance",
            function="otdd_flash.cli.flow:run",
            schema="otdd_flash.cli.flow_config:FlowConfig",
        ),
        Task(
            name="rank",
            summary="candidate data sets ordered by distance to a target, with intervals and class matching",
            function="otdd_flash.cli.rank:run",
            schema="otdd_flash.cli.config:RankConfig",
        ),
        Task(
            name="values",
            summary="what each sample of a pool adds to its distance to a trusted sample",
            function="otdd_flash.cli.values:run",
            schema="otdd_flash.cli.selection_config:ValuesConfig",
        ),
        Task(
            name="select",
            summary="the part of a pool whose distribution is nearest to a target's",
            function="otdd_flash.cli.select:run",
            schema="otdd_flash.cli.selection_config:SelectConfig",
        ),
        Task(
            name="check",
            summary="is a batch from the distribution of a reference? exit code 3 says no",
            function="otdd_flash.cli.check:run",
            schema="otdd_flash.cli.selection_config:CheckConfig",
        ),
        Task(
            name="report",
            summary="one self-contained HTML page on a distance, or on results of earlier runs",
            function="otdd_flash.cli.report:run",
            schema="otdd_flash.cli.report_config:ReportConfig",
        ),
        Task(
            name="bench",
            summary="time the solver on this machine; tune=true refines the kernels' configuration for its GPU",
            function="otdd_flash.cli.bench:run",
            schema="otdd_flash.cli.config:BenchConfig",
        ),
        Task(
            name="info",
            summary="versions, devices, backends, data sets found offline, optional extras",
            function="otdd_flash.cli.info:run",
            schema="otdd_flash.cli.config:InfoConfig",
        ),
    )
}
