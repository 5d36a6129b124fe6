"""What a screen left out is told apart from what was computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import otdd_flash as otdd
from otdd_flash.reporting import render
from otdd_flash.reporting.numbers import number
from tests.reporting.pages import blobs, parse

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

SCREEN = otdd.Screen(keep=1, margin=0.0, projections=50, quantiles=16)
SETS = [blobs(("a", "b"), 20, seed, name=f"set {seed}") for seed in range(6)]


def test_estimates_of_a_matrix_are_marked(tmp_path: Path) -> None:
    matrix = otdd.pairwise(SETS, screen=SCREEN, relative_epsilon=0.2)
    assert matrix.screening is not None
    page = render(matrix)
    tree = parse(page)
    heat = tree.section("sets").find("table")[0]
    filled, exact = matrix.filled(), 0
    for row in heat.rows[1:]:
        for name, text in zip(heat.rows[0][1:], row[1:], strict=True):
            i, j = matrix.names.index(row[0]), matrix.names.index(name)
            rough = "" if matrix.screening.refined[i, j] else "≈"
            assert text == rough + number(filled.distance(row[0], name))
            exact += not rough
    assert 6 < exact < 36
    assert f"{len(matrix.certificates)} of {len(matrix.certificates)} pairs are done" in tree.section("sets").text
    assert "screened by the sliced distance" in tree.section("sets").text
    assert len(tree.section("sets").find("svg")) == 2
    assert not tree.find("div", role="alert")
    assert render(matrix.to_json(tmp_path / "matrix.json")) == page


def test_candidates_that_were_screened_out_are_listed(tmp_path: Path) -> None:
    ranking = otdd.rank(SETS[1:], SETS[0], bootstrap=0, screen=SCREEN, relative_epsilon=0.2)
    assert ranking.screening is not None
    page = render(ranking)
    section = parse(page).section("ranking")
    assert "5 candidates were screened by the sliced distance; the nearest 1 got the full one." in section.text
    rows = section.find("details")[0].find("table")[0].rows[1:]
    assert [name for name, _ in rows] == list(ranking.order[1:])
    assert [text for _, text in rows] == [number(ranking.screening.values[name]) for name in ranking.order[1:]]
    file = tmp_path / "ranking.json"
    file.write_text(json.dumps({"task": "rank", **ranking.to_dict()}))
    assert render(file) == page
