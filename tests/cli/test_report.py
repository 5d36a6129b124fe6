from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import otdd_flash
from otdd_flash.reporting.numbers import number
from tests.reporting.pages import parse

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

Command = Callable[..., SimpleNamespace]
QUICK = ("solver.relative_epsilon=0.1", "labels=means", "device=cpu")
IRIS = ("report", "source=iris", "source.classes=[0,1]", "target=iris", *QUICK)
STOPPED = ("solver.tol=1e-12", "solver.max_iterations=1", "report.bootstrap=0", "report.values=false")


def test_page_has_distance_interval_values_and_map(otdd: Command, tmp_path: Path) -> None:
    sets = "sets=[{name:iris,classes:[2],as:rest},{name:iris,classes:[0,2],as:most}]"
    outcome = otdd(*IRIS, sets, "report.file=made/page.html", "report.bootstrap=10", "report.top=2", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    page = tmp_path / "made" / "page.html"
    assert (record["file"], record["bytes"]) == ("made/page.html", page.stat().st_size)
    source, target = otdd_flash.load("iris", classes=[0, 1]), otdd_flash.load("iris")
    result = otdd_flash.dataset_distance(source, target, relative_epsilon=0.1, label_distance="means")
    distance, ranking, values, matrix = record["results"]
    assert distance["title"] == "iris classes 0,1 -> iris"
    assert distance["value"] == pytest.approx(result.value, rel=1e-9)
    found = otdd_flash.values(source, target, label_distance="means")  # at an epsilon of its own
    assert values["value"] == pytest.approx(found.result.value, rel=1e-9)
    assert ranking["interval"][0] < ranking["interval"][1]
    assert matrix == {"title": "4 data sets", "converged": True, "failed": []}
    tree = parse(page.read_text(encoding="utf-8"))
    anchors = [section.attributes["id"] for section in tree.find("section")]
    assert anchors == ["distance", "class-distances", "class-matching", "values", "sets", "parameters"]
    assert tree.section("distance").find("span", class_="value")[0].text == number(result.value)
    assert (
        tree.section("distance")
        .facts["95% interval of the value, bias subtracted"]
        .endswith("(10 half-samples of both sets)")
    )
    assert {"rest", "most", "iris"} <= set(tree.section("sets").find("table")[0].rows[0])


def test_default_place_is_the_runs_folder(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd(*IRIS, "report.bootstrap=0", "report.values=false", "report.title='a <b> title'")
    assert outcome.code == 0, outcome.err
    (page,) = tmp_path.glob("outputs/report/*/*/report.html")
    assert parse(page.read_text(encoding="utf-8")).find("h1")[0].text == "a <b> title"
    title, _, *rows = outcome.out.splitlines()
    assert title == "report"
    assert rows[0].startswith("iris classes 0,1 -> iris  ")
    assert [row for row in rows if row][-1].split("  ")[0] == "page"


def test_pictures_are_those_before_the_embedder(otdd: Command, tmp_path: Path) -> None:
    overrides = (
        "source=digits",
        "target=digits",
        "max_samples=60",
        "seed=1",
        "features=pca",
        "features.embedder=pca:5",
    )
    outcome = otdd("report", *overrides, *QUICK, "report.file=page.html", "report.top=3", "report.bootstrap=0")
    assert outcome.code == 0, outcome.err
    tree = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(tree.section("values").find("img")) == 9


def test_saved_runs(otdd: Command, tmp_path: Path) -> None:
    assert otdd("distance", "source=iris", "source.classes=[0,1]", "target=iris", *QUICK).code == 0
    assert (
        otdd("matrix", "datasets=[iris,{name:iris,classes:[0,1],as:two},{name:iris,classes:[2],as:one}]", *QUICK).code
        == 0
    )
    (distance,), (matrix,) = tmp_path.glob("outputs/distance/*/*"), tmp_path.glob("outputs/matrix/*/*")
    outcome = otdd("report", f"saved=['{distance}','{matrix}']", "report.file=page.html", "output=json")
    assert outcome.code == 0, outcome.err
    stored = json.loads((distance / "result.json").read_text())
    assert json.loads(outcome.out)["results"][0]["value"] == stored["value"]
    tree = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert tree.find("section", id="class-distances")
    assert tree.section("sets").find("table")[0].rows[0][0] == ""
    lost = otdd("report", "saved=nowhere")
    assert (lost.code, len(lost.errors)) == (1, 1)
    assert "nowhere is no file and no folder with result.json" in lost.errors[0]


def test_what_was_computed_is_kept_before_the_page_is_drawn(
    otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that cannot be drawn loses nothing: the numbers are told, and a later report takes the folders."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such font")

    sets = "sets=[{name:iris,classes:[2],as:rest}]"
    with monkeypatch.context() as patch:
        patch.setattr("otdd_flash.reporting.report", broken)
        outcome = otdd(*IRIS, sets, "report.bootstrap=10", "output=json", "hydra.run.dir='a run'")
    assert outcome.code == 1
    (error,) = outcome.errors
    words, _, typed = error.partition('otdd report "')
    assert words == "otdd report: error: no such font; what was computed is kept: "
    record = json.loads(outcome.out)
    assert record["file"] is None
    assert record["results"][0]["title"] == "iris classes 0,1 -> iris"
    (saved,) = shlex.split(f'"{typed}')
    again = otdd("report", saved, "report.file=page.html", "output=json")
    assert again.code == 0, again.err
    values = [found.get("value") for found in json.loads(again.out)["results"]]
    assert values == [found.get("value") for found in record["results"]]


def test_a_page_without_a_place_is_refused(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd(*IRIS, "output.files=false")
    assert outcome.code == 1
    assert "output.files=false keeps no folder for the page: name its file, as report.file=" in outcome.errors[0]
    given = ("report.bootstrap=0", "report.values=false", "report.file=page.html")
    assert otdd(*IRIS, *given, "output.files=false").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_saved_file_changed_by_hand_is_named_with_its_key(otdd: Command, tmp_path: Path) -> None:
    run = ("distance", "source=iris", "source.classes=[0,1]", "target=iris", *QUICK, "hydra.run.dir=run")
    assert otdd(*run).code == 0
    file = tmp_path / "run" / "result.json"
    record = json.loads(file.read_text())
    for key, wrong in ("value", "high"), ("seconds", [1]), ("names", None), ("class_counts", 3):
        file.write_text(json.dumps({**record, key: wrong}))
        outcome = otdd("report", "saved=run", "report.file=page.html")
        assert outcome.code == 1
        (line,) = outcome.errors
        assert f"run/result.json is not a whole result of otdd distance: {key} is " in line
    file.write_text(json.dumps({**record, "seconds": {"total": "long"}}))
    outcome = otdd("report", "saved=run", "report.file=page.html")
    assert outcome.code in (0, 1)
    assert all("saved=run cannot be shown" in line for line in outcome.errors)


def test_not_converged_exits_4_under_strict_with_the_page_written(otdd: Command, tmp_path: Path) -> None:
    assert otdd(*IRIS, *STOPPED).code == 0
    outcome = otdd(*IRIS, *STOPPED, "strict=true", "report.file=page.html")
    assert outcome.code == 4
    assert "NOT converged: do not use this" in outcome.out
    tree = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "NOT CONVERGED" in tree.find("div", role="alert")[0].text


@pytest.mark.parametrize(
    "other", ["solver.reach=5", "solver.reach_x=5", "solver.debiased=false", "convention=microsoft"]
)
def test_what_is_not_defined_is_left_out(other: str, otdd: Command, tmp_path: Path) -> None:
    quick = () if other == "convention=microsoft" else QUICK
    sets = ("source=iris", "source.classes=[0,1]", "target=iris", "max_samples=40", "device=cpu")
    outcome = otdd("report", *sets, *quick, other, "report.file=page.html")
    assert outcome.code == 0, outcome.err
    assert "no sample values" in outcome.err
    tree = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not tree.find("section", id="values")
    lent = "interval" not in tree.section("distance").facts
    assert lent == (other in ("solver.reach=5", "solver.debiased=false"))
    assert lent or "no interval" in outcome.err


def test_failed_sets_exit_1_with_the_page_written(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd(*IRIS, "report.bootstrap=0", "report.values=false", "sets=[nosuch]", "report.file=page.html")
    assert outcome.code == 1
    assert outcome.errors[-1].startswith("otdd report: error: 1 sets or pairs failed, the page shows the rest: nosuch")
    assert "Failed: nosuch" in parse((tmp_path / "page.html").read_text()).find("div", role="alert")[0].text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("report.file=.", "it is a folder"),
        ("report.file=taken/page.html", "is no folder"),
        ("report.top=-1", "top must be at least 0, got -1"),
        ("sets=[{name:iris,as:iris}]", "are the names of source or target"),
        ("saved=[]", "saved is empty"),
    ],
)
def test_what_cannot_be_done_is_one_line(override: str, message: str, otdd: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    outcome = otdd(*IRIS, "report.bootstrap=0", "report.values=false", override)
    assert outcome.code == 1
    assert len(outcome.errors) == 1
    assert message in outcome.errors[0]
    assert not list(tmp_path.rglob("*.html"))


def test_missing_packages_are_said_before_anything_is_computed(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    outcome = otdd("report", "source=nosuch")
    assert outcome.code == 2  # the set is unknown to the config already
    outcome = otdd(*IRIS)
    assert outcome.code == 1
    needs = "a report needs jinja2, which is not installed: pip install 'otdd-flash[report]'"
    assert outcome.errors == [f"otdd report: error: {needs}"]
    assert "LabeledDataset" not in outcome.err


def test_unknown_keys_are_usage(otdd: Command) -> None:
    assert otdd("report", "report.colour=red").code == 2
