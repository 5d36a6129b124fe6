"""Pages of earlier runs show what pages of results at hand do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import otdd_flash as otdd
from otdd_flash.reporting import render, saved
from otdd_flash.reporting.saved import load_saved
from tests.reporting.pages import Results, blobs, parse

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


def write(folder: Path, name: str, task: str | None, record: dict[str, Any]) -> Path:
    """As the command line does."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(json.dumps(record if task is None else {"task": task, **record}, allow_nan=False))
    return folder


def refusal(folder: Path) -> str | None:
    """Why a file is not read."""
    try:
        load_saved(folder)
    except ValueError as error:
        return str(error)
    return None


def test_matrix_and_ranking_come_back_whole(results: Results, tmp_path: Path) -> None:
    matrix = write(tmp_path / "matrix", "matrix.json", "matrix", results.matrix.to_dict())
    ranking = write(tmp_path / "rank", "ranking.json", "rank", results.ranking.to_dict())
    assert load_saved(matrix).to_dict() == results.matrix.to_dict()
    assert load_saved(ranking / "ranking.json").to_dict() == results.ranking.to_dict()
    assert render([matrix, str(ranking)]) == render([results.matrix, results.ranking])


def test_a_matrix_by_the_librarys_own_file_and_folder(tmp_path: Path) -> None:
    sets = [blobs(("a", "b"), 20, seed, name=f"set {seed}") for seed in range(3)]
    matrix = otdd.pairwise(sets, folder=tmp_path / "pairs", relative_epsilon=0.1)
    file = matrix.to_json(tmp_path / "own.json")
    for place in (file, tmp_path / "pairs"):
        assert load_saved(place).values.equal(matrix.values)


def test_gaps_come_back_as_gaps(results: Results, tmp_path: Path) -> None:
    values = results.matrix.values.clone()
    values[0, 1] = values[1, 0] = float("nan")
    gappy = replace(results.matrix, values=values)
    found = load_saved(write(tmp_path, "matrix.json", "matrix", gappy.to_dict()))
    assert found.missing == (("wild", "tame"),)


def test_distance_has_number_and_class_distances(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    folder = write(tmp_path, "result.json", "distance", {**results.distance.to_dict(), "config": {"seed": 3}})
    bare = parse(render(folder))
    assert not bare.find("section", id="class-distances")
    results.distance.label_distances.to_safetensors(tmp_path / "label_distances.safetensors")
    tree, live = parse(render(folder)), parse(render(results.distance))
    for anchor in ("distance", "class-distances"):
        assert tree.section(anchor).text == live.section(anchor).text
    assert "Not known" in tree.section("class-matching").text
    assert tree.section("parameters").facts["config.seed"] == "3"
    both = parse(render([folder, results.ranking]))  # the ranking knows the plan's class masses, and the interval
    assert both.section("class-matching").text == live.section("class-matching").text
    assert "sampling bias of the value" in both.section("distance").facts


def test_values_have_all_but_their_pictures(results: Results, tmp_path: Path) -> None:
    write(tmp_path, "result.json", "values", {**results.values.to_dict(), "config": {}})
    with pytest.raises(FileNotFoundError, match=r"values\.jsonl is not there"):
        load_saved(tmp_path)
    results.values.write(tmp_path / "values.jsonl")
    plain = replace(results.values, pool=replace(results.values.pool, image_shape=None))
    assert parse(render(tmp_path)).section("values").text == parse(render(plain)).section("values").text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a result of otdd"),
        ("[]", "its task is None"),
        ('{"task": "check"}', "its task is 'check', not distance, values, matrix, rank"),
        ('{"task": "rank", "candidates": [{}]}', "is not a whole result of otdd rank: it has no target"),
        ('{"task": "distance", "names": ["a", "b"]}', "is not a whole result of otdd distance: it has no value"),
        ('{"task": "matrix", "names": 3}', "is not a whole result of otdd matrix: names is 3, no list"),
    ],
)
def test_other_files_are_refused_by_name(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"result\.json .*{message}"):
        load_saved(tmp_path)


def test_a_number_that_is_missing_is_named(results: Results, tmp_path: Path) -> None:
    """All that the page shows is asked for when the file is read, not half way through the page."""
    whole = results.distance.to_dict()
    for key in saved._DISTANCE:
        folder = write(tmp_path, "result.json", "distance", {k: v for k, v in whole.items() if k != key})
        with pytest.raises(ValueError, match=rf"result\.json is not a whole result of otdd distance: it has no {key}"):
            load_saved(folder)
    record = {k: v for k, v in whole.items() if k in saved._DISTANCE}
    assert parse(render(write(tmp_path, "result.json", "distance", record))).section("distance").facts


@pytest.mark.parametrize("task", ["distance", "values", "matrix", "rank"])
def test_a_file_changed_by_hand_is_shown_or_refused_by_its_key(task: str, results: Results, tmp_path: Path) -> None:
    """Every key of a file in turn lost, or something of another kind."""
    result, name = {
        "distance": (results.distance, "result.json"), "values": (results.values, "result.json"),
        "matrix": (results.matrix, "matrix.json"), "rank": (results.ranking, "ranking.json"),
    }[task]  # fmt: skip
    if task == "values":
        results.values.write(tmp_path / "values.jsonl")
    whole = result.to_dict()
    refused = set()
    for key in whole:
        for wrong in (None, True, "text", {"a": 1}, [1], ["a"], "lost"):
            record = {k: wrong if k == key else v for k, v in whole.items() if k != key or wrong != "lost"}
            folder = write(tmp_path, name, task, record)
            message = refusal(folder)
            if message is not None:
                assert f"{name} is not a whole result of otdd {task}: " in message
                assert key.rstrip("s") in message, (key, wrong)
                assert "object" not in message
                refused.add(key)
    expected = {
        "distance": {"value", "root", "names", "n", "m", "converged", "notes", "versions"},
        "values": {"parts", "distance"},
        "matrix": {"names", "values", "errors", "pairs", "failures", "sets", "epsilon", "options", "notes", "seconds"},
        "rank": {"target", "target_classes", "candidates", "level", "bootstrap", "epsilon", "options", "failures"},
    }  # fmt: skip
    assert refused >= expected[task]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["values"].pop(), "values must be a table of 4 x 4 numbers"),
        (lambda record: record["pairs"][0].update(source="nobody"), "pairs[0] is of nobody and "),
        (lambda record: record["pairs"][1].update(converged="yes"), "pairs[1].converged is 'yes', no true or false"),
        (lambda record: record["errors"][0].__setitem__(1, "x"), "errors is no table of numbers"),
    ],
)
def test_an_entry_changed_by_hand_is_named(change: Any, words: str, results: Results, tmp_path: Path) -> None:
    record = results.matrix.to_dict()
    change(record)
    with pytest.raises(ValueError, match="matrix.json is not a whole result of otdd matrix: " + re.escape(words)):
        load_saved(write(tmp_path, "matrix.json", "matrix", record))


def test_a_table_cut_short_is_named(results: Results, tmp_path: Path) -> None:
    folder = write(tmp_path, "result.json", "values", {**results.values.to_dict(), "config": {}})
    results.values.write(folder / "values.jsonl")
    text = (folder / "values.jsonl").read_text()
    (folder / "values.jsonl").write_text(text[: len(text) - 20])
    with pytest.raises(ValueError, match=r"values\.jsonl is not a table of values"):
        load_saved(folder)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder with result\.json, matrix\.json, ranking\.json"):
        load_saved(tmp_path)
