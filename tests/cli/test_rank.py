from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import otdd_flash
from otdd_flash.cli.config import ScreenConfig

Command = Callable[..., SimpleNamespace]
RANK = (
    "rank", "target=iris", "candidates=[{name:iris,classes:[0,1],as:two},{name:iris,max_samples:60,as:part}]",
    "solver.relative_epsilon=0.1", "labels=means", "device=cpu", "max_samples=90",
)  # fmt: skip


def test_json_is_the_librarys_ranking(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd(*RANK, "bootstrap=10", "output=json", "seed=2")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    sets = {
        "two": otdd_flash.load("iris", max_samples=90, seed=2, classes=[0, 1]),
        "part": otdd_flash.load("iris", max_samples=60, seed=2),
    }
    target = otdd_flash.load("iris", max_samples=90, seed=2)
    ranking = otdd_flash.rank(sets, target, bootstrap=10, seed=2, relative_epsilon=0.1, label_distance="means")
    assert [item["name"] for item in record["candidates"]] == list(ranking.names) == ["part", "two"]
    for item in record["candidates"]:
        assert item["value"] == pytest.approx(ranking[item["name"]].value, rel=1e-9)
        assert item["low"] == pytest.approx(ranking[item["name"]].low, rel=1e-9)
    (folder,) = tmp_path.glob("outputs/rank/*/*")
    assert json.loads((folder / "ranking.json").read_text()) == record


def test_table_says_order_interval_and_matching(otdd: Command) -> None:
    outcome = otdd(*RANK, "bootstrap=10")
    assert outcome.code == 0, outcome.err
    title, _, first, second, *rest = outcome.out.splitlines()
    assert title == "2 candidates for iris"
    assert first.startswith("1. part ")
    assert "nearer than the next, p = " in first
    assert second.startswith("2. two ")
    assert "p = " not in second
    assert any("setosa <- setosa (" in line for line in rest)


def test_a_failed_candidate_is_exit_code_1_and_the_others_are_ranked(otdd: Command) -> None:
    candidates = "candidates=[nosuch,{name:iris,max_samples:60,as:part}]"
    outcome = otdd(*RANK, candidates, "bootstrap=0", "output=json")
    assert outcome.code == 1
    said = "otdd rank: error: 1 candidates failed, the others are ranked: nosuch: no data set named 'nosuch'"
    (error,) = outcome.errors
    assert error.startswith(said)
    table = otdd(*RANK, candidates, "bootstrap=0")
    assert (table.out + table.err).count("nosuch: no data set") == 1, "told once"
    record = json.loads(outcome.out)
    assert [item["name"] for item in record["candidates"]] == ["part"]
    assert record["failures"][0]["names"] == ["nosuch"]


def test_not_converged_exits_4_under_strict(otdd: Command) -> None:
    stopped = ("bootstrap=0", "solver.tol=1e-12", "solver.max_iterations=1", "solver.relative_epsilon=0.01")
    assert otdd(*RANK, *stopped, "output=json").code == 0
    assert otdd(*RANK, *stopped, "output=json", "strict=true").code == 4


def test_screen_orders_all_and_refines_the_nearest(otdd: Command) -> None:
    sets = ",".join(f"{{name:iris,max_samples:{n},as:part {n}}}" for n in (80, 70, 60))
    candidates = f"candidates=[{sets},{{name:iris,classes:[0],as:one}},{{name:iris,classes:[2],as:other}}]"
    arguments = (*RANK, candidates, "bootstrap=0", "screen.keep=2", "screen.margin=0")
    record = json.loads(otdd(*arguments, "output=json").out)
    refined = [item["name"] for item in record["candidates"]]
    assert len(refined) == 2
    assert set(refined) < {"part 80", "part 70", "part 60"}
    assert set(list(record["screening"]["values"])[3:]) == {"one", "other"}
    assert set(record["screening"]["refined"]) == set(refined)
    table = otdd(*arguments).out
    assert table.startswith("2 of 5 candidates for iris")
    assert "5 by the sliced distance; the full one for 2" in table
    assert "next by the screen: part" in table
    wrong = otdd(*RANK, "screen.keep=0")
    assert wrong.code == 1
    assert "screen.keep must be a positive count" in wrong.errors[0]


def test_screen_defaults_are_the_librarys() -> None:
    defaults = {item.name: item.default for item in fields(otdd_flash.Screen)}
    for item in fields(ScreenConfig):
        if item.name != "keep":
            assert defaults[item.name] == item.default, item.name
    assert set(defaults) == {item.name for item in fields(ScreenConfig)}
