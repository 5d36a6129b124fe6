"""Selection: distributions rather than points, quotas, sources, weights, outputs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.selection.pool import count_of, stack
from otdd_flash.selection.select import SearchOptions
from otdd_flash.types import LabeledDataset

QUICK = SearchOptions(steps=12, exchanges=4)


def mixture(n: int, share: float, seed: int, spread: float = 0.3) -> LabeledDataset:
    """Two modes at -3 and 3 on the line, ``share`` of the samples in the second; labels are the modes."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) >= round((1 - share) * n)).long()
    x = spread * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += 6.0 * y - 3.0
    return otdd.from_arrays(x, y, name=f"mixture {share}")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_choice_has_the_targets_proportions(share: float) -> None:
    found = otdd.select(mixture(80, 0.5, 0), mixture(50, share, 1), 20, label_weight=0.0, search=QUICK)
    assert int(found.pool.y[found.idx].sum()) == round(20 * share)


def test_nearest_points_would_not_do() -> None:
    """A tight mode that is nearer to every one of its points attracts no more than its share."""
    tight, wide = mixture(60, 0.5, 0, spread=0.05), mixture(60, 0.5, 1, spread=1.0)
    pool = otdd.from_arrays(torch.cat([tight.x[:30], wide.x[30:]]), torch.arange(60) // 30)
    target = otdd.from_arrays(torch.cat([tight.x[5:25], wide.x[35:55] + 0.01]), torch.arange(40) // 20)
    nearest = torch.cdist(pool.x, target.x).min(1).values.argsort()[:20]
    found = otdd.select(pool, target, 20, label_weight=0.0, search=QUICK)
    assert int((pool.y[nearest] == 0).sum()) > 12
    assert int((pool.y[found.idx] == 0).sum()) == 10


def test_a_target_inside_the_pool_is_found_again() -> None:
    pool = mixture(40, 0.5, 0, spread=2.0)
    rows = [1, 7, 11, 18, 23, 29, 30, 39]
    found = otdd.select(pool, pool.subset(rows), 8, label_weight=0.0, relative_epsilon=0.03, search=QUICK)
    assert sorted(found.idx.tolist()) == rows
    assert found.value == pytest.approx(0, abs=2e-3 * found.pool_value)


def test_a_summary_of_the_pool_itself_is_certified() -> None:
    pool = mixture(40, 0.5, 0)
    found = otdd.select(pool, pool, 10, search=QUICK)
    assert found.converged
    assert 0 < found.error < 2e-3 * found.result.epsilon
    json.dumps(found.to_dict(), allow_nan=False)


def test_value_is_the_distance_of_the_chosen() -> None:
    pool, target = mixture(60, 0.5, 0), mixture(40, 0.3, 1)
    found = otdd.select(pool, target, 15, tol=1e-6, search=SearchOptions(steps=30, exchanges=4))
    again = otdd.dataset_distance(
        pool.subset(found.idx), target, epsilon=found.result.epsilon, tol=1e-6,
        label_distance=replace(found.result.label_distances),
    )  # fmt: skip
    assert found.value == pytest.approx(again.value, rel=1e-3)
    assert found.lower_bound <= found.relaxed_value <= found.value <= found.pool_value


def test_labels_choose_between_equal_features() -> None:
    """Both classes lie on the same points; what the labels stand for elsewhere tells them apart."""
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    far = torch.full((20, 1), 8.0, dtype=torch.float64)
    pool = otdd.from_arrays(torch.cat([x, x, far]), [0] * 20 + [1] * 20 + [1] * 20)
    target = otdd.from_arrays(x + 0.01, [7] * 20)
    found = otdd.select(pool, target, 10, label_distance="means", search=QUICK)
    assert set(found.idx.tolist()) <= set(range(20)), "class 1 has its mean at 4, class 0 at 0 like the target's"


def test_quotas() -> None:
    pool, target = mixture(60, 0.25, 0), mixture(40, 0.9, 1)
    balanced = otdd.select(pool, target, 20, balance="classes", search=QUICK)
    assert torch.bincount(pool.y[balanced.idx]).tolist() == [10, 10]
    small = otdd.select(pool, target, 40, balance="classes", search=QUICK)
    assert torch.bincount(pool.y[small.idx]).tolist() == [25, 15], "a class gives what it has"
    named = otdd.select(pool, target, 9, balance={"0": 2, "1": 7}, search=QUICK)
    assert torch.bincount(pool.y[named.idx]).tolist() == [2, 7]
    assert named.weights.tolist() == pytest.approx([1 / 9] * 9)


def test_pool_weights_enter() -> None:
    """A sample of double weight counts double in the choice."""
    pool = otdd.from_arrays([[0.0], [0.1], [4.0], [9.0]], [0, 0, 0, 0], weights=[2.0, 1.0, 1.0, 1.0])
    target = otdd.from_arrays([[0.0], [0.0], [4.0]], [0, 0, 0])
    found = otdd.select(pool, target, 2, label_weight=0.0, relative_epsilon=0.02, search=QUICK)
    assert sorted(found.idx.tolist()) == [0, 2]
    assert dict(zip(found.idx.tolist(), found.weights.tolist(), strict=True)) == pytest.approx({0: 2 / 3, 2: 1 / 3})
    assert found.dataset.normalised_weights.tolist() == pytest.approx(found.weights.tolist())


def test_samples_without_weight_are_not_there() -> None:
    pool, target = mixture(30, 0.5, 0), mixture(20, 0.3, 1)
    held = [i for i in range(30) if i % 3]
    weights = torch.tensor([float(i % 3 > 0) for i in range(30)], dtype=torch.float64)
    padded = otdd.select(replace(pool, weights=weights / weights.sum()), target, 6, search=QUICK)
    alone = otdd.select(pool.subset(held), target, 6, search=QUICK)
    assert padded.rows() == alone.rows()
    assert padded.value == pytest.approx(alone.value, rel=1e-6)
    with pytest.raises(ValueError, match="20 samples"):
        otdd.select(replace(pool, weights=weights / weights.sum()), target, 21)


def test_several_sources() -> None:
    left, right = mixture(40, 0.0, 0), mixture(40, 1.0, 1)
    right = replace(right.subset(range(10, 40)), name="right")
    found = otdd.select([left, right], mixture(40, 0.5, 2), 10, label_weight=0.0, search=QUICK)
    assert found.sources == (left.name, "right")
    assert found.to_dict()["by_source"] == {left.name: 5, "right": 5}
    rows = found.rows("right")
    assert all(10 <= row < 40 for row in rows), "positions in the original of the source"
    stacked, _, _ = stack([left, right])
    assert stacked.num_classes == 2, "equal labels of two sources are two classes"
    with pytest.raises(ValueError, match="source must be one of"):
        found.rows()
    with pytest.raises(ValueError, match="differ in width"):
        otdd.select([left, otdd.from_arrays([[1.0]], [0])], left, 3)


def test_outputs(tmp_path) -> None:
    pool = mixture(30, 0.5, 0)
    found = otdd.select(pool, mixture(20, 0.5, 1), 0.2, search=QUICK)
    assert len(found.idx) == 6
    table = torch.utils.data.TensorDataset(pool.x, pool.y)
    torch.testing.assert_close(torch.stack([x for x, _ in found.torch_subset(table)]), pool.x[found.idx])
    torch.testing.assert_close(found.dataset.x, pool.x[found.idx])
    rows = [json.loads(line) for line in found.write(tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == found.idx.tolist()
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= s <= 1 for s in scores)
    arrow = pytest.importorskip("pyarrow.parquet").read_table(found.write(tmp_path / "out.parquet")).to_pylist()
    assert arrow == rows
    json.dumps(found.to_dict(), allow_nan=False)


def test_hugging_face_rows() -> None:
    datasets = pytest.importorskip("datasets")
    pool = mixture(30, 0.5, 0)
    found = otdd.select(pool, mixture(20, 0.5, 1), 5, search=QUICK)
    table = datasets.Dataset.from_dict({"position": list(range(30))})
    assert found.huggingface(table)["position"][:] == found.idx.tolist()


def test_repeats_and_ignores_where_rows_stand() -> None:
    pool, target = mixture(50, 0.5, 0), mixture(30, 0.4, 1)
    first, second = (otdd.select(pool, target, 12, search=QUICK) for _ in range(2))
    assert torch.equal(first.idx, second.idx)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(5))
    shuffled = otdd.select(otdd.from_arrays(pool.x[order], pool.y[order]), target, 12, search=QUICK)
    assert shuffled.value == pytest.approx(first.value, rel=1e-2)


@pytest.mark.parametrize("wrong", [0, -1, 31, 0.0, 1.0, 1.5, True, "5", float("nan")])
def test_counts_are_checked(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="n_to_select"):
        count_of(wrong, 30)


def test_refusals() -> None:
    pool = mixture(30, 0.5, 0)
    with pytest.raises(ValueError, match="balance names classes"):
        otdd.select(pool, pool, 5, balance={"cat": 5})
    with pytest.raises(ValueError, match="must sum to n_to_select"):
        otdd.select(pool, pool, 5, balance={"0": 2, "1": 2})
    with pytest.raises(ValueError, match="balance must be"):
        otdd.select(pool, pool, 5, balance="both")
    with pytest.raises(ValueError, match="gradient"):
        otdd.select(pool, pool, 5, debiased=False)
    with pytest.raises((TypeError, ValueError), match="pool must"):
        otdd.select([], pool, 5)


def test_lack_of_convergence_is_said() -> None:
    pool, target = mixture(30, 0.5, 0), mixture(20, 0.2, 1)
    stopped = {"tol": 1e-12, "max_iterations": 1, "search": SearchOptions(steps=1, exchanges=0)}
    with pytest.warns(otdd.NotConvergedWarning):
        assert not otdd.select(pool, target, 5, **stopped).converged
    with pytest.raises(otdd.NotConvergedError):
        otdd.select(pool, target, 5, **stopped, strict=True)
    assert otdd.select(pool, target, 5, search=QUICK).converged


def test_quotas_may_take_a_whole_class_or_nothing_of_one() -> None:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate((30, 25, 5))])
    generator = torch.Generator().manual_seed(0)
    pool = otdd.from_arrays(torch.randn(60, 3, generator=generator) + labels[:, None], labels)
    target = otdd.from_arrays(torch.randn(40, 3, generator=generator), torch.arange(40) % 3)
    chosen = otdd.select(pool, target, 30, balance="classes")
    assert torch.bincount(labels[chosen.idx]).tolist()[2] == 5
    assert len(chosen.idx) == 30
    chosen = otdd.select(pool, target, 8, balance={"0": 3, "1": 0, "2": 5})
    assert torch.bincount(labels[chosen.idx], minlength=3).tolist() == [3, 0, 5]
