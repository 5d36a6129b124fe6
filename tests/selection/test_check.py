"""Checks: the batched statistic, exactness of the p-value, streams, gates, assertions."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.selection.check import DriftCallback, DriftCheck
from otdd_flash.selection.permutation import split_divergences, split_weights
from otdd_flash.selection.pooled import squared_distances
from otdd_flash.selection.reservoir import Reservoir
from otdd_flash.types import LabeledDataset


def draw(n: int, seed: int, shift: float = 0.0, d: int = 3) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + 2 * torch.nn.functional.one_hot(y, d)
    x[:, 0] += shift
    return otdd.from_arrays(x, y, name=f"draw {seed}")


def test_every_split_has_its_own_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(11, generator=generator, dtype=torch.float64) + 0.2
    a, b = split_weights(weights, 4, 6, seed=1)
    assert (a > 0).sum(0).tolist() == [4] * 7
    assert torch.equal((a[:, 0] > 0).nonzero()[:, 0], torch.arange(4))
    assert not bool(((a > 0) & (b > 0)).any())
    found = split_divergences(squared_distances(x, x), a, b, 0.5, tol=1e-10, max_iterations=5000)
    for k in range(7):
        left, right = a[:, k] > 0, b[:, k] > 0
        expected = reference.divergence(x[left], x[right], a[left, k], b[right, k], 0.5)
        assert float(found.values[k]) == pytest.approx(expected, rel=1e-7)


def test_splits_are_uniform() -> None:
    """Every point is as often on the first side as any other."""
    a, _ = split_weights(torch.ones(10), 3, 4000, seed=0)
    share = (a[:, 1:] > 0).double().mean(1)
    assert bool(((share - 0.3).abs() < 4 * (0.3 * 0.7 / 4000) ** 0.5).all())


def test_p_value_agrees_with_all_splits() -> None:
    """8 points have 70 splits in halves: the permutation p-value estimates the share of those at least as large."""
    first, second = draw(4, 3), draw(4, 8, shift=2.0)
    found = otdd.check(first, second, permutations=1999, label_distance=None, tol=1e-8)
    x = torch.cat([first.x, second.x])
    cost = squared_distances(x, x)
    sides = torch.zeros(8, 70, dtype=torch.float64)
    for k, half in enumerate(itertools.combinations(range(8), 4)):
        sides[list(half), k] = 0.25
    everything = split_divergences(cost, sides, 0.25 - sides, found.epsilon, tol=1e-8).values
    assert found.value == pytest.approx(float(everything[0]), rel=1e-6)
    exact = float((everything >= everything[0] * (1 - 1e-9)).double().mean())
    assert found.p_value == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 1999) ** 0.5 + 1e-3)


def test_p_values_are_uniform_under_the_null() -> None:
    """200 runs: at most 19 rejections at 0.05 and at least 2 (binomial, one in a thousand on either side)."""
    scipy = pytest.importorskip("scipy.stats")
    p = [otdd.check(draw(20, 2 * s), draw(20, 2 * s + 1), permutations=39, seed=s).p_value for s in range(200)]
    assert all(round(value * 40) == pytest.approx(value * 40) for value in p)
    low, high = scipy.binom.ppf([0.001, 0.999], 200, 0.05)
    assert low <= sum(value <= 0.05 for value in p) <= high
    low, high = scipy.binom.ppf([0.001, 0.999], 200, 0.5)
    assert low <= sum(value <= 0.5 for value in p) <= high


@pytest.mark.parametrize("kind", ["features", "labels", "priors"])
def test_drift_is_found(kind: str) -> None:
    reference_set, batch = draw(80, 0), draw(80, 1, shift=1.0 if kind == "features" else 0.0)
    if kind == "labels":
        batch = replace(batch, y=(batch.y + 1) % 3)
    if kind == "priors":
        batch = batch.subset((batch.y != 0).nonzero()[:, 0])
    found = otdd.check(reference_set, batch, permutations=99)
    assert found.exceeded
    assert found.p_value == 0.01
    if kind == "labels":
        blind = otdd.check(reference_set, batch, permutations=99, label_distance=None)
        assert not blind.exceeded, "features alone cannot see labels that moved"


def test_classes_are_matched_by_name() -> None:
    data = draw(60, 0)
    renamed = replace(data, y=2 - data.y, class_names=tuple(reversed(data.class_names)))
    assert otdd.check(data, renamed, permutations=0, threshold=1.0, tol=1e-9).value == pytest.approx(0, abs=1e-4)
    foreign = otdd.check(data, replace(data, class_names=("0", "1", "new")))
    assert foreign.exceeded
    assert (foreign.new_classes, foreign.missing_classes) == (("new",), ("2",))
    json.dumps(foreign.to_dict(), allow_nan=False)


@pytest.mark.parametrize("sizes", [[70], [1, 69], [30, 3, 37], [7] * 10])
def test_a_stream_gives_the_number_of_the_whole(sizes: list[int]) -> None:
    reference_set, batch = draw(50, 0), draw(70, 1)
    whole = otdd.check(reference_set, batch, max_samples=40, permutations=19)
    assert (whole.n, whole.m, whole.seen) == (40, 40, (50, 70))
    stream = DriftCheck(reference_set, max_samples=40, permutations=19)
    for rows in torch.arange(70).split(sizes):
        stream.update(batch.subset(rows))
    assert replace(stream.compute(), names=whole.names) == whole


def test_reset_and_reference_are_kept_apart() -> None:
    watch = DriftCheck(draw(50, 0), permutations=19)
    with pytest.raises(ValueError, match="no batch"):
        watch.compute()
    first = watch.update(draw(30, 1)).compute()
    watch.reset()
    watch.update(draw(30, 2, shift=3.0)).compute()
    watch.reset()
    assert watch.update(draw(30, 1)).compute() == first


def test_reservoir_is_uniform_and_keeps_the_order() -> None:
    counts = torch.zeros(30)
    for seed in range(300):
        kept = Reservoir(10, str(seed))
        for rows in torch.arange(30).split(7):
            kept.add(draw(30, 0).subset(rows))
        ids = kept.dataset("kept").ids
        assert torch.equal(ids, ids.sort().values)
        counts[ids] += 1
    assert bool(((counts / 300 - 1 / 3).abs() < 4 * (2 / 9 / 300) ** 0.5).all())


def test_threshold_gates_on_the_value() -> None:
    a, b = draw(40, 0), draw(40, 1)
    value = otdd.check(a, b, permutations=0, threshold=1.0).value
    assert otdd.check(a, b, permutations=0, threshold=value - 1e-6).exceeded
    below = otdd.check(a, b, permutations=0, threshold=value + 1e-6)
    assert not below.exceeded
    assert below.p_value is None


def test_assertion() -> None:
    assert otdd.assert_same_distribution(draw(40, 0), draw(40, 1), permutations=19, alpha=0.05).p_value > 0.05
    with pytest.raises(AssertionError, match=r"draw 1 against draw 0: DRIFT: p = 0\.05 is at most alpha = 0\.05 \(div"):
        otdd.assert_same_distribution(draw(40, 0), draw(40, 1, shift=3.0), permutations=19, alpha=0.05)


def test_callback_looks_every_few_batches() -> None:
    alarms = []
    callback = DriftCallback(DriftCheck(draw(60, 0), permutations=19), every=3, on_drift=alarms.append)
    looked = []
    for step in range(6):
        batch = draw(20, 10 + step, shift=0.0 if step < 3 else 3.0)
        looked.append(callback(batch.x, batch.y) is not None)
    assert looked == [False, False, True, False, False, True]
    assert [result.m for result in callback.results] == [60, 60]
    assert alarms == [callback.results[1]]
    quiet = DriftCallback(DriftCheck(draw(60, 0), permutations=19), every=1)
    far = draw(30, 1, shift=5.0)
    with pytest.warns(UserWarning, match="DRIFT"):
        quiet(far.x, far.y)


def test_weights_count_like_repetition() -> None:
    """C37: weights k are k copies, for the value (the permutations differ: copies are not exchangeable units)."""
    a, b = draw(15, 0), draw(12, 1)
    doubled = otdd.from_arrays(torch.cat([b.x, b.x[:4]]), torch.cat([b.y, b.y[:4]]))
    weighted = otdd.from_arrays(b.x, b.y, weights=[2.0] * 4 + [1.0] * 8)
    given = {"permutations": 0, "threshold": 1.0, "label_distance": None, "tol": 1e-9}
    epsilons = [otdd.check(a, side, **given).epsilon for side in (doubled, weighted)]
    values = [otdd.check(a, side, **given).value for side in (doubled, weighted)]
    # epsilon is a fraction of the pooled mean cost, where the doubled set has more rows: values are near, not equal
    assert epsilons[0] == pytest.approx(epsilons[1], rel=0.1)
    assert values[0] == pytest.approx(values[1], rel=0.1)


def test_options_are_checked() -> None:
    a = draw(20, 0)
    with pytest.raises(ValueError, match="take at least 99"):
        otdd.check(a, a, alpha=0.01, permutations=50)
    with pytest.raises(ValueError, match="alpha"):
        otdd.check(a, a, alpha=1.5)
    with pytest.raises(ValueError, match="features, the reference"):
        otdd.check(a, draw(20, 1, d=5))
    with pytest.raises(TypeError, match="features and labels"):
        DriftCheck(a).update(a.x)
    with pytest.raises(TypeError, match="reference must be a LabeledDataset, got Tensor"):
        otdd.check(a.x, a)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", float("nan")), ("threshold", "high"), ("permutations", 99.5), ("permutations", "99"),
        ("tol", float("nan")), ("tol", -1.0), ("feature_weight", -1.0), ("label_weight", float("nan")),
        ("relative_epsilon", None), ("max_samples", 2.5), ("seed", 1.5), ("seed", -1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("null", ["pooled", "reference"])
def test_an_option_that_is_no_such_number_is_refused_by_name(null: str, name: str, value: object) -> None:
    """A gate at NaN would never be exceeded, and a negative weight draws what is apart together."""
    with pytest.raises((TypeError, ValueError), match=f"^{name}.* must be .*got"):
        otdd.check(draw(40, 0), draw(10, 1), null=null, cache=None, **{name: value})


def test_all_samples_in_one_place() -> None:
    same = otdd.from_arrays(torch.ones(10, 2), [0] * 10)
    found = otdd.check(same, same, permutations=19)
    assert found.value == pytest.approx(0, abs=1e-12)
    assert found.p_value == 1.0
