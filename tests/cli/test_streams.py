"""A finished computation is never lost: figures, folders, disks and streams that fail."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import otdd_flash
from otdd_flash.cli import output
from otdd_flash.cli.config import OutputConfig
from otdd_flash.cli.output import Finished, deliver
from otdd_flash.cli.tasks import Job

Command = Callable[..., SimpleNamespace]
RUN = ("source=iris", "target=iris", "target.classes=[0]", "labels=means", "device=cpu", "max_samples=30")
THREE = "datasets=[iris,{name:iris,classes:[0],as:größe},{name:iris,classes:[2],as:日本}]"


def shell(folder: Path, *arguments: str, pipe: str = "", **environment: str) -> subprocess.CompletedProcess:
    """``otdd`` in a process of its own, its stdout in ``pipe``, its exit code the command's."""
    script = f'"$@" {pipe}; exit ${{PIPESTATUS[0]}}'
    variables = {**os.environ, "PYTHONPATH": str(Path(otdd_flash.__file__).parents[1]), **environment}
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "otdd_flash.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_figures_are_drawn_whatever_the_backend(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("matplotlib")
    run = shell(tmp_path, "matrix", THREE, *RUN[3:], MPLBACKEND=backend)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(b"3 data sets")
    assert {"matrix.json", "heat_map.png", "dendrogram.png"} <= {path.name for path in tmp_path.rglob("*")}


def test_characters_that_the_encoding_lacks_are_replaced(tmp_path: Path) -> None:
    run = shell(tmp_path, "matrix", THREE, *RUN[3:], "output.files=false", PYTHONIOENCODING="cp1252")
    assert run.returncode == 0, run.stderr
    assert "größe".encode("cp1252") in run.stdout
    assert b"??" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("distance", "--help"), 0), (("--help",), 0), (("distance", *RUN, "output.files=false"), 0)],
)
def test_a_closed_pipe_is_a_quiet_end(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    run = shell(tmp_path, *arguments, pipe="| true")
    assert run.returncode == code
    for word in (b"Traceback", b"BrokenPipe", b"rror"):
        assert word not in run.stderr.replace(b"marginal error", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_stdout_is_said_and_the_result_is_in_its_file(tmp_path: Path) -> None:
    run = shell(tmp_path, "distance", *RUN, pipe="> /dev/full")
    assert run.returncode == 1
    last = run.stderr.decode().splitlines()[-1]
    assert last == "otdd distance: error: cannot write the result to stdout: No space left on device"
    (file,) = tmp_path.rglob("result.json")
    assert json.loads(file.read_text())["task"] == "distance"


def test_a_closed_stdout_is_no_crash(tmp_path: Path) -> None:
    run = shell(tmp_path, "distance", *RUN, "output=json", pipe=">&-")
    assert run.returncode == 0, run.stderr
    assert len(list(tmp_path.rglob("result.json"))) == 1


def test_a_full_disk_loses_a_file_and_not_the_number(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: dict, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(output, "write_json", full)
    outcome = otdd("distance", *RUN, "output=json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["converged"] is True
    for part in ("the result is on stdout", "result.json: No space left on device", "hydra.run.dir"):
        assert part in outcome.errors[0]


def test_files_come_first_then_the_number_then_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def written(path: Path) -> None:
        assert (tmp_path / "result.json").is_file()
        seen.append(capsys.readouterr().out)

    def drawn(path: Path) -> None:
        written(path)
        raise RuntimeError("no such font")

    found = Finished({"value": 1}, "title", [("value", "1")], files={"a.txt": written}, figures={"a.png": drawn})
    with caplog.at_level(logging.WARNING):
        deliver(found, OutputConfig(), Job(tmp_path))
    assert seen[0] == ""
    assert seen[1].startswith("title\n\nvalue  1\n")
    assert "a.png: no such font" in caplog.text


@pytest.mark.parametrize("mode", [(), ("--multirun", "seed=0,1")])
def test_a_folder_that_cannot_be_made_names_the_way_out(otdd: Command, tmp_path: Path, mode: tuple[str, ...]) -> None:
    for name in ("outputs", "multirun"):
        (tmp_path / name).write_text("a file is in the way")
    outcome = otdd("distance", *RUN, *mode)
    assert outcome.code == 1
    for part in ("cannot make the run's folder", "hydra.run.dir=FOLDER", "output.files=false"):
        assert part in outcome.errors[0]
    assert otdd("distance", *RUN, *mode, "output.files=false").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "multirun"}
    (tmp_path / "elsewhere").mkdir()
    assert otdd("distance", *RUN, "hydra.run.dir=elsewhere").code == 0
    assert (tmp_path / "elsewhere" / "result.json").is_file()


def test_a_strict_stream_is_given_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from otdd_flash.cli.main import main

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["--version"]) == 0
    assert stream.errors == "strict"
