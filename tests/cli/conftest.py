from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from otdd_flash.cli import data
from otdd_flash.cli.main import main


@dataclass
class Outcome:
    """What a shell would have seen."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines on stderr that are the command's own, not the log's."""
        return [line for line in self.err.splitlines() if line.startswith("otdd")]


@pytest.fixture
def otdd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The console command, run in this process from an empty folder."""
    pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTDD_TRACEBACK", raising=False)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    for library in ("HF_HUB", "HF_DATASETS"):  # the command sets them; here they go back
        monkeypatch.setenv(f"{library}_DISABLE_PROGRESS_BARS", "1")
    data._model.cache_clear()

    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
