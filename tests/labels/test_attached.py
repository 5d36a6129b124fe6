"""Class moments on the tape: second derivatives, and memory that does not grow with the data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.labels import attached, samples
from otdd_flash.labels.attached import attached_table
from otdd_flash.types import LabeledDataset
from tests.live_bytes import LiveBytes


def blobs(n: int, d: int, seed: int, *, dtype: torch.dtype = torch.float64) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(3, d, generator=generator, dtype=dtype)[y] + torch.randn(n, d, generator=generator, dtype=dtype)
    return otdd.from_arrays(x, y, weights=torch.rand(n, generator=generator) + 0.5)


@pytest.mark.parametrize("method", ["means", "gaussian_diag"])
def test_second_derivatives(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By differences of the gradient, over several blocks of rows a class."""
    monkeypatch.setattr(samples, "_PIECE_ELEMENTS", 6)
    data, target = blobs(12, 2, 0), blobs(9, 2, 1)

    def table(x: Tensor) -> Tensor:
        return attached_table(replace(data, x=x), target, method)

    assert torch.autograd.gradgradcheck(table, data.x.clone().requires_grad_(), atol=1e-6, rtol=1e-5)


def test_full_covariances_are_differentiable_once() -> None:
    data, target = blobs(12, 2, 0), blobs(9, 2, 1)
    x = data.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        attached_table(replace(data, x=x), target, "gaussian").sum(), x, create_graph=True
    )
    with pytest.raises((NotImplementedError, RuntimeError), match="once"):
        gradient.sum().backward()


@pytest.mark.parametrize("method", ["means", "gaussian_diag", "gaussian"])
def test_kept_moments_of_the_target_change_nothing(method: str) -> None:
    data, target = blobs(12, 2, 0), blobs(9, 2, 1)
    kept = attached.class_moments(target, method)
    tables = []
    for _ in range(2):
        x = data.x.clone().requires_grad_()
        table = attached_table(replace(data, x=x), target, method, target_moments=kept if tables else None)
        tables.append((table.detach(), *torch.autograd.grad(table.square().sum(), x)))
    for one, other in zip(*tables, strict=True):
        assert torch.equal(one, other)


def test_weights_with_a_graph_are_refused() -> None:
    data = blobs(12, 2, 0)
    weights = data.normalised_weights.clone().requires_grad_()
    with pytest.raises(ValueError, match="detach the weights of 'arrays'"):
        attached_table(replace(data, weights=weights), blobs(9, 2, 1), "means")


@pytest.mark.parametrize("method", ["means", "gaussian_diag"])
def test_nothing_of_the_size_of_the_features_is_formed_but_the_gradient(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = blobs(4000, 50, 1, dtype=torch.float32), blobs(400, 50, 2, dtype=torch.float32)
    size = data.x.numel() * data.x.element_size()
    monkeypatch.setattr(samples, "_PIECE_ELEMENTS", 2000)
    monkeypatch.setattr(samples, "_BLOCK_ELEMENTS", 2000)
    x = data.x.clone().requires_grad_()
    with LiveBytes() as alive:
        table = attached_table(replace(data, x=x), target, method)
        before = alive.peak
        torch.autograd.grad(table.sum(), x)
    # the features themselves are counted; labels, weights and order of the rows are small beside them
    assert before < 1.75 * size
    assert alive.peak < 2.75 * size
