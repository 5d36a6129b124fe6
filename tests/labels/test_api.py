"""The front door: invariances, callables, cache."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from otdd_flash import from_arrays
from otdd_flash.labels import METHODS, LabelDistances, LabelSinkhorn, label_distances
from otdd_flash.types import LabeledDataset


def labelled(n: int, classes: list, seed: int, d: int = 3, **options: object) -> LabeledDataset:
    rng = torch.Generator().manual_seed(seed)
    y = [classes[i] for i in (torch.arange(n) % len(classes)).tolist()]
    return from_arrays(torch.randn(n, d, generator=rng), y, **options)


EASY = LabelSinkhorn(relative_epsilon=0.2)  # few iterations
SOURCE, TARGET = labelled(21, [0, 1], 0), labelled(24, [0, 1, 2], 1)


@pytest.mark.parametrize("method", METHODS)
def test_names_of_classes_do_not_matter(method: str) -> None:
    """C01: other ids, other names, other order of the classes."""
    expected = label_distances(SOURCE, TARGET, method=method, sinkhorn=EASY)
    renamed = label_distances(labelled(21, [3, 4], 0), labelled(24, ["a", "b", "c"], 1), method=method, sinkhorn=EASY)
    assert torch.equal(renamed.joint(), expected.joint())
    assert renamed.source_names == ("3", "4")
    flipped = label_distances(
        labelled(21, ["dog", "cat"], 0), TARGET, method=method, sinkhorn=EASY
    )  # sorted: cat is the second
    assert torch.allclose(flipped.source_target, expected.source_target.flip(0), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_class_of_one_row(method: str) -> None:
    """C02: a 40 x 6 table with labels 1..5, one class of a single row."""
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))
    y = [1] * 13 + [2] * 13 + [3] * 7 + [4] * 6 + [5]
    data = from_arrays(x, y)
    result = label_distances(data, labelled(20, [0, 1], 3, d=6), method=method, sinkhorn=EASY)
    assert result.source_source.shape == (5, 5)
    assert torch.isfinite(result.joint()).all()
    if method == "gaussian":
        others = x[:13].double()
        expected = (others - x[39].double()).square().sum(1).mean()  # a Dirac has one plan only
        assert float(result.source_source[4, 0]) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_set_against_itself(method: str) -> None:
    result = label_distances(TARGET, replace(TARGET, name="copy"), method=method, sinkhorn=EASY)
    assert torch.equal(result.source_source, result.target_target)
    assert torch.equal(result.source_target, result.source_source)
    assert not result.source_target.diagonal().any()
    assert bool((result.source_source + torch.eye(3) > 0).all())


def test_callable_of_points_and_of_weights() -> None:
    calls = []

    def gap(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        calls.append((len(p), len(q)))
        return (p.double().mean(0) - q.double().mean(0)).square().sum()

    def weighted_gap(p: torch.Tensor, q: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a @ p.double() - b @ q.double()).square().sum())

    result = label_distances(SOURCE, TARGET, method=gap)
    assert len(calls) == 10  # every pair of five classes once, none with itself
    assert torch.allclose(result.joint(), label_distances(SOURCE, TARGET, method="means").joint(), rtol=1e-12)
    assert "gap" in result.method
    weights = torch.rand(21, generator=torch.Generator().manual_seed(5))
    uneven = labelled(21, [0, 1], 0, weights=weights)
    expected = label_distances(uneven, TARGET, method="means").joint()
    assert torch.allclose(label_distances(uneven, TARGET, method=weighted_gap).joint(), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="unequal weights"):
        label_distances(uneven, TARGET, method=gap)
    with pytest.raises(ValueError, match=r"gave -1.0 for arrays/0 and arrays/1"):
        label_distances(SOURCE, TARGET, method=lambda p, q: -1.0)


def test_tables_given() -> None:
    computed = label_distances(SOURCE, TARGET, method="means")
    given = label_distances(SOURCE, TARGET, method=computed.joint().numpy())
    assert torch.equal(given.joint(), computed.joint())
    assert label_distances(SOURCE, TARGET, method=computed).method == "means"
    with pytest.raises(ValueError, match="for 3 source and 2 target classes"):
        label_distances(TARGET, SOURCE, method=computed)


def test_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of means, gaussian_diag, gaussian, sinkhorn, names, .*got 'bures'"):
        label_distances(SOURCE, TARGET, method="bures")


def test_widths_that_differ() -> None:
    with pytest.raises(ValueError, match="shared by both sides"):
        label_distances(SOURCE, labelled(20, [0, 1], 3, d=6))


@pytest.mark.parametrize("method", ["gaussian", "sinkhorn"])
def test_cache_round_trip(method: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = label_distances(SOURCE, TARGET, method=method, sinkhorn=EASY, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr("otdd_flash.labels.api._distinct_table", None)  # nothing may be computed now
    renamed = labelled(21, ["x", "y"], 0)
    again = label_distances(renamed, TARGET, method=method, sinkhorn=EASY, cache_dir=tmp_path)
    assert torch.equal(again.joint(), first.joint())
    assert again.source_names == ("x", "y")
    assert (again.certificate, again.parameters) == (first.certificate, first.parameters)
    assert list(tmp_path.iterdir()) == [path]


def test_cache_key_tells_data_method_and_parameters_apart(tmp_path) -> None:
    settings = LabelSinkhorn(relative_epsilon=0.5)
    label_distances(SOURCE, TARGET, cache_dir=tmp_path)
    label_distances(TARGET, SOURCE, cache_dir=tmp_path)
    label_distances(SOURCE, TARGET, method="means", cache_dir=tmp_path)
    label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=EASY, cache_dir=tmp_path)
    label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=settings, cache_dir=tmp_path)
    label_distances(labelled(21, [0, 1], 9), TARGET, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    label_distances(SOURCE, TARGET, method=lambda p, q: 1.0, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


def test_damaged_cache_is_computed_anew_with_a_warning(tmp_path) -> None:
    first = label_distances(SOURCE, TARGET, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"not a table")
    with pytest.warns(UserWarning, match=f"computed anew.*{path.name}"):
        again = label_distances(SOURCE, TARGET, cache_dir=tmp_path)
    assert torch.equal(again.joint(), first.joint())
    assert torch.equal(LabelDistances.from_safetensors(path).joint(), first.joint())


def test_many_classes_of_one_row() -> None:
    """Equal classes are found without comparing all pairs, and only equal ones are merged."""
    rows = torch.randn(2000, 3, generator=torch.Generator().manual_seed(5))
    source, target = from_arrays(rows, torch.arange(2000)), from_arrays(rows.flip(0), torch.arange(2000))
    start = time.perf_counter()
    result = label_distances(source, target, method="means")
    assert time.perf_counter() - start < 30
    assert not result.source_target.flip(1).diagonal().any()
    expected = (rows[3].double() - rows[1990].double()).square().sum()
    assert float(result.source_target[3, 9]) == pytest.approx(float(expected), rel=1e-12)
    assert int((result.source_target == 0).sum()) == 2000


def test_equal_classes_are_one_whatever_the_sign_of_zero() -> None:
    rows = torch.tensor([[0.0, 1.0], [0.0, 2.0], [3.0, 1.0], [0.0, 1.0]])
    calls = []
    source, target = from_arrays(rows, [0, 0, 1, 1]), from_arrays(rows.clone(), [0, 0, 1, 1])
    target = replace(target, x=torch.where(target.x == 0, -0.0, target.x))

    def distance(p: torch.Tensor, q: torch.Tensor) -> float:
        calls.append((p, q))
        return 1.0

    result = label_distances(source, target, method=distance)
    assert len(calls) == 1
    assert result.source_target.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_cache_that_cannot_be_written_is_refused_before_the_computation(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setattr("otdd_flash.labels.api._distinct_table", None)  # nothing may be computed
    for folder in (file, file / "below"):
        with pytest.raises(ValueError, match=r"cache_dir=.*cannot be written"):
            label_distances(SOURCE, TARGET, cache_dir=folder)


def test_a_result_survives_a_failed_write(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LabelDistances, path: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(LabelDistances, "to_safetensors", full)
    with pytest.warns(UserWarning, match=r"could not be kept in cache_dir=.*no space left"):
        result = label_distances(SOURCE, TARGET, method="means", cache_dir=tmp_path / "new")
    assert torch.equal(result.joint(), label_distances(SOURCE, TARGET, method="means").joint())


@pytest.mark.parametrize(
    "value", [None, 1j, torch.tensor(1j), np.complex128(1j), torch.ones(2), np.ones(2), "far", [1.0]], ids=repr
)
def test_callable_must_give_one_real_number(value: object) -> None:
    with pytest.raises(TypeError, match="for arrays/0 and arrays/1: it must return one real number"):
        label_distances(SOURCE, TARGET, method=lambda p, q: value)


@pytest.mark.parametrize(
    "distance", [lambda p: 1.0, lambda: 1.0, lambda p, q, a: 1.0, lambda p, q, a, b, c: 1.0, lambda p, q, *, a: 1.0]
)
def test_callable_of_another_signature(distance: object) -> None:
    with pytest.raises(TypeError, match=r"must take \(points, points\), or \(points, points, weights, weights\)"):
        label_distances(SOURCE, TARGET, method=distance)


@pytest.mark.parametrize("method", [{"a": 1}, object(), None, [object()] * 3], ids=lambda m: type(m).__name__)
def test_what_is_no_method_at_all(method: object) -> None:
    with pytest.raises(
        TypeError, match="label_distance must be one of means, gaussian_diag, gaussian, sinkhorn, names, prec"
    ):
        label_distances(SOURCE, TARGET, method=method)
