from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import otdd_flash
from otdd_flash.cli import selection_config as schemas
from otdd_flash.selection.gate import CheckOptions

Command = Callable[..., SimpleNamespace]
ROOT = Path(__file__).resolve().parents[2]
QUICK = ("max_samples=120", "gate.permutations=39", "device=cpu")
SAME = ("source=digits", "target=digits", *QUICK)
OTHER = ("source=digits", "target=digits", "target.classes=[0,1,2]", *QUICK)


@pytest.mark.parametrize(("arguments", "code"), [(SAME, 0), (OTHER, 3)])
def test_exit_code_in_a_shell(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    command = [sys.executable, "-m", "otdd_flash.cli.main", "check", *arguments, "output=json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert process.returncode == code, process.stderr
    assert json.loads(process.stdout)["exceeded"] is (code == 3)


def test_number_is_the_librarys(otdd: Command) -> None:
    outcome = otdd("check", *OTHER, "output=json", "seed=2")
    assert outcome.code == 3
    record = json.loads(outcome.out)
    reference, batch = (otdd_flash.load("digits", max_samples=120, seed=2, classes=c) for c in (None, [0, 1, 2]))
    found = otdd_flash.check(reference, batch, permutations=39, seed=2)
    assert record["value"] == pytest.approx(found.value, rel=1e-9)
    assert record["p_value"] == found.p_value == 1 / 40
    assert record["missing_classes"] == ["3", "4", "5", "6", "7", "8", "9"]
    (line,) = outcome.errors
    assert line.startswith("otdd check: digits against digits: DRIFT: p = 0.025 is at most alpha = 0.05 (divergence ")


def test_table_and_files(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("check", *SAME)
    assert outcome.code == 0, outcome.err
    assert re.search(r"^result +no drift found: p = [\d.]+ is above alpha = 0\.05$", outcome.out, re.M)
    assert re.search(r"^p by part +distance [\d.]+, classes [\d.]+, frequencies [\d.]+, neighbors", outcome.out, re.M)
    assert re.search(r"^converged +yes  \(marginal error ", outcome.out, re.M)
    assert not outcome.errors
    (written,) = tmp_path.glob("outputs/check/*/*/result.json")
    assert json.loads(written.read_text())["exceeded"] is False


def test_threshold_and_usage(otdd: Command) -> None:
    assert otdd("check", *OTHER, "gate.threshold=1000", "gate.permutations=0").code == 0
    assert otdd("check", *OTHER, "gate.threshold=0.001", "gate.permutations=0").code == 3
    assert otdd("check", *SAME, "gate.alpah=0.1").code == 2
    assert otdd("check", *SAME, "gate.alpha=0.001").code == 1, "39 permutations cannot give that p-value"


def test_new_classes_fail_unless_allowed(otdd: Command) -> None:
    """Twelve rows of 600 of a class that the reference never had: no statistic sees them, but the gate does."""
    rng = np.random.default_rng(0)
    for name, rows, strange in (("trusted", 600, 0), ("batch", 600, 12)):
        y = rng.choice(["old", "own"], rows)
        y[:strange] = "new"
        np.savez(f"{name}.npz", x=rng.normal(size=(rows, 3)), y=y)
    arguments = ("check", "source=npz", "source.path=trusted.npz", "target=npz", "target.path=batch.npz")
    found = otdd(*arguments, *QUICK[1:], "gate.max_samples=150")
    assert found.code == 3
    assert "classes that the reference never had: new; p = " in found.errors[0]
    assert otdd(*arguments, *QUICK[1:], "gate.max_samples=150", "gate.new_classes=allow").code == 0


def test_a_result_that_is_not_converged_is_said(otdd: Command) -> None:
    loose = ("check", *OTHER, "gate.max_iterations=2")
    outcome = otdd(*loose)
    assert outcome.code == 3
    assert re.search(r"^converged +NO  \(marginal error .* raise max_iterations", outcome.out, re.M)
    assert "not converged: marginal error" in outcome.err
    strict = otdd(*loose, "strict=true")
    assert strict.code == 4
    assert strict.out.splitlines()[2:4] == outcome.out.splitlines()[2:4]
    assert strict.errors[-1].startswith("otdd check: error: not converged: marginal error")
    assert otdd("check", *SAME, "strict=true").code == 0


def test_rows_that_were_left_out_are_in_the_notes(otdd: Command) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{'' if i < 3 else 'ab'[i % 2]}" for i, x in enumerate(rng.normal(size=60))]
    Path("batch.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    outcome = otdd("check", "source=csv", "source.path=batch.csv", "target=csv", "target.path=batch.csv", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "batch: rows left out: unlabelled 3" in outcome.out


def test_null_of_the_reference_is_kept(otdd: Command, tmp_path: Path) -> None:
    arguments = (
        "check", "source=digits", "target=digits", "source.max_samples=300", "target.max_samples=100",
        "gate.permutations=39", "gate.null=reference", "device=cpu", "cache=kept",
    )  # fmt: skip
    first, second = otdd(*arguments), otdd(*arguments)
    assert (first.code, second.code) == (0, 0), first.err
    assert len(list((tmp_path / "kept").rglob("*.json"))) == 1
    rows = [next(line for line in run.out.splitlines() if line.startswith("null ")) for run in (first, second)]
    assert rows[0].endswith(", of the reference")
    assert rows[1] == rows[0] + ", from the cache"
    assert otdd(*arguments, "target.classes=[0,1,2]").code == 3


def test_defaults_are_the_librarys() -> None:
    defaults = {item.name: item.default for item in fields(CheckOptions)}
    for item in fields(schemas.GateConfig):
        assert defaults[item.name] == item.default, item.name


def test_drift_in_a_sweep_is_a_result(otdd: Command) -> None:
    outcome = otdd("check", *OTHER, "gate.threshold=0.001,100", "--multirun", "gate.permutations=0", "output=json")
    assert outcome.code == 3
    assert [json.loads(line)["exceeded"] for line in outcome.out.splitlines()] == [True, False]
    assert re.findall(r"failed|ERROR|Error", outcome.err) == []
    assert len(outcome.errors) == 1
    assert "error" not in outcome.errors[0]


def test_an_error_in_a_sweep_is_one(otdd: Command) -> None:
    outcome = otdd("check", *OTHER, "--multirun", "gate.threshold=0.001", "gate.permutations=0,-1")
    assert outcome.code == 1
    assert outcome.errors == ["otdd check: error: permutations must be at least 0, got -1"]
