"""The dataset distance as a differentiable number: every dependence on the features, label moments included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.differentiable import differentiable_distance
from otdd_flash.labels import label_distances
from otdd_flash.labels.attached import attached_table
from otdd_flash.types import LabeledDataset

TIGHT = {"epsilon": 2.0, "tol": 1e-11, "max_iterations": 5000}
METHODS = ["means", "gaussian_diag", "gaussian"]


def blobs(n: int, classes: int, seed: int, *, d: int = 3, shift: float = 0.0, weighted: bool = False) -> LabeledDataset:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=rng, dtype=torch.float64)
    x = centres[y] + 0.5 * torch.randn(n, d, generator=rng, dtype=torch.float64) + shift
    return otdd.from_arrays(x, y, weights=torch.rand(n, generator=rng) + 0.5 if weighted else None)


def at(data: LabeledDataset, x: Tensor) -> LabeledDataset:
    return replace(data, x=x)


@pytest.mark.parametrize("method", METHODS)
def test_attached_tables_are_the_label_distances(method: str) -> None:
    a, b = blobs(40, 3, 0, weighted=True), blobs(30, 2, 1, shift=0.5)
    torch.testing.assert_close(
        attached_table(a, b, method), label_distances(a, b, method=method).joint(), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("method", METHODS)
def test_attached_tables_pass_gradcheck(method: str) -> None:
    a, b = blobs(24, 2, 0, weighted=True), blobs(20, 2, 1, shift=0.5)

    def table(x: Tensor, y: Tensor) -> Tensor:
        return attached_table(at(a, x), at(b, y), method)

    leaves = a.x.clone().requires_grad_(), b.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(table, leaves, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_gradient_is_that_of_the_number(method: str, debiased: bool) -> None:
    """Central differences of ``dataset_distance`` itself, both sides moved."""
    a, b = blobs(24, 2, 0, weighted=True), blobs(20, 3, 1, shift=0.5)
    options = {**TIGHT, "label_distance": method, "debiased": debiased, "label_weight": 0.7, "feature_weight": 1.3}
    x, y = a.x.clone().requires_grad_(), b.x.clone().requires_grad_()
    found = differentiable_distance(at(a, x), at(b, y), **options)
    assert found.value.item() == otdd.dataset_distance(a, b, **options).value
    gradients = torch.autograd.grad(found.value, (x, y))
    u, v = (torch.randn(t.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64) for t in (x, y))
    h = 1e-4
    ends = [otdd.dataset_distance(at(a, a.x + s * u), at(b, b.x + s * v), **options).value for s in (h, -h)]
    slope = float((gradients[0] * u).sum() + (gradients[1] * v).sum())
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_detached_moments_hold_the_table() -> None:
    a, b = blobs(24, 2, 0), blobs(20, 2, 1, shift=0.5)
    x = a.x.clone().requires_grad_()
    detached = differentiable_distance(at(a, x), b, moments="detached", label_distance="means", **TIGHT)
    held = differentiable_distance(
        at(a, x), b, moments="detached", label_distance=detached.result.label_distances, **TIGHT
    )
    attached = differentiable_distance(at(a, x), b, label_distance="means", **TIGHT)
    gradients = [torch.autograd.grad(found.value, x)[0] for found in (detached, held, attached)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert float((gradients[0] - gradients[2]).norm() / gradients[2].norm()) > 1e-2


def test_same_data_has_gradient_zero() -> None:
    """C11 for whole data sets: value, root and both gradients vanish, and nothing is NaN."""
    a = blobs(20, 2, 0)
    x = a.x.clone().requires_grad_()
    found = differentiable_distance(at(a, x), at(a, a.x.clone()), epsilon=1.0)
    for number in (found.value, found.root):
        (gradient,) = torch.autograd.grad(number, x, retain_graph=True)
        assert number.item() == 0.0
        assert float(gradient.abs().max()) < 1e-12


def test_constant_features_and_small_classes_have_finite_gradients() -> None:
    """C04: fewer samples than features, most of them constant."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 40, generator=rng, dtype=torch.float64)
    x[:, 10:] = 1.0
    a, b = otdd.from_arrays(x, torch.arange(20) % 2), otdd.from_arrays(x.flip(0) + 0.1, torch.arange(20) % 2)
    for method in METHODS:
        leaf = a.x.clone().requires_grad_()
        found = differentiable_distance(at(a, leaf), b, label_distance=method, epsilon=5.0)
        (gradient,) = torch.autograd.grad(found.value, leaf)
        assert bool(torch.isfinite(gradient).all())
        assert float(gradient.abs().max()) > 1e-4


def test_dataset_distance_itself_takes_features_that_require_gradients() -> None:
    a, b = blobs(24, 2, 0), blobs(20, 2, 1, shift=0.5)
    plain = otdd.dataset_distance(a, b)
    assert otdd.dataset_distance(at(a, a.x.clone().requires_grad_()), b).value == plain.value


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"label_distance": "sinkhorn"}, "no attached moments"),
        ({"max_samples": 10}, "subsample"),
        ({"convention": "microsoft"}, "no gradient"),
        ({"moments": "both"}, "moments must be"),
    ],
)
def test_what_has_no_gradient_is_refused(options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        differentiable_distance(blobs(24, 2, 0), blobs(20, 2, 1), **options)
