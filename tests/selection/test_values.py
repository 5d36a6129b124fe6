"""Sample values: the derivative of the divergence, its calibration, and what it finds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.types import LabeledDataset

TIGHT = {"tol": 1e-9, "max_iterations": 1000, "precision": "fp64"}


def blobs(n: int, seed: int, classes: int = 3, d: int = 4) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + 4 * torch.nn.functional.one_hot(y, d)
    return otdd.from_arrays(x, y)


def auroc(scores: torch.Tensor, wrong: torch.Tensor) -> float:
    """Share of (wrong, right) pairs in which the wrong one has the larger score."""
    above = scores[wrong][:, None] - scores[~wrong]
    return float((above > 0).double().mean() + (above == 0).double().mean() / 2)


@pytest.mark.parametrize("within_class", [False, True])
def test_scores_are_the_derivative_in_the_samples_mass(within_class: bool) -> None:
    pool, target = blobs(12, 0), blobs(15, 1)
    weights = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.5
    pool = replace(pool, weights=weights / weights.sum())
    first = otdd.dataset_distance(pool, target, relative_epsilon=0.2, **TIGHT)
    given = {"label_distance": first.label_distances, "epsilon": first.epsilon, **TIGHT}
    scores = otdd.values(pool, target, **given).scores(within_class=within_class)
    for i in (0, 5, 7):
        group = pool.y == pool.y[i] if within_class else torch.ones(12, dtype=torch.bool)
        away = torch.where(group, pool.weights, 0.0)
        away[i] = 0.0
        away /= away.sum()
        step = 2e-4

        def value(t: float, i: int = i, away: torch.Tensor = away) -> float:
            moved = pool.weights - t * away
            moved[i] += t
            return otdd.dataset_distance(replace(pool, weights=moved), target, **given).value

        assert float(scores[i]) == pytest.approx((value(step) - value(-step)) / (2 * step), rel=1e-4, abs=1e-6)


def test_calibration_by_hand() -> None:
    """Two points against one at distance 0 and 3 from them: h = (0, 9) + constant, v = -9, 9; alone in a class: 0."""
    pool = otdd.from_arrays([[0.0], [3.0]], [0, 1])
    target = otdd.from_arrays([[0.0]], [0])
    found = otdd.values(pool, target, label_weight=0.0, epsilon=1e-3)
    assert found.scores().tolist() == pytest.approx([-9.0, 9.0], abs=0.02)
    assert found.scores(within_class=True).tolist() == [0.0, 0.0]
    assert found.order().tolist() == [1, 0]
    assert list(found.gradients) == ["total"], "without labels there are no parts"


@pytest.mark.parametrize("mass", [[1, 0, 0, 0], [1, 1e-17, 1e-17, 1e-17], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1e-18, 0]])
def test_scores_are_finite_where_few_samples_hold_the_mass(mass: list[float], tmp_path) -> None:
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor(mass, dtype=torch.float64)
    pool = replace(otdd.from_arrays(x, [0, 0, 1, 1]), weights=weights / weights.sum())
    found = otdd.values(pool, blobs(9, 1, classes=2, d=2))
    for within_class in (False, True):
        scores = found.scores(within_class=within_class)
        assert scores.isfinite().all()
        if mass[1] < 1:  # the first sample is all but its whole group
            assert float(scores[0]) == 0 or (mass[2] == 1 and not within_class)
    assert sorted(found.by_class()) == ["0", "1"]
    found.write(tmp_path / "scores.jsonl")
    json.dumps(found.to_dict(), allow_nan=False)


def test_scores_balance_out() -> None:
    found = otdd.values(blobs(12, 0), blobs(9, 1))
    a = found.pool.normalised_weights
    for part in found.gradients:
        scores = found.scores(part)
        assert float((a * (1 - a) * scores).sum()) == pytest.approx(0, abs=1e-9 * float(scores.abs().max()))
    total = found.gradients["features"] + found.gradients["labels"]
    torch.testing.assert_close(total, found.gradients["total"])


def test_a_pool_equal_to_its_target_has_no_bad_sample() -> None:
    pool = blobs(20, 0)
    assert otdd.values(pool, pool).scores().abs().max() == 0


def test_finds_flipped_labels_and_says_which_class_is_foreign() -> None:
    pool, target = blobs(150, 0), blobs(150, 1)
    wrong = torch.zeros(150, dtype=torch.bool)
    wrong[::10] = True
    flipped = replace(pool, y=torch.where(wrong, (pool.y + 1) % 3, pool.y))
    found = otdd.values(flipped, target)
    assert auroc(found.scores("labels", within_class=True), wrong) > 0.99
    assert set(found.mislabelled(15).tolist()) == set(wrong.nonzero()[:, 0].tolist())
    foreign = otdd.from_arrays(torch.cat([pool.x, pool.x[:15] + 20]), [*pool.y.tolist(), *([9] * 15)])
    by_class = otdd.values(foreign, target).by_class()
    assert max(by_class, key=by_class.__getitem__) == "9"
    assert all(value < 0 for name, value in by_class.items() if name != "9")


@pytest.mark.data
def test_finds_flipped_labels_and_fashion_in_mnist(data_root) -> None:
    both = otdd.load("mnist", data_root=data_root, max_samples=1200, seed=3)
    draw = torch.randperm(1200, generator=torch.Generator().manual_seed(0))
    pool, target = both.subset(draw[:600]), both.subset(draw[600:])
    wrong = torch.arange(600) % 10 == 0
    flipped = replace(pool, y=torch.where(wrong, (pool.y + 1 + torch.arange(600) // 10 % 9) % 10, pool.y))
    assert auroc(otdd.values(flipped, target).scores("labels", within_class=True), wrong) >= 0.9
    fashion = otdd.load("fashion_mnist", data_root=data_root, max_samples=60)
    mixed = otdd.from_arrays(torch.cat([pool.x[:540], fashion.x]), torch.cat([pool.y[:540], fashion.y + 10]))
    assert auroc(otdd.values(mixed, target, parts=False).scores(), torch.arange(600) >= 540) >= 0.99


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_table_of_samples(suffix: str, tmp_path) -> None:
    pool = replace(blobs(12, 0), ids=torch.arange(100, 112))
    found = otdd.values(pool, blobs(9, 1))
    path = found.write(tmp_path / f"out.{suffix}")
    if suffix == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    assert [row["row"] for row in rows] == found.order().tolist()
    assert [row["id"] for row in rows] == [100 + row["row"] for row in rows]
    assert [row["total"] for row in rows] == sorted(found.scores().tolist(), reverse=True)
    assert list(tmp_path.iterdir()) == [path], "nothing half-written is left"
    json.dumps(found.to_dict(), allow_nan=False)


def test_refusals(tmp_path) -> None:
    pool, target = blobs(12, 0), blobs(9, 1)
    with pytest.raises(ValueError, match="gradient"):
        otdd.values(pool, target, reach=1.0)
    found = otdd.values(pool, target, parts=False)
    with pytest.raises(ValueError, match="part must be one of total"):
        found.scores("labels")
    with pytest.raises(ValueError, match=r"\.parquet or \.jsonl"):
        found.write(tmp_path / "out.csv")


def test_subsampled_pool_keeps_its_ids() -> None:
    found = otdd.values(blobs(60, 0), blobs(40, 1), max_samples=20)
    assert (found.pool.n, found.result.m) == (20, 20)
    assert found.columns()["id"] == [int(found.pool.ids[i]) for i in found.order()]
