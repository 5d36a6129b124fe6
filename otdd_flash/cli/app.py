"""Runs a task as a Hydra app, with this project's exit codes and one line per error."""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from otdd_flash.cli.arguments import keeps_no_files, prepare, quoted
from otdd_flash.cli.exit_codes import ExitCode, exit_code, report, wants_traceback
from otdd_flash.cli.help import task_help
from otdd_flash.cli.tasks import Job, Task
from otdd_flash.errors import MissingDependencyError, optional_import

log = logging.getLogger("otdd")


def run_task(task: Task, arguments: Sequence[str]) -> int:
    """Compose the config of ``task`` from ``arguments``, run it and return the exit code."""
    full = wants_traceback()
    try:
        hydra = optional_import("hydra", needed_for=task.program)
    except MissingDependencyError as error:
        return report(task.program, error, full=full)
    _register(task)
    decorate = hydra.main(config_path="pkg://otdd_flash.conf", config_name=task.name, **_version_base(hydra))
    drifts: list[Exception] = []
    app = decorate(_make_job(task, full, drifts))
    try:
        with _folder_of(task, arguments) as places, _hydra_process(task.program, [*places, *prepare(task, arguments)]):
            app()
        if drifts:
            return report(task.program, drifts[0], full=full)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.OK
    except BrokenPipeError:  # the reader of --help has gone away
        return ExitCode.OK
    except OSError as error:  # a job's own errors do not come here: this is Hydra making the run's folder
        return report(task.program, _unusable_folder(error), full=full)
    except (Exception, KeyboardInterrupt) as error:
        return report(task.program, error, full=full)
    return ExitCode.OK


@contextmanager
def _folder_of(task: Task, arguments: Sequence[str]) -> Iterator[list[str]]:
    """With ``output.files=false`` overrides that put the run into a folder which goes away with it; else none."""
    if not keeps_no_files(task, arguments):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="otdd-", ignore_cleanup_errors=True) as scratch:
        yield [f"hydra.{mode}.dir={quoted(scratch)}" for mode in ("run", "sweep")]


def _unusable_folder(error: OSError) -> OSError:
    """The error with the two ways out."""
    place = "" if error.filename is None else f" {os.fsdecode(error.filename)!r}"
    return OSError(
        f"cannot make the run's folder{place}: {error.strerror or error}; name another with hydra.run.dir=FOLDER "
        "(hydra.sweep.dir=FOLDER under --multirun), or keep no files with output.files=false"
    )


def _register(task: Task) -> None:
    """Tell Hydra the task's dataclass, against which every key and type is checked, and where its help comes from."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name=f"{task.name}_schema", node=task.load_schema(), provider="otdd")

    def keys(*, _root_: Any) -> str:
        own = OmegaConf.masked_copy(_root_, [key for key in _root_ if key != "hydra"])
        return task_help(task, OmegaConf.to_container(own, resolve=True)).replace("$", "$$")  # type: ignore[arg-type]

    OmegaConf.register_new_resolver("otdd_keys", keys, replace=True)


def _version_base(hydra: ModuleType) -> dict[str, str]:
    """``version_base`` pins today's behaviour in Hydra 1.3; 1.4 deprecates it and 1.5 will not know it."""
    version = tuple(int(part) for part in hydra.__version__.split(".")[:2])
    return {"version_base": "1.3"} if version < (1, 4) else {}


def _make_job(task: Task, full: bool, drifts: list[Exception]) -> Callable[[Any], None]:
    """The function that Hydra calls once per job; ``drifts`` takes what Hydra would call an error of a sweep."""
    process = os.getpid()

    def job(config: Any) -> None:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        multirun = settings.mode == RunMode.MULTIRUN
        try:
            chosen = _to_dataclass(config, task)
            _hide_foreign_bars(getattr(chosen, "progress", None))
            with _warnings_to_log():
                task.load_function()(chosen, Job(Path(settings.runtime.output_dir), multirun))
        except Exception as error:
            if multirun:
                job_name = f"job {settings.job.num} ({settings.job.override_dirname})"
                if exit_code(error) == ExitCode.EXCEEDED and os.getpid() == process:
                    log.warning("%s: %s", job_name, error)
                    drifts.append(error)
                    return
                log.error("%s failed: %s", job_name, error)
                raise
            # Leaving here keeps Hydra from adding its own line about the overrides.
            raise SystemExit(report(task.program, error, full=full)) from error

    return job


def _hide_foreign_bars(shown: bool | None) -> None:
    """Keep the bars of Hugging Face's libraries off a stderr that is no terminal, and where ``progress=false``."""
    if not (sys.stderr.isatty() if shown is None else shown):
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


def _to_dataclass(config: Any, task: Task) -> Any:
    """The composed config as the task's dataclass; merged again, because Hydra lets ``+key=value`` add any key.

    Raises:
        ValueError: a number that is not finite, which no file of settings or results could hold.
    """
    from omegaconf import OmegaConf

    given = OmegaConf.to_container(config, resolve=True)
    for key, value in _numbers(given):
        if not math.isfinite(value):
            raise ValueError(f"{key} must be finite, got {value}")
    checked = OmegaConf.merge(OmegaConf.structured(task.load_schema()), given)
    return OmegaConf.to_object(checked)


def _numbers(given: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """The floats of a config with their keys."""
    if isinstance(given, float):
        yield key, given
    elif isinstance(given, dict | list):
        items = given.items() if isinstance(given, dict) else enumerate(given)
        for name, value in items:
            yield from _numbers(value, f"{key}.{name}" if key else str(name))


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
