"""Gradients of Bures distances by finite differences: classes of few samples, many, and of less than full rank."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.labels import attached, bures, label_distances, moment_batches, triangles
from otdd_flash.labels.attached import attached_table, class_moments
from otdd_flash.types import LabeledDataset


def classes(sizes: list[int], d: int, seed: int) -> LabeledDataset:
    rng = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(y), d, generator=rng, dtype=torch.float64) + y[:, None]
    return otdd.from_arrays(x, y, weights=torch.rand(len(y), generator=rng) + 0.5)


@pytest.mark.parametrize("d", [1, 2, 4, 9])
@pytest.mark.parametrize(
    ("sizes", "others"),
    [([1, 2], [9]), ([2], [2, 3]), ([3, 4, 5], [12, 4]), ([6], [5, 30]), ([10, 9, 11], [10]), ([1], [1])],
)
def test_classes_of_any_size(sizes: list[int], others: list[int], d: int) -> None:
    """Fewer samples than features, as many, one more, many more, on either side; both sides move."""
    source, target = classes(sizes, d, 0), classes(others, d, 1)
    leaves = [source.x.clone().requires_grad_(), target.x.clone().requires_grad_()]

    def table(x: Tensor, y: Tensor) -> Tensor:
        return attached_table(replace(source, x=x), replace(target, x=y), "gaussian")

    value = table(*leaves)
    torch.testing.assert_close(value, label_distances(source, target, method="gaussian").joint(), rtol=1e-9, atol=1e-9)
    weight = torch.randn(value.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = torch.autograd.grad((weight * value).sum(), leaves)
    kept = class_moments(target, "gaussian")
    alone = (weight * attached_table(replace(source, x=leaves[0]), target, "gaussian", target_moments=kept)).sum()
    torch.testing.assert_close(torch.autograd.grad(alone, leaves[0])[0], gradients[0], rtol=1e-9, atol=1e-9)
    for k, gradient in enumerate(gradients):
        v = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        ends = []
        for h in (1e-4, -1e-4, 2e-4, -2e-4):
            moved = [leaf.detach() + h * v if i == k else leaf.detach() for i, leaf in enumerate(leaves)]
            ends.append(float((weight * table(*moved)).sum()))
        slope = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * 1e-4)
        assert float((gradient * v).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("dependent", [False, True])
def test_what_gpus_compute(dependent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments in batches, triangles and polar factors by products give values and gradients of the decompositions."""
    mix = torch.randn(4, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    sets = [classes([5, 30], 6, 0), classes([12, 4, 40], 6, 1)]
    if dependent:  # the second class of each has four directions in six features
        for data in sets:
            data.x[data.y == 1] = data.x[data.y == 1][:, :4] @ mix
    weight = torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def both() -> tuple[Tensor, ...]:
        leaves = [data.x.clone().requires_grad_() for data in sets]
        table = attached_table(*(replace(d, x=x) for d, x in zip(sets, leaves, strict=True)), "gaussian")
        return table.detach(), *torch.autograd.grad((weight * table).sum(), leaves)

    expected = both()
    monkeypatch.setattr(attached, "prepare", moment_batches.fill_moments)
    monkeypatch.setattr(bures, "_decomposed", bures._by_products)
    monkeypatch.setattr(bures, "_solved", triangles.solve_triangle)
    for ours, theirs in zip(both(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_value_and_gradient_share_their_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    decomposed = bures._decomposed
    monkeypatch.setattr(bures, "_decomposed", lambda products: counts.append(len(products)) or decomposed(products))
    source, target = classes([5, 6], 3, 0), classes([4, 7], 3, 1)
    x = source.x.clone().requires_grad_()
    table = attached_table(replace(source, x=x), target, "gaussian")
    assert sum(counts) == 6
    torch.autograd.grad(table.sum(), x)
    assert sum(counts) == 6
    torch.testing.assert_close(attached_table(source, target, "gaussian"), table)
    assert sum(counts) == 6  # values alone need no turns


def test_a_class_of_two_samples_turns_with_them() -> None:
    """Off its own line the covariance of two points changes at first order, and so does the dataset distance."""
    y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = otdd.from_arrays(torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64), [0, 0])
    target = otdd.from_arrays(y, [0] * 9)
    options = {"epsilon": 1.0, "tol": 1e-12, "max_iterations": 5000, "label_distance": "gaussian"}
    x = source.x.clone().requires_grad_()
    value = otdd.differentiable_distance(replace(source, x=x), target, **options).value
    (gradient,) = torch.autograd.grad(value, x)
    step = torch.tensor([[0.0, 0.0], [0.0, 1e-4]], dtype=torch.float64)
    ends = [otdd.dataset_distance(replace(source, x=source.x + s * step), target, **options).value for s in (1, -1)]
    assert float(gradient[1, 1]) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-6)
    assert abs(float(gradient[1, 1])) > 0.1


@pytest.mark.parametrize("n", [4, 30])
def test_features_that_depend_on_each_other(n: int) -> None:
    """Along directions that keep the dependence the distance is smooth; a constant feature stays constant."""
    mix = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, -2.0, 0.5, 0.0]], dtype=torch.float64)
    base = [classes([n, 7], 2, seed) for seed in (0, 1)]
    z = base[0].x.clone().requires_grad_()

    def table(z: Tensor) -> Tensor:
        sides = replace(base[0], x=z @ mix), replace(base[1], x=base[1].x @ mix)
        return attached_table(*sides, "gaussian")

    assert torch.autograd.gradcheck(table, z, eps=1e-5, atol=1e-7, rtol=1e-6)


def test_classes_in_one_place_and_equal_classes_have_finite_gradients() -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = otdd.from_arrays(torch.cat([x, x[:1].expand(4, 3)]), [0] * 6 + [1] * 4)
    target = otdd.from_arrays(x, [0] * 6)
    leaf = source.x.clone().requires_grad_()
    table = attached_table(replace(source, x=leaf), target, "gaussian")
    (gradient,) = torch.autograd.grad(table.sum(), leaf)
    assert bool(gradient.isfinite().all())
    (same,) = torch.autograd.grad(attached_table(replace(source, x=leaf), target, "gaussian")[0, 2], leaf)
    assert float(same.abs().max()) < 1e-12


def test_few_samples_of_many_features_take_the_span_of_the_samples() -> None:
    """Matrices of 784 x 784 would take minutes."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 10
    source, target = (otdd.from_arrays(torch.rand(60, 784, generator=rng) + s, labels) for s in (0.0, 0.1))
    start = time.perf_counter()
    moved = otdd.gradient_flow(source, target, steps=1, options=otdd.DistanceOptions(label_distance="gaussian"))
    assert time.perf_counter() - start < 10
    assert moved.value < otdd.dataset_distance(source, target, label_distance="gaussian").value
