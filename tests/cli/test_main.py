from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from otdd_flash import __version__
from otdd_flash.cli.app import _version_base
from otdd_flash.cli.exit_codes import ExitCode, exit_code
from otdd_flash.cli.tasks import TASKS
from otdd_flash.errors import NotConvergedError

Command = Callable[..., SimpleNamespace]


def test_help_lists_the_tasks(otdd: Command) -> None:
    outcome = otdd("--help")
    assert outcome.code == 0
    listed = outcome.out.split("tasks:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(TASKS)
    assert outcome.err == ""


def test_no_task_is_a_usage_error(otdd: Command) -> None:
    outcome = otdd()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("otdd: compare labelled data sets")


def test_version(otdd: Command) -> None:
    assert otdd("--version").out == f"otdd-flash {__version__}\n"


def test_unknown_task(otdd: Command) -> None:
    outcome = otdd("distanse")
    assert (outcome.code, outcome.out) == (2, "")
    tasks = ", ".join(TASKS)
    said = f"unknown task 'distanse'; did you mean distance? Tasks are {tasks}"
    assert outcome.err == f"otdd: error: {said} (see 'otdd --help')\n"


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_help(otdd: Command, name: str) -> None:
    outcome = otdd(name, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"otdd {name}: ")
    assert "Keys, with their values:" in outcome.out


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("bogus=1", "'bogus=1': otdd distance has no key 'bogus'"),
        ("+bogus=1", "otdd distance has no key 'bogus'"),
        ("solver.bogus=1", "otdd distance has no key 'solver.bogus'"),
        ("+source.bogus=1", "otdd distance has no key 'source.bogus'"),
        ("solver.tol=small", "Value 'small' of type 'str' could not be converted to Float"),
        ("source=nosuch", "'source=nosuch': there is no data set 'nosuch'"),
        ("labels=nosuch", "'labels=nosuch': labels has no 'nosuch'"),
        ("source=iris,wine", "add --multirun"),
        ("source.classes=[", "no viable alternative"),
        ("--nosuch", "unrecognized arguments: --nosuch"),
    ],
)
def test_usage_errors(otdd: Command, argument: str, words: str) -> None:
    outcome = otdd("distance", "source=iris", "target=iris", argument)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.errors[-1]
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("variable", [None, "OTDD_TRACEBACK", "HYDRA_FULL_ERROR"])
def test_an_error_is_one_line_unless_a_traceback_is_asked_for(
    otdd: Command, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    outcome = otdd("distance", "source=iris", "target=iris", "output.format=xml")
    assert (outcome.code, outcome.out) == (1, "")
    assert ("Traceback" in outcome.err) == (variable is not None)
    last = "otdd distance: error: output.format must be table or json, got 'xml'"
    assert outcome.err.splitlines()[-1] == last
    if variable is None:
        assert outcome.err == last + "\n"


def test_the_process_is_left_as_it_was(otdd: Command) -> None:
    before = list(sys.argv)
    otdd("distance", "bogus=1")
    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), ExitCode.ERROR),
        (MemoryError(), ExitCode.ERROR),
        (NotConvergedError("x"), ExitCode.NOT_CONVERGED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_exit_codes(error: BaseException, code: ExitCode) -> None:
    assert exit_code(error) == code


def test_flags_may_stand_anywhere(otdd: Command) -> None:
    outcome = otdd("distance", "source=iris", "--cfg", "job", "target=wine", "seed=3")
    assert outcome.code == 0, outcome.err
    assert "seed: 3" in outcome.out


@pytest.mark.parametrize(
    ("version", "passed"), [("1.3.2", True), ("1.3.8", True), ("1.4.0rc3", False), ("1.4.0", False), ("2.0.0", False)]
)
def test_version_base_is_passed_below_hydra_1_4(version: str, passed: bool) -> None:
    """C26."""
    assert bool(_version_base(SimpleNamespace(__version__=version))) == passed
