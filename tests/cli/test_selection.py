from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import otdd_flash
from otdd_flash.cli import selection_config as schemas
from otdd_flash.selection import select as library
from otdd_flash.selection.values import DEFAULT_OPTIONS as VALUES

Command = Callable[..., SimpleNamespace]
IRIS = ("source=iris", "target=iris", "target.classes=[0,1]", "device=cpu")


def test_values(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("values", *IRIS, "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    pool, target = otdd_flash.load("iris"), otdd_flash.load("iris", classes=[0, 1])
    found = otdd_flash.values(pool, target)
    assert record["distance"]["relative_epsilon"] == pytest.approx(VALUES.relative_epsilon)
    assert record["parts"]["total"]["by_class"] == pytest.approx(found.by_class(), rel=1e-6)
    (written,) = tmp_path.glob("outputs/values/*/*/values.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert {row["class"] for row in rows[:40]} == {"virginica"}, "the class that the target lacks comes first"


def test_values_table(otdd: Command) -> None:
    outcome = otdd("values", *IRIS, "top=3", "parts=false", "output.files=false")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("virginica") == 4
    assert "mislabelled" not in outcome.out


def test_select(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("select", *IRIS, "n_to_select=30", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    found = otdd_flash.select(otdd_flash.load("iris"), otdd_flash.load("iris", classes=[0, 1]), 30)
    assert record["value"] == pytest.approx(found.value, rel=1e-6)
    assert record["by_class"] == {"setosa": 15, "versicolor": 15}
    (written,) = tmp_path.glob("outputs/select/*/*/selected.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["row"] for row in rows] == found.idx.tolist()
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(written.with_suffix(".parquet")).to_pylist() == rows


def test_select_from_several_sources(otdd: Command) -> None:
    more = "more=[{name: iris, classes: [1]}]"
    outcome = otdd("select", *IRIS, "source.classes=[0]", more, "n_to_select=0.2", "balance=classes")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("20 of iris classes 0 + iris classes 1 for iris classes 0,1")
    assert "10  iris 0/setosa" in outcome.out
    assert "10  iris 1/versicolor" in outcome.out


def test_not_converged_exits_4_under_strict(otdd: Command) -> None:
    stopped = ("solver.tol=1e-12", "solver.max_iterations=1", "strict=true", "output=json")
    outcome = otdd("values", *IRIS, *stopped)
    assert outcome.code == 4
    assert json.loads(outcome.out)["distance"]["converged"] is False


def test_defaults_are_the_librarys() -> None:
    defaults = {item.name: item.default for item in fields(library.SearchOptions)}
    for item in fields(schemas.SearchConfig):
        assert defaults[item.name] == item.default, item.name
