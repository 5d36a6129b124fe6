"""Checks: the batched statistic, exactness of the p-value, streams, gates, assertions."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.errors import NotConvergedError, NotConvergedWarning
from otdd_flash.selection import parts
from otdd_flash.selection.check import DriftCallback, DriftCheck
from otdd_flash.selection.parts import SplitStatistics
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
    found = otdd.check(first, second, permutations=1999, label_distance=None, tol=1e-6)
    x = torch.cat([first.x, second.x])
    cost = squared_distances(x, x)
    sides = torch.zeros(8, 70, dtype=torch.float64)
    for k, half in enumerate(itertools.combinations(range(8), 4)):
        sides[list(half), k] = 0.25
    everything = split_divergences(cost, sides, 0.25 - sides, found.epsilon, tol=1e-6).values
    assert found.value == pytest.approx(float(everything[0]), rel=1e-6)
    exact = float((everything >= everything[0] * (1 - 1e-9)).double().mean())
    assert found.p_value == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 1999) ** 0.5 + 1e-3)


def all_splits(pooled: LabeledDataset, monkeypatch: pytest.MonkeyPatch) -> SplitStatistics:
    """Statistics of all splits of eight points in halves."""
    side = torch.zeros(8, 70, dtype=torch.bool)
    for k, half in enumerate(itertools.combinations(range(8), 4)):
        side[list(half), k] = True
    weights = pooled.normalised_weights[:, None]
    a, b = (weights * part for part in (side, ~side))
    monkeypatch.setattr(parts, "split_weights", lambda *_: (a / a.sum(0), b / b.sum(0)))
    return parts.split_statistics(pooled, 4, otdd.CheckOptions(), permutations=69, seed=0)


@pytest.mark.parametrize("weights", [None, [1, 2, 1, 1, 3, 1, 1, 2]])
def test_the_level_is_exact_over_all_splits(weights: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the 70 splits of a pooled sample is the observed one: p <= t for at most the share t of them."""
    pooled = draw(8, 2)
    pooled = otdd.from_arrays(pooled.x, pooled.y, weights=weights)
    found = all_splits(pooled, monkeypatch)
    assert set(found.parts) == {"distance", "classes", "frequencies", "neighbors"}
    orders = [torch.tensor([k, *(i for i in range(70) if i != k)]) for k in range(70)]
    p = [parts.p_values({n: v[o] for n, v in found.parts.items()}, found.units)[0] for o in orders]
    for t in set(p):
        assert sum(value <= t + 1e-12 for value in p) / 70 <= t + 1e-12
    assert min(p) < 2.5 / 70, "the largest split of all and, by symmetry, its mirror image"


def test_statistics_do_not_depend_on_the_order_of_rows() -> None:
    """Equal samples are equally near: which of them stands first must not decide who is a neighbor."""
    pooled = draw(30, 0)
    x = pooled.x.round()  # many ties
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    found = []
    for rows in (torch.arange(30), order):
        moved, classes = x[rows], torch.nn.functional.one_hot(pooled.y[rows]).double()
        distances = squared_distances(moved, moved)
        found.append(parts.neighbor_surprise(distances, classes, torch.full((30,), 1 / 30, dtype=torch.float64)))
    torch.testing.assert_close(found[0][order], found[1])


def test_p_values_are_uniform_under_the_null() -> None:
    """150 runs: rates within binomial bounds, one in a thousand on either side."""
    scipy = pytest.importorskip("scipy.stats")
    p = [otdd.check(draw(15, 2 * s), draw(15, 2 * s + 1), permutations=19, seed=s).p_value for s in range(150)]
    assert all(round(value * 20) == pytest.approx(value * 20) for value in p)
    for level in (0.05, 0.5):
        low, high = scipy.binom.ppf([0.001, 0.999], 150, level)
        assert low <= sum(value <= level for value in p) <= high


def test_exchanged_names_are_seen() -> None:
    """The pooled sample's distance between the two classes vanishes; the classes by name are what sees it."""
    reference_set, batch = draw(80, 0), draw(80, 1)
    found = otdd.check(reference_set, replace(batch, class_names=("1", "0", "2")), permutations=99)
    assert found.p_value == found.parts["classes"] == 0.01
    assert otdd.check(reference_set, batch, permutations=99).p_value > 0.05


def test_shuffled_labels_are_seen() -> None:
    reference_set, batch = draw(150, 2), draw(150, 1)
    y = batch.y.clone()
    y[:15] = (y[:15] + 1) % 3
    found = otdd.check(reference_set, replace(batch, y=y), permutations=99)
    assert found.exceeded
    assert found.parts["neighbors"] <= 0.02
    assert not otdd.check(reference_set, batch, permutations=99).exceeded


def test_class_frequencies_are_seen() -> None:
    batch = draw(100, 1)
    rows = torch.cat([(batch.y == 1).nonzero()[:6, 0], (batch.y != 1).nonzero()[:, 0]])
    found = otdd.check(draw(100, 0), batch.subset(rows), permutations=99)
    assert found.exceeded
    assert found.parts["frequencies"] <= 0.02


def test_a_side_without_a_common_class() -> None:
    """No class can be compared with itself: that part is silent, the others are not."""
    data = draw(60, 0)
    low, high = (data.subset((data.y != 2).nonzero()[:, 0]), data.subset((data.y == 2).nonzero()[:, 0]))
    found = otdd.check(low, high, permutations=39, new_classes="allow")
    assert found.exceeded
    assert found.parts["classes"] == 1.0
    assert found.parts["frequencies"] == 1 / 40


def test_a_new_class_fails_unless_it_is_allowed() -> None:
    """Looked for among all rows, not among those drawn; and a class of the reference is known, drawn or not."""
    y = torch.zeros(300, dtype=torch.int64)
    y[7] = 1
    rare = otdd.from_arrays(draw(300, 0).x, y)
    plain = otdd.from_arrays(draw(300, 1).x, torch.zeros(300))
    settings = {"max_samples": 20, "permutations": 19}
    plain = replace(plain, class_names=("0",))
    found = otdd.check(plain, rare, **settings)
    assert (found.exceeded, found.new_classes) == (True, ("1",))
    assert "DRIFT: classes that the reference never had: 1; p = " in found.summary()
    assert otdd.check(plain, rare, threshold=1e9, **settings).exceeded
    allowed = otdd.check(plain, rare, new_classes="allow", **settings)
    assert (allowed.exceeded, allowed.new_classes, allowed.p_value) == (allowed.p_value <= 0.05, ("1",), found.p_value)
    back = otdd.check(rare, plain, **settings)
    assert (back.new_classes, back.missing_classes) == ((), ("1",))


def test_convergence_is_said() -> None:
    a, b = draw(60, 0), draw(60, 1, shift=1.0)
    with pytest.warns(NotConvergedWarning, match=r"not converged: marginal error .* raise max_iterations"):
        found = otdd.check(a, b, permutations=19, max_iterations=1)
    assert not found.converged
    assert found.summary().endswith("NOT converged)")
    with pytest.raises(NotConvergedError, match="p-value is exact all the same"):
        otdd.check(a, b, permutations=19, max_iterations=1, strict=True)
    assert otdd.check(a, b, permutations=19, strict=True).converged


def two_groups(left: float, right: float, epsilon: float) -> float:
    """``OT_eps`` of masses at 0 and 10: the least over the mass that stays at 0, the plan's only free number."""
    optimize = pytest.importorskip("scipy.optimize")
    product = np.outer([left, 1 - left], [right, 1 - right])

    def value(stays: float) -> float:
        plan = np.array([[stays, left - stays], [right - stays, 1 - left - right + stays]])
        logs = np.log(np.maximum(plan, 1e-300) / product)
        return float(100 * (plan[0, 1] + plan[1, 0]) + epsilon * (plan * logs).sum())

    return optimize.minimize_scalar(value, bounds=(0, min(left, right)), options={"xatol": 1e-14}).fun


@pytest.mark.filterwarnings("ignore:not converged")
def test_the_stated_error_holds_the_optimal_value() -> None:
    """Two groups of nearly equal mass: the marginals are met to 1e-3 while the missing mass is most of the value."""
    a = otdd.from_arrays([[0.0]] * 50 + [[10.0]] * 50, [0] * 100)
    b = otdd.from_arrays([[0.0]] * 50 + [[10.0]] * 51, [0] * 101)
    found = otdd.check(a, b, permutations=0, threshold=1.0, label_distance=None, relative_epsilon=0.02)
    truth = two_groups(0.5, 50 / 101, found.epsilon)
    truth -= (two_groups(0.5, 0.5, found.epsilon) + two_groups(50 / 101, 50 / 101, found.epsilon)) / 2
    assert abs(found.value - truth) <= found.error * (1 + 1e-5), "the truth is itself found numerically"
    assert not found.converged
    assert "raise max_iterations or relative_epsilon" in found.accuracy(1e-3)
    easy = otdd.check(draw(40, 0), draw(40, 1), permutations=0, threshold=1.0)
    exact = otdd.check(draw(40, 0), draw(40, 1), permutations=0, threshold=1.0, tol=1e-7, max_iterations=5000)
    assert abs(easy.value - exact.value) <= easy.error <= 0.01 * max(easy.value, easy.epsilon)


def test_rows_that_were_left_out_are_in_the_notes() -> None:
    a = otdd.from_arrays(draw(30, 0).x, [-1, *([0, 1] * 15)[1:]], name="trusted")
    b = otdd.from_arrays(draw(30, 1).x, [0, None, *([0, 1] * 14)], name="batch")
    found = otdd.check(a, b, permutations=19)
    assert found.notes == ("trusted: rows left out: unlabelled 1", "batch: rows left out: unlabelled 1")
    assert otdd.dataset_distance(a, b).notes[:2] == found.notes


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
    assert otdd.check(data, renamed, permutations=0, threshold=1.0).value == pytest.approx(0, abs=1e-3)
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
    given = {"permutations": 0, "threshold": 1.0, "label_distance": None}
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
