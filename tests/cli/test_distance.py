from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otdd_flash
from otdd_flash.cli import config as schemas
from otdd_flash.data import sources
from otdd_flash.distance import DistanceOptions

Command = Callable[..., SimpleNamespace]
ROOT = Path(__file__).resolve().parents[2]
IRIS = ("source=iris", "target=iris", "source.classes=[0,1]", "target.classes=[2]", "device=cpu")
STOPPED = ("solver.tol=1e-12", "solver.max_iterations=1")


def plain(value: Any) -> bool:
    """Whether ``value`` is made of what JSON has, exactly, and of nothing derived from it."""
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


def test_json_is_the_librarys_number(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("distance", *IRIS, "output=json", "seed=3", "max_samples=40")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    a, b = (otdd_flash.load("iris", classes=classes, max_samples=40, seed=3) for classes in ([0, 1], [2]))
    result = otdd_flash.dataset_distance(a, b, seed=3, device="cpu")
    assert record["value"] == pytest.approx(result.value, rel=1e-9)
    assert record["root"] == pytest.approx(result.value**0.5, rel=1e-9)
    assert record["converged"] is True
    assert record["marginal_error"] <= 1e-3
    assert (record["n"], record["m"]) == (40, 40)
    assert record["seconds"].keys() >= {"load", "labels", "solve"}
    assert record["config"]["source"]["classes"] == [0, 1]
    assert plain(record)


def test_run_folder_keeps_result_and_label_distances(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("distance", *IRIS, "output=json")
    (folder,) = tmp_path.glob("outputs/distance/*/*")
    assert json.loads((folder / "result.json").read_text()) == json.loads(outcome.out)
    load_file = pytest.importorskip("safetensors.torch").load_file
    assert load_file(folder / "label_distances.safetensors")
    assert (folder / ".hydra" / "overrides.yaml").exists()


def test_files_can_be_left_out(otdd: Command, tmp_path: Path) -> None:
    assert otdd("distance", *IRIS, "output.files=false").code == 0
    assert not list(tmp_path.rglob("result.json"))


def test_table_has_number_certificate_and_cost(otdd: Command) -> None:
    outcome = otdd("distance", *IRIS)
    assert outcome.code == 0, outcome.err
    title, blank, *lines = outcome.out.splitlines()
    assert (title, blank) == ("iris classes 0,1 -> iris classes 2", "")
    rows = dict(line.split("  ", 1) for line in lines if line and line[0] != " ")
    assert rows["converged"].strip() == "yes"
    assert rows["classes"].strip() == "2 x 1"
    assert rows["n x m"].strip() == "100 x 50"
    assert {"value", "root", "marginal error", "iterations", "epsilon", "label distance", "precision"} <= set(rows)
    assert {"backend", "time", "peak memory", "files"} <= set(rows)


def test_not_converged_is_said_and_exits_4_under_strict(otdd: Command, tmp_path: Path) -> None:
    lenient = otdd("distance", *IRIS, *STOPPED)
    assert lenient.code == 0
    assert "converged       NO" in lenient.out
    strict = otdd("distance", *IRIS, *STOPPED, "strict=true", "output=json")
    assert strict.code == 4
    assert json.loads(strict.out)["converged"] is False
    (line,) = strict.errors
    assert line.startswith("otdd distance: error: not converged after 1 iterations: the marginal error")
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_error_of_the_library_is_one_line(otdd: Command) -> None:
    outcome = otdd("distance", "source=iris", "target=wine", "device=cpu")
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = outcome.errors
    assert "4" in line
    assert "13" in line
    assert "Traceback" not in outcome.err


def test_multirun_prints_a_line_each(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("distance", "--multirun", *IRIS, "labels=gaussian,means", "output=json")
    assert outcome.code == 0, outcome.err
    records = [json.loads(line) for line in outcome.out.splitlines()]
    assert [record["config"]["labels"]["distance"] for record in records] == ["gaussian", "means"]
    assert records[0]["value"] != records[1]["value"]
    assert len(list(tmp_path.glob("multirun/distance/*/*/*/result.json"))) == 2


def test_one_bad_job_does_not_end_the_sweep(otdd: Command) -> None:
    outcome = otdd("distance", "--multirun", "source=iris", "target=wine,iris", "output=json", "device=cpu")
    assert outcome.code == 1
    (record,) = (json.loads(line) for line in outcome.out.splitlines())
    assert record["value"] == pytest.approx(0, abs=1e-6)
    assert "ERROR: job 0" in outcome.err


def test_demo_needs_no_data_folder(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTDD_DATA", raising=False)
    outcome = otdd("distance", "experiment=demo", "output=json", "strict=true", "device=cpu")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["converged"]
    assert record["value"] > 0
    assert [len(counts) for counts in record["class_counts"]] == [5, 5]


LABELS = {path.stem for path in (ROOT / "conf" / "labels").glob("*.yaml")} - {"names"}  # which needs a text model


@pytest.mark.parametrize("labels", sorted(LABELS))
def test_every_label_distance_runs(otdd: Command, labels: str) -> None:
    outcome = otdd("distance", *IRIS, f"labels={labels}", "output=json", "strict=true")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["value"] > 0


@pytest.mark.data
def test_real_data(otdd: Command, data_root: Path) -> None:
    outcome = otdd("distance", "max_samples=300", f"data_root={data_root}", "device=cpu", "output=json", "strict=true")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert (record["n"], record["m"]) == (300, 300)
    same = otdd("distance", "target=mnist", "max_samples=300", f"data_root={data_root}", "device=cpu", "output=json")
    assert abs(json.loads(same.out)["value"]) < 1e-4 * record["value"], "a set is at distance zero from itself"


def test_the_group_has_every_set_that_load_knows() -> None:
    assert {path.stem for path in (ROOT / "conf" / "dataset").glob("*.yaml")} == set(sources())


def test_defaults_are_the_librarys() -> None:
    defaults = {item.name: item.default for item in fields(DistanceOptions)}
    for item in fields(schemas.SolverConfig):
        assert defaults[item.name] == item.default, item.name
    assert defaults["label_distance"] == schemas.LabelsConfig().distance
    assert defaults["label_epsilon"] == schemas.LabelsConfig().epsilon
    assert defaults["label_weight"] == schemas.LabelsConfig().weight
    assert defaults["feature_weight"] == schemas.FeaturesConfig().weight


@pytest.mark.parametrize(
    ("override", "schema"),
    [
        ("solver=default", schemas.SolverConfig),
        ("features=raw", schemas.FeaturesConfig),
        ("labels=gaussian", schemas.LabelsConfig),
    ],
)
def test_yaml_defaults_are_the_schemas(otdd: Command, override: str, schema: type) -> None:
    from omegaconf import OmegaConf

    group = override.split("=")[0]
    shown = otdd("distance", "--cfg", "job", "--package", group, override).out
    values = OmegaConf.to_container(OmegaConf.create(shown))
    assert values.get(group, values) == vars(schema())


def test_convention_microsoft_prints_both_numbers(otdd: Command) -> None:
    outcome = otdd("distance", *IRIS, "convention=microsoft", "convention.inner=means", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    a, b = (otdd_flash.load("iris", classes=classes) for classes in ([0, 1], [2]))
    expected = otdd_flash.dataset_distance(a, b, convention=otdd_flash.MicrosoftConvention(inner="means"))
    assert record["conventional"]["value"] == pytest.approx(expected.conventional["value"], rel=1e-9)
    assert record["conventional"]["converged"] is False
    table = otdd("distance", *IRIS, "convention=microsoft", "convention.inner=means").out
    (theirs,) = (line for line in table.splitlines() if line.startswith("microsoft value"))
    assert "NOT converged" in theirs
    assert f"{record['conventional']['value']:.6g}" in theirs
    (ours,) = (line for line in table.splitlines() if line.startswith("value"))
    assert f"{record['value']:.6g}  (converged value of the same problem" in ours
    refused = otdd("distance", *IRIS, "convention=microsoft", "solver.epsilon=1")
    assert refused.code != 0
    assert "entreg" in refused.err


def test_reach_reaches_the_solver(otdd: Command) -> None:
    record = json.loads(otdd("distance", *IRIS, "solver.reach=0.5", "output=json").out)
    assert (record["reach_x"], record["reach_y"]) == (0.5, 0.5)
    assert record["certificates"][0]["mass"] < 0.9
