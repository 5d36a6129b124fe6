from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

Command = Callable[..., SimpleNamespace]


def test_json_record_is_true_and_leaves_nothing_behind(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("bench", "n=60", "m=50", "d=5", "device=cpu", "repeats=2", "solver.tol=1e-6", "output=json")
    assert outcome.code == 0
    record = json.loads(outcome.out)
    assert (record["n"], record["m"], record["d"], record["device"]) == (60, 50, 5, "cpu")
    assert (record["backend"], record["converged"]) == ("torch", True)
    assert record["marginal_error"] <= 1e-6
    seconds = record["seconds"]
    assert 0 < seconds["fastest"] <= seconds["solve"] <= seconds["slowest"]
    assert 0 < seconds["iteration"] < seconds["solve"]
    again = json.loads(otdd("bench", "n=60", "m=50", "d=5", "device=cpu", "solver.tol=1e-6", "output=json").out)
    assert again["value"] == record["value"], "the clouds are a function of the seed"
    assert list(tmp_path.iterdir()) == []


def test_table(otdd: Command) -> None:
    outcome = otdd("bench", "n=20", "d=3", "levels=true", "device=cpu", "repeats=1")
    assert outcome.code == 0
    rows = {line.split("  ")[0] for line in outcome.out.splitlines()}
    assert {"device", "clouds", "mode", "solve", "first solve", "iteration", "converged"} <= rows


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("n=0", "n must be at least 1, got 0"),
        ("tune=true", "tune=true needs a CUDA device"),
    ],
)
def test_refusals(otdd: Command, argument: str, message: str) -> None:
    outcome = otdd("bench", "device=cpu", argument)
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err


@pytest.mark.gpu
def test_tuning_is_kept_and_used(otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTDD_CACHE", str(tmp_path / "cache"))
    outcome = otdd(
        "bench", "n=2000", "d=300", "levels=true", "tune=true", "tune_modes=[int8]", "tune_seconds=5", "output=json"
    )
    assert outcome.code == 0, outcome.err
    tuning = json.loads(outcome.out)["tuning"]
    assert tuning["searches"][0]["chosen_ms"] <= tuning["searches"][0]["table_ms"]
    entries = json.loads(Path(tuning["file"]).read_text())["entries"]
    assert entries["int8, over 256"]["config"] == tuning["searches"][0]["chosen"]
    assert torch.cuda.get_device_name() == json.loads(Path(tuning["file"]).read_text())["device"]
