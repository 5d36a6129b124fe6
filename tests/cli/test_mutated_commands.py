"""Command lines with one thing wrong: a short run of ``scripts/mutate_commands.py``, and what it calls a failure."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("hydra")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    try:
        import mutate_commands
    finally:
        del sys.path[0]
    return mutate_commands


def test_mutated_command_lines_name_what_is_wrong(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTDD_TRACEBACK", raising=False)
    monkeypatch.chdir("/")
    cases = script.mutated(40, seed=7)
    assert len({case.arguments[0] for case in cases}) == len(script.COMMANDS)
    said = {case: script.outcome(case, limit=60) for case in cases}
    assert {case: words for case, words in said.items() if words not in ("works", "refused")} == {}
    assert "refused" in said.values()


def test_a_command_line_that_is_not_mutated_works(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    case = script.Case(("info", *script.COMMANDS["info"]), "", "")
    assert script.outcome(case, limit=60) == "works"


@pytest.mark.parametrize(
    ("code", "stderr", "words"),
    [
        (1, "otdd info: error: KeyError: 'seed'\n", "raw"),
        (1, "Traceback (most recent call last)\notdd info: error: seed is wrong\n", "raw"),
        (1, "otdd info: error: something else\n", "does not name it"),
        (1, "", "0 lines"),
        (130, "otdd info: error: interrupted\n", "exit code 130"),
        (2, "otdd info: error: 'seed=x': seed must be a number\n", "refused"),
        (0, "", "works"),
    ],
)
def test_what_is_a_good_answer(script: ModuleType, code: int, stderr: str, words: str) -> None:
    assert script.judged(script.Case(("info", "seed=x"), "seed", "seed=x"), code, stderr).startswith(words)
