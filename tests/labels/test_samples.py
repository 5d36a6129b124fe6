"""Class moments against their definitions, and the pairs that cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from otdd_flash import from_arrays
from otdd_flash.labels import check_pair, class_samples, samples


def weighted_set(n: int = 60, d: int = 5, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64) + 3
    y = torch.randint(0, 3, (n,), generator=rng)
    return from_arrays(x, y, weights=torch.rand(n, generator=rng, dtype=torch.float64) + 0.1)


@pytest.mark.parametrize("block", [1 << 22, 1])
def test_moments_equal_their_definition(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``block = 1`` forces many blocks of rows, hence the block-wise QR."""
    monkeypatch.setattr(samples, "_BLOCK_ELEMENTS", block)
    data = weighted_set()
    for c, sample in enumerate(class_samples(data)):
        x, w = data.x[data.y == c], data.weights[data.y == c]
        w = w / w.sum()
        mean = w @ x
        covariance = (x - mean).T @ (w[:, None] * (x - mean))
        assert torch.allclose(sample.mean, mean, rtol=1e-14)
        assert torch.allclose(sample.variance, covariance.diagonal(), rtol=1e-13)
        assert sample.factor.shape[0] <= max(5, sample.n if block > 1 else 5)
        assert torch.allclose(sample.factor.T @ sample.factor, covariance, atol=1e-13, rtol=0)


def test_few_samples_keep_their_rows_and_many_their_triangle() -> None:
    x = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    x[:, 7:] = 0.3  # constant features take no part
    few, many = class_samples(from_arrays(x, [0] * 4 + [1] * 36))
    assert few.factor.shape == (4, 10)
    assert many.factor.shape == (7, 10)
    assert not many.factor[:, 7:].any()


def test_a_single_sample_is_a_dirac() -> None:
    (sample,) = class_samples(from_arrays([[1.5, -2.0]], ["only"]))
    assert sample.mean.tolist() == [1.5, -2.0]
    assert not sample.variance.any()
    assert sample.factor.numel() == 0


def test_widths_that_differ_are_named_with_the_ways_out() -> None:
    """C03."""
    x, y = from_arrays(torch.zeros(50, 4), [0] * 50), from_arrays(torch.zeros(60, 7), [0] * 60)
    with pytest.raises(ValueError, match=r"has 4 and .* 7.*embedder.*projection"):
        check_pair(x, y)


def test_devices_that_differ_are_named() -> None:
    """C34."""
    x = from_arrays(torch.zeros(5, 4), [0] * 5)
    elsewhere = replace(x, x=x.x.to("meta"))
    with pytest.raises(ValueError, match=r"on cpu and .* on meta.*\.to\(device\)"):
        check_pair(x, elsewhere)
