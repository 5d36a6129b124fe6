"""The fast tier: projections, quantile summaries, class moments, screening."""

from __future__ import annotations

import math

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.labels import label_distances
from otdd_flash.screening import Slices, moment_distances, screen_then_refine
from otdd_flash.screening.sliced import _truncated_poisson
from otdd_flash.types import LabeledDataset


def draw(n: int, seed: int, shift: float = 0.0, classes: int = 2, d: int = 3) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + shift
    x[:, 0] += 3 * y
    return otdd.from_arrays(x, y, name=f"draw {seed}")


def test_projection_by_hand() -> None:
    """psi_0 <theta, x> + sum_i psi_i E[<theta, x'>^lambda_i / lambda_i!], moments of the sample's own class."""
    data = otdd.from_arrays([[1.0, 0.0], [3.0, 0.0], [5.0, 2.0]], [0, 0, 1])
    slices = Slices(
        directions=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        mixing=torch.tensor([[0.5, 0.25, 2.0]], dtype=torch.float64),
        orders=torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        center=torch.zeros(2, dtype=torch.float64), scale=1.0,
    )  # fmt: skip
    first, second = 0.25 * 2 + 2.0 * (1 + 9) / 2 / 2, 0.25 * 5 + 2.0 * 25 / 2
    assert slices.project(data)[:, 0].tolist() == pytest.approx([0.5 + first, 1.5 + first, 2.5 + second])


def test_without_moments_it_is_the_sliced_wasserstein_distance() -> None:
    a, b = draw(32, 0), draw(32, 1, shift=0.7)
    slices = Slices.draw([a, b], projections=40, moments=0, seed=3)
    signed = slices.directions * slices.mixing
    left, right = ((side.x @ signed.T).sort(0).values for side in (a, b))
    expected = float((left - right).square().mean())
    assert otdd.sliced_distance(a, b, slices=slices, quantiles=32) == pytest.approx(expected, rel=1e-10)


def test_pure_shift() -> None:
    """W_2^2 of a translate along theta is <theta, m>^2: its mean over directions tends to |m|^2 / d."""
    a = draw(50, 0)
    b = otdd.from_arrays(a.x + torch.tensor([1.0, 2.0, 2.0]), a.y)
    assert otdd.sliced_distance(a, b, projections=20000, moments=0) == pytest.approx(9 / 3, rel=0.05)


def test_weights_are_repetitions() -> None:
    a, b = draw(8, 0), draw(6, 1)
    slices = Slices.draw([a, b], projections=20)
    doubled = otdd.from_arrays(torch.cat([b.x, b.x[:2]]), torch.cat([b.y, b.y[:2]]))
    weighted = otdd.from_arrays(b.x, b.y, weights=[2, 2, 1, 1, 1, 1])
    values = [otdd.sliced_distance(a, side, slices=slices, quantiles=64) for side in (doubled, weighted)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@pytest.mark.parametrize(("n", "quantiles"), [(7, 5), (10, 5), (6, 12), (1, 4), (5, 64)])
def test_equal_weights_take_the_same_rows_as_none(n: int, quantiles: int) -> None:
    """The quantile at level t is the smallest value that a share t of the sample does not exceed."""
    plain = draw(n, 0)
    slices = Slices.draw([draw(20, 1)], projections=6)
    values = slices.project(plain).sort(0).values
    found = slices.summary(plain, quantiles)
    for q in range(quantiles):
        rank = -((-(2 * q + 1) * n) // (2 * quantiles))  # ceil of level times n
        torch.testing.assert_close(found[:, q], values[rank - 1], rtol=0, atol=0)
    weights = torch.linspace(1.0, 1.0 + 1e-9, n, dtype=torch.float64)  # not None, and away from exact ties
    weighted = otdd.from_arrays(plain.x, plain.y, weights=weights)
    if n % 2:
        torch.testing.assert_close(slices.summary(weighted, quantiles), found, rtol=1e-6, atol=1e-6)


def test_labels_are_seen_and_names_are_not() -> None:
    a = draw(60, 0)
    renamed = otdd.from_arrays(a.x, ["b" if y == 0 else "a" for y in a.y.tolist()])
    mixed = otdd.from_arrays(a.x, (torch.arange(60) // 2 % 2).tolist())
    assert otdd.sliced_distance(a, a) == 0
    assert otdd.sliced_distance(a, renamed) == pytest.approx(0, abs=1e-20)
    assert otdd.sliced_distance(a, mixed) > 0.01
    assert otdd.sliced_distance(a, mixed, moments=0) == pytest.approx(0, abs=1e-20)


def test_truncated_poisson_has_its_law() -> None:
    generator = torch.Generator().manual_seed(0)
    for rate in (0.5, 1.0, 4.0):
        drawn = _truncated_poisson(torch.full((20000,), rate, dtype=torch.float64), generator)
        assert float(drawn.min()) == 1
        for k in (1, 2, 3):
            probability = math.exp(-rate) * rate**k / math.factorial(k) / (1 - math.exp(-rate))
            assert float((drawn == k).double().mean()) == pytest.approx(probability, abs=0.015)


def test_moment_distance_of_one_class_sets_is_the_class_distance() -> None:
    a, b = draw(40, 0, classes=1), draw(30, 1, shift=1.0, classes=1)
    w = float(label_distances(a, b, method="gaussian_diag").source_target)
    assert otdd.moment_distance(a, b) == pytest.approx(2 * w, rel=1e-6)
    assert otdd.moment_distance(a, b, feature_weight=0.0, label_weight=3.0) == pytest.approx(3 * w, rel=1e-6)
    assert otdd.moment_distance(a, a) == pytest.approx(0, abs=1e-9)


def test_moment_distance_transports_classes() -> None:
    """Diracs at 0, 10 of mass 1/2 each against 1, 10 of mass 1/4, 3/4: 1/4 goes 0 to 1, 1/4 goes 0 to 10."""
    a = otdd.from_arrays([[0.0], [10.0]], [0, 1])
    b = otdd.from_arrays([[1.0], [10.0]], [0, 1], weights=[1, 3])
    found = otdd.moment_distance(a, b, feature_weight=1.0, label_weight=0.0, relative_epsilon=1e-3)
    assert found == pytest.approx(0.25 * 1 + 0.25 * 100, rel=1e-2)


@pytest.mark.parametrize("method", ["sliced", "moments"])
def test_matrix(method: str) -> None:
    sets = [draw(30, 0), draw(40, 1, shift=1.0), draw(20, 2, shift=2.0, classes=3)]
    matrix = otdd.screening_matrix(sets, method=method)
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [0, 0, 0]
    assert matrix[0, 1] < matrix[0, 2]
    if method == "sliced":
        slices = Slices.draw(sets)
        expected = otdd.sliced_distance(sets[0], sets[2], slices=slices)
    else:
        expected = float(moment_distances([sets[0], sets[2]])[0, 1])
    assert float(matrix[0, 2]) == pytest.approx(expected, rel=1e-6 if method == "sliced" else 0.05)


def test_screen_then_refine_orders_a_ranking() -> None:
    target = draw(40, 0)
    candidates = [draw(40, 1 + i, shift=shift) for i, shift in enumerate((2.0, 0.0, 3.0, 0.5, 1.0))]
    slices = Slices.draw([target, *candidates])
    found = screen_then_refine(
        candidates,
        lambda data: otdd.sliced_distance(data, target, slices=slices),
        lambda data: otdd.dataset_distance(data, target).value,
        keep=3,
    )
    assert found.order == (1, 3, 4, 0, 2)
    assert sorted(found.refined) == [1, 3, 4]
    assert found.rank_correlation == pytest.approx(1.0)


def test_screen_then_refine_counts_and_ties() -> None:
    assert len(screen_then_refine(range(10), float, float, keep=0.25).refined) == 3
    tied = screen_then_refine([1, 1, 2, 3], float, lambda v: -v, keep=4)
    assert tied.rank_correlation == pytest.approx(-1.0)
    assert screen_then_refine([1, 2], float, float, keep=2).rank_correlation is None
    for wrong in (0, 5, 1.0, True, -0.5):
        with pytest.raises((TypeError, ValueError), match="keep"):
            screen_then_refine(range(4), float, float, keep=wrong)
    with pytest.raises(ValueError, match=r"NaN for the items \[1\]"):
        screen_then_refine([1.0, math.nan], float, float, keep=1)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="one width"):
        Slices.draw([draw(5, 0), draw(5, 0, d=4)])
    with pytest.raises(ValueError, match="features, the slices"):
        Slices.draw([draw(5, 0)]).project(draw(5, 0, d=4))
    for name, value in (("quantiles", 0), ("quantiles", 1.5), ("projections", 0), ("projections", 1.5)):
        with pytest.raises((TypeError, ValueError), match=f"{name} must be .*got {value}"):
            otdd.sliced_distance(draw(5, 0), draw(5, 1), **{name: value})
    with pytest.raises(ValueError, match="method must be"):
        otdd.screening_matrix([draw(5, 0)], method="exact")
    with pytest.raises(ValueError, match="label_distance must be"):
        otdd.moment_distance(draw(5, 0), draw(5, 1), label_distance="sinkhorn")
