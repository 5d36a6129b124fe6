"""The scripts of applications, on small problems."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

import otdd_flash as otdd

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_label_transfer_counts_what_a_dense_plan_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    run = script("label_transfer")
    given = ["--source", "digits", "--target", "semeion_like", "--n", "60", "--relative-epsilon", "0.05", "--k", "1"]
    digits = otdd.load("digits", classes=[0, 1, 2, 3])
    sides = {"digits": digits.subset(range(80)), "semeion_like": digits.subset(range(80, 150))}
    run.load = lambda name, args: sides[name]
    files = ["--picture", str(tmp_path / "map.png"), "--output", str(tmp_path / "map.json")]
    assert run.main([*given, *files]) == 0
    (record,) = json.loads((tmp_path / "map.json").read_text())["runs"]

    source, target = sides["digits"], sides["semeion_like"]
    found = otdd.dataset_distance(source, target, label_distance=None, relative_epsilon=0.05)
    plan = found.plan.dense()
    one_hot = torch.nn.functional.one_hot(source.y).double()
    through = ((plan.T @ one_hot).argmax(1) == target.y).double().mean()
    moved = plan @ target.x.double() / plan.sum(1, keepdim=True)
    nearest = source.y[torch.cdist(target.x.double(), moved).argmin(1)]
    assert record["through_the_plan"] == pytest.approx(float(through))
    assert record["map"]["1"] == pytest.approx(float((nearest == target.y).double().mean()))
    assert record["through_the_plan"] > 0.9
    assert record["converged"] is True
    assert f"{float(through):.1%}" in capsys.readouterr().out
    # three rows of four digits of 8 x 8, three screen pixels each
    assert image.open(tmp_path / "map.png").size == (4 * 10 * 3, 3 * 10 * 3)


def test_label_transfer_wants_classes_that_the_source_knows() -> None:
    run = script("label_transfer")
    source, target = (otdd.load("digits", classes=classes) for classes in ([0, 1], [1, 2]))
    with pytest.raises(ValueError, match="classes that the source lacks: 2"):
        run.target_labels(source, target)


def test_shuffled_regression_leaves_the_saddle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From ``W = 0``, where Adam alone rests."""
    run = script("shuffled_regression")
    path = tmp_path / "runs.json"
    given = ["--seeds", "1", "--n", "16", "--p", "2", "--steps", "60", "--tol", "1e-5", "--starts", "zero"]
    assert run.main([*given, "--output", str(path)]) == 0
    adam, hybrid = json.loads(path.read_text())["runs"]
    assert adam["solves"] == 1  # the gradient is zero there
    assert hybrid["saddles_left"] >= 1
    assert hybrid["loss"] < 0.5 * adam["loss"]
    assert "hybrid lower 1, equal within 1e-06 0, adam lower 0; saddles left" in capsys.readouterr().out
