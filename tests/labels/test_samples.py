"""Class moments against their definitions, and the pairs that cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from otdd_flash import from_arrays
from otdd_flash.labels import check_pair, class_samples, moment_batches, samples, triangles


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


def test_batches_of_classes_have_the_moments_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What GPUs compute: classes of few and of many samples, with constant and dependent features and a Dirac."""
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(75, 6, generator=rng, dtype=torch.float64) + 3
    y = torch.repeat_interleave(torch.arange(5), torch.tensor([40, 4, 1, 25, 5]))
    x[y == 0, 2] = 0.3
    x[y == 3, 5] = x[y == 3, 4]
    data = from_arrays(x, y, weights=torch.rand(75, generator=rng, dtype=torch.float64) + 0.1)
    for elements in (1 << 24, 200):  # at last the largest class is too large for a batch
        monkeypatch.setattr(moment_batches, "_BATCH_ELEMENTS", elements)
        for method, name in (("means", "mean"), ("gaussian_diag", "variance"), ("gaussian", "factor")):
            batched, single = class_samples(data), class_samples(data)
            moment_batches.fill_moments(batched, method)
            assert [name in vars(sample) for sample in batched] == [sample.n * 6 <= elements for sample in batched]
            for ours, theirs in zip(batched, single, strict=True):
                torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-13, atol=1e-13)
                if method == "gaussian_diag":
                    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-13, atol=1e-13)
                if method == "gaussian":
                    assert ours.factor.shape == theirs.factor.shape
                    gap = (ours.factor.T @ ours.factor - theirs.factor.T @ theirs.factor).abs().max()
                    assert float(gap) <= 1e-13 + float(triangles.shift(ours.factor))


def test_a_batch_of_diracs_alone() -> None:
    batch = class_samples(from_arrays(torch.ones(5, 3), [0, 0, 0, 1, 2]))
    moment_batches.fill_moments(batch, "gaussian")
    assert [vars(sample)["factor"].shape for sample in batch] == [(0, 3)] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_triangles_give_the_covariance_and_its_inverse(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of features that repeat others, and where no Cholesky factor is found."""
    x = torch.randn(90, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x[:, 3], x[:, 6] = 0.5, x[:, 5]
    (sample,) = class_samples(from_arrays(x, torch.zeros(90, dtype=torch.int64)))
    if fails:
        nothing = torch.full((1, 7, 7), torch.nan, dtype=torch.float64), torch.ones(1, dtype=torch.int32)
        monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda matrix, upper: nothing)
    factor = sample._triangle(sample._varying_features())
    assert factor.shape == (7, 8)
    assert not factor[:, 3].any()
    torch.testing.assert_close(factor.T @ factor, torch.cov(x.T, correction=0), rtol=1e-10, atol=1e-12)
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    solution = triangles.solve_triangle(factor, rows)
    torch.testing.assert_close(factor @ solution, rows, rtol=1e-6, atol=1e-6)
    assert not solution[3].any()


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
