"""Runs a task as a Hydra app, with this project's exit codes and one line per error."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from otdd_flash.cli.exit_codes import ExitCode, report, wants_traceback
from otdd_flash.cli.tasks import Job, Task
from otdd_flash.errors import MissingDependencyError, optional_import

log = logging.getLogger("otdd")

# `source=mnist` is what people type; Hydra's own spelling of "this group, packaged as source" stays possible.
_PACKAGED_GROUPS = {"source": "dataset@source", "target": "dataset@target"}


def run_task(task: Task, arguments: Sequence[str]) -> int:
    """Compose the config of ``task`` from ``arguments``, run it and return the exit code."""
    full = wants_traceback()
    try:
        hydra = optional_import("hydra", needed_for=task.program)
    except MissingDependencyError as error:
        return report(task.program, error, full=full)
    _register(task)
    decorate = hydra.main(config_path="pkg://otdd_flash.conf", config_name=task.name, **_version_base(hydra))
    app = decorate(_make_job(task, full))
    try:
        with _hydra_process(task.program, overrides_first([expand_group(argument) for argument in arguments])):
            app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:
        return report(task.program, error, full=full)
    return ExitCode.OK


def expand_group(argument: str) -> str:
    """Rewrite ``source=NAME`` to ``dataset@source=NAME``, and so for ``target``; all else is left alone."""
    key, equals, value = argument.partition("=")
    return f"{_PACKAGED_GROUPS[key]}={value}" if equals and key in _PACKAGED_GROUPS else argument


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """The overrides, then Hydra's flags with their values: its parser takes overrides in one place only."""
    overrides = [a for a in arguments if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    return [*overrides, *(a for a in arguments if a not in overrides)]


def _register(task: Task) -> None:
    """Store the task's dataclass where ``conf/<task>.yaml`` finds it, so that every key and type is checked."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=f"{task.name}_schema", node=task.load_schema(), provider="otdd")


def _version_base(hydra: ModuleType) -> dict[str, str]:
    """``version_base`` pins today's behaviour in Hydra 1.3; 1.4 deprecates it and 1.5 will not know it."""
    version = tuple(int(part) for part in hydra.__version__.split(".")[:2])
    return {"version_base": "1.3"} if version < (1, 4) else {}


def _make_job(task: Task, full: bool) -> Callable[[Any], None]:
    """The function that Hydra calls once per job."""

    def job(config: Any) -> None:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        multirun = settings.mode == RunMode.MULTIRUN
        try:
            with _warnings_to_log():
                task.load_function()(_to_dataclass(config, task), Job(Path(settings.runtime.output_dir), multirun))
        except Exception as error:
            if multirun:
                log.error("job %s (%s) failed: %s", settings.job.num, settings.job.override_dirname, error)
                raise
            # Leaving here keeps Hydra from adding its own line about the overrides.
            raise SystemExit(report(task.program, error, full=full)) from error

    return job


def _to_dataclass(config: Any, task: Task) -> Any:
    """The composed config as the task's dataclass; merged again, because Hydra lets ``+key=value`` add any key."""
    from omegaconf import OmegaConf

    checked = OmegaConf.merge(OmegaConf.structured(task.load_schema()), OmegaConf.to_container(config, resolve=True))
    return OmegaConf.to_object(checked)


@contextmanager
def _hydra_process(program: str, arguments: list[str]) -> Iterator[None]:
    """Give Hydra, which reads ``sys.argv`` and would print and exit itself, our arguments and its errors to us."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [program, *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


@contextmanager
def _warnings_to_log() -> Iterator[None]:
    """Send warnings to the log as one line each, without the source line that raised them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        log.warning("%s", message)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
