from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import otdd_flash
from otdd_flash.cli import config as schemas
from otdd_flash.cli.sets import Common, entry, sources

Command = Callable[..., SimpleNamespace]
QUICK = ("labels=means", "solver.relative_epsilon=0.1", "device=cpu")
THREE = "datasets=[iris,{name:iris,classes:[0,1]},{name:iris,classes:[2],as:virginica}]"
COMMON = Common(max_samples=40, data_root=None, resize=None, seed=3)


def write_sets(folder: Path, count: int, n: int = 60) -> str:
    """``count`` files of blobs, and the override that names them."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        y = np.arange(n) % 3
        np.savez(
            folder / f"s{seed}.npz", x=np.random.default_rng(99).normal(size=(3, 4))[y] + rng.normal(size=(n, 4)), y=y
        )
    return ",".join(f"{{name:'npz:s{seed}.npz',as:s{seed}}}" for seed in range(count))


def test_json_is_the_librarys_matrix(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("matrix", THREE, "output=json", "max_samples=40", "seed=3", *QUICK)
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["names"] == ["iris", "iris classes 0,1", "virginica"]
    sets = {
        "all": otdd_flash.load("iris", max_samples=40, seed=3),
        "two": otdd_flash.load("iris", max_samples=40, seed=3, classes=[0, 1]),
        "one": otdd_flash.load("iris", max_samples=40, seed=3, classes=[2]),
    }
    matrix = otdd_flash.pairwise(sets, label_distance="means", relative_epsilon=0.1)
    assert torch.allclose(torch.tensor(record["values"]).double(), matrix.values, rtol=1e-6)
    assert record["converged"] is True
    assert record["epsilon"] == pytest.approx(matrix.epsilon, rel=1e-9)
    (folder,) = tmp_path.glob("outputs/matrix/*/*")
    assert json.loads((folder / "matrix.json").read_text()) == record


def test_files_of_a_run(otdd: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    outcome = otdd("matrix", THREE, "max_samples=30", *QUICK)
    assert outcome.code == 0, outcome.err
    (folder,) = tmp_path.glob("outputs/matrix/*/*")
    names = {"matrix.json", "matrix.parquet", "heat_map.png", "dendrogram.png", "map.png"}
    assert names <= {path.name for path in folder.iterdir()}
    assert (folder / "heat_map.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    first, *rows = outcome.out.splitlines()
    assert first == "3 data sets"
    assert any(row.startswith("pairs ") and "3 of 3, 6 items computed, 0 found finished" in row for row in rows)
    assert any(row.startswith("converged") and row.endswith("yes") for row in rows)


def test_a_broken_set_is_exit_code_1_and_the_rest_is_done(otdd: Command) -> None:
    """C25."""
    arguments = (THREE.replace("[iris,", "[nosuch,iris,"), "max_samples=30", *QUICK)
    outcome = otdd("matrix", *arguments, "folder=kept", "output=json")
    assert outcome.code == 1
    (error,) = outcome.errors
    assert error.startswith("otdd matrix: error: 1 sets or pairs failed, the rest is done: nosuch; the first says: no")
    record = json.loads(outcome.out)
    assert len(record["pairs"]) == 3
    assert [failure["names"] for failure in record["failures"]] == [["nosuch"]]
    assert record["values"][0] == [None] * 4
    mended = otdd("matrix", THREE, *arguments[1:], "folder=kept", "output=json")
    assert mended.code == 0
    assert (json.loads(mended.out)["computed"], json.loads(mended.out)["reused"]) == (0, 6)


def test_shards_then_collect(otdd: Command) -> None:
    arguments = (THREE, "max_samples=30", *QUICK, "folder=kept", "output=json")
    parts = [json.loads(otdd("matrix", *arguments, f"shard={i}/2").out) for i in range(2)]
    assert [part["computed"] for part in parts] == [3, 3]
    assert not parts[0]["complete"]
    whole = json.loads(otdd("matrix", *arguments, "collect=true").out)
    assert whole["complete"]
    assert whole["values"] == parts[1]["values"]


def test_not_converged_exits_4_under_strict(otdd: Command) -> None:
    arguments = (THREE, "max_samples=30", "device=cpu", "solver.tol=1e-12", "solver.max_iterations=1", "output=json")
    assert otdd("matrix", *arguments).code == 0
    outcome = otdd("matrix", *arguments, "strict=true")
    assert outcome.code == 4
    assert json.loads(outcome.out)["converged"] is False


def test_terminated_half_way_keeps_what_is_finished(otdd: Command, tmp_path: Path) -> None:
    """C25 and C27 from a shell: SIGTERM with two workers; they end, and the second run computes only the rest."""
    sets = write_sets(tmp_path, 8, 700)  # large enough for a few pairs a batch
    arguments = ("matrix", f"datasets=[{sets}]", "folder=kept", "output=json", "output.files=false", *QUICK)
    command = [sys.executable, "-m", "otdd_flash.cli.main", *arguments, "workers=2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(otdd_flash.__file__).parents[1])}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    kept = tmp_path / "kept" / "pairs"
    deadline = time.monotonic() + 120
    while len(list(kept.glob("*.json"))) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    before = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert 2 <= len(before) < 28
    again = otdd(*arguments)
    assert again.code == 0, again.err
    record = json.loads(again.out)
    assert record["complete"]
    assert record["reused"] == len(before) + 8
    assert record["computed"] == 28 - len(before)
    assert before == {name: (kept / name).stat().st_mtime_ns for name in before}


@pytest.mark.parametrize(
    ("given", "name", "settings"),
    [
        ("mnist", "mnist", {"name": "mnist", "max_samples": 40}),
        ({"name": "usps", "split": "test"}, "usps test", {"split": "test", "max_samples": 40}),
        ({"name": "usps", "as": "letters", "max_samples": 7}, "letters", {"max_samples": 7}),
    ],
)
def test_entries(given: object, name: str, settings: dict) -> None:
    title, config = entry(given, COMMON)
    assert title == name
    assert {key: getattr(config, key) for key in settings} == settings


def test_a_star_in_a_path_is_every_file_that_matches(tmp_path: Path) -> None:
    write_sets(tmp_path, 3)
    (tmp_path / "deep").mkdir()
    write_sets(tmp_path / "deep", 1)
    features = schemas.FeaturesConfig()
    found = sources(
        [f"npz:{tmp_path}/s*.npz", {"name": "npz", "path": f"{tmp_path}/**/s0.npz"}], COMMON, features, "cpu"
    )
    assert [source.name for source in found] == ["s0", "s1", "s2", "deep", "s0.npz"]
    assert [source.dataset().n for source in found] == [40] * 5
    named = {"name": "npz", "path": f"{tmp_path}/s*.npz", "as": "site"}
    assert [source.name for source in sources([named], COMMON, features, "cpu")] == ["site s0", "site s1", "site s2"]
    with pytest.raises(ValueError, match=r"no file matches '.*t\*\.npz'"):
        sources([f"npz:{tmp_path}/t*.npz"], COMMON, features, "cpu")


def test_screen_keeps_the_nearest_neighbours(otdd: Command, tmp_path: Path) -> None:
    write_sets(tmp_path, 6)
    arguments = ("matrix", "datasets=[npz:s*.npz]", *QUICK, "screen.keep=1", "screen.margin=0")
    outcome = otdd(*arguments, "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    sets = {f"s{i}": otdd_flash.load(f"npz:s{i}.npz") for i in range(6)}
    screen = otdd_flash.Screen(keep=1, margin=0.0)
    matrix = otdd_flash.pairwise(sets, label_distance="means", relative_epsilon=0.1, screen=screen)
    assert record["names"] == list(matrix.names)
    assert {(pair["source"], pair["target"]) for pair in record["pairs"]} == {
        (matrix.names[i], matrix.names[j]) for i, j in matrix.certificates
    }
    assert record["screening"]["factor"] == pytest.approx(matrix.screening.factor, rel=1e-6)
    table = otdd(*arguments)
    assert table.code == 0, table.err
    (row,) = (line for line in table.out.splitlines() if line.startswith("screened "))
    assert row.endswith("15 pairs by the sliced distance, 1 neighbours of each set")
    done = len(matrix.certificates)
    assert f"{done} of {done}, {done + 6} items computed" in table.out
    if pytest.importorskip("matplotlib"):
        assert {"map.png", "map_tsne.png", "dendrogram.png"} <= {path.name for path in tmp_path.rglob("*.png")}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "usps", "spilt": "test"}, r"unknown keys \['spilt'\]"),
        ({"split": "test"}, "has no name"),
        (7, "has no name"),
    ],
)
def test_entries_that_are_none(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        entry(given, COMMON)


def test_fitted_features_are_fitted_on_the_first_set() -> None:
    features = schemas.FeaturesConfig(scaling="standardize")
    entries = ["iris", {"name": "iris", "classes": [2], "as": "virginica"}]
    first, second = (source.dataset() for source in sources(entries, COMMON, features, "cpu"))
    whole = otdd_flash.load("iris", max_samples=40, seed=3).x.double()
    part = otdd_flash.load("iris", max_samples=40, seed=3, classes=[2]).x.double()
    mean, deviation = whole.mean(0), whole.std(0, correction=0)
    torch.testing.assert_close(first.x.double(), (whole - mean) / deviation, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second.x.double(), (part - mean) / deviation, rtol=1e-5, atol=1e-5)


def test_many_sets_have_no_sides() -> None:
    with pytest.raises(ValueError, match="many sets have no sides"):
        sources(["iris"], COMMON, schemas.FeaturesConfig(fit_on="target"), "cpu")
