"""Moment distances against closed forms; the samples are built so that their moments are exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from otdd_flash import from_arrays, load
from otdd_flash.labels import label_distances, nuclear


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotation(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=rng(seed), dtype=torch.float64)).Q


def with_covariance(mean: Tensor, root: Tensor) -> Tensor:
    """``2 d`` points of exactly this mean and covariance ``root root^T``."""
    d = len(mean)
    return torch.cat([mean + math.sqrt(d) * root.T, mean - math.sqrt(d) * root.T])


def two_classes(p: Tensor, q: Tensor, **options: object) -> float:
    """Cross entry of the table between two one-class sets."""
    result = label_distances(from_arrays(p, [0] * len(p)), from_arrays(q, [0] * len(q)), **options)
    return float(result.source_target)


def bures(S: Tensor, T: Tensor) -> float:
    """Textbook form for positive definite matrices, by eigendecompositions."""
    values, vectors = torch.linalg.eigh(S)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return float(S.trace() + T.trace() - 2 * torch.linalg.eigvalsh(root @ T @ root).clamp_min(0).sqrt().sum())


def test_commuting_covariances() -> None:
    d, q = 6, rotation(6, 0)
    s, t = (torch.rand(2, d, generator=rng(1), dtype=torch.float64) + 0.1).unbind()
    m, n = torch.randn(2, d, generator=rng(2), dtype=torch.float64).unbind()
    value = two_classes(with_covariance(m, q * s), with_covariance(n, q * t))
    assert value == pytest.approx(float((m - n).square().sum() + (s - t).square().sum()), rel=1e-12)


def test_rank_deficient_commuting_covariances() -> None:
    """Deviations that are zero in different directions; a square root of the covariance would lose half the digits."""
    d, q = 6, rotation(6, 0)
    s = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0, 4.0], dtype=torch.float64)
    zero = torch.zeros(d, dtype=torch.float64)
    value = two_classes(with_covariance(zero, q * s), with_covariance(zero, q * t))
    assert value == pytest.approx(float((s - t).square().sum()), rel=1e-12)


def test_two_dimensional_closed_form() -> None:
    """``tr (S T)^1/2 = sqrt(tr ST + 2 sqrt(det ST))`` for 2 x 2 matrices that do not commute."""
    a, b = torch.randn(2, 2, 2, generator=rng(3), dtype=torch.float64).unbind()
    S, T = a @ a.T, b @ b.T
    zero = torch.zeros(2, dtype=torch.float64)
    cross = torch.sqrt((S @ T).trace() + 2 * torch.linalg.det(S @ T).sqrt())
    value = two_classes(with_covariance(zero, a), with_covariance(zero, b))
    assert value == pytest.approx(float(S.trace() + T.trace() - 2 * cross), rel=1e-12)


@pytest.mark.parametrize("method", ["gaussian", "gaussian_diag"])
def test_one_dimension(method: str) -> None:
    p, q = torch.randn(30, 1, generator=rng(4), dtype=torch.float64), torch.rand(9, 1, generator=rng(5)).double()
    expected = (p.mean() - q.mean()).square() + (p.std(correction=0) - q.std(correction=0)).square()
    assert two_classes(p, q, method=method) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("method", ["gaussian", "gaussian_diag"])
def test_dirac_against_a_class(method: str) -> None:
    p = torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64)
    q = torch.randn(12, 3, generator=rng(6), dtype=torch.float64)
    expected = (p[0] - q.mean(0)).square().sum() + q.var(0, correction=0).sum()
    assert two_classes(p, q, method=method) == pytest.approx(float(expected), rel=1e-12)
    assert two_classes(p, p + 3, method=method) == pytest.approx(27.0, rel=1e-14)


def test_means() -> None:
    p, q = torch.randn(12, 3, generator=rng(6)).double(), torch.randn(9, 3, generator=rng(7)).double()
    expected = float((p.mean(0) - q.mean(0)).square().sum())
    assert two_classes(p, q, method="means") == pytest.approx(expected, rel=1e-13)


def test_equals_the_eigenvalue_form() -> None:
    p, q = torch.randn(90, 12, generator=rng(8)).double(), torch.randn(70, 12, generator=rng(9)).double() * 2 + 1
    covariance = [(v - v.mean(0)).T @ (v - v.mean(0)) / len(v) for v in (p, q)]
    expected = float((p.mean(0) - q.mean(0)).square().sum()) + bures(*covariance)
    assert two_classes(p, q) == pytest.approx(expected, rel=1e-11)


def test_low_rank_form_equals_full_form() -> None:
    """8 points in 20 dimensions enter as rows; the same points five times over enter as a triangle (C37)."""
    p, q = torch.randn(2, 8, 20, generator=rng(10), dtype=torch.float64).unbind()
    value = two_classes(p, q + 1)
    for left, right in ((5, 1), (1, 5), (5, 5)):
        assert two_classes(p.repeat(left, 1), q.repeat(right, 1) + 1) == pytest.approx(value, rel=1e-12)
    Z, Y = (v - v.mean(0) for v in (p, q))
    nuclear = torch.linalg.svdvals(Z @ Y.T).sum() / 8
    spread = (Z.square().sum() + Y.square().sum()) / 8
    expected = (p.mean(0) - q.mean(0) - 1).square().sum() + spread - 2 * nuclear
    assert value == pytest.approx(float(expected), rel=1e-12)


def test_weights_count_as_copies() -> None:
    p, q = torch.randn(6, 4, generator=rng(11)).double(), torch.randn(7, 4, generator=rng(12)).double()
    copies = torch.tensor([1, 3, 2, 1, 4, 1])
    weighted = from_arrays(p, [0] * 6, weights=copies)
    repeated = from_arrays(p.repeat_interleave(copies, 0), [0] * 12)
    other = from_arrays(q, [0] * 7)
    for method in ("means", "gaussian_diag", "gaussian"):
        values = [label_distances(data, other, method=method).source_target for data in (weighted, repeated)]
        assert torch.allclose(*values, rtol=1e-12)


def test_never_negative_and_real_beyond_rounding() -> None:
    """C19: 20 samples in 64 dimensions, the same set in another order, and orthogonal subspaces."""
    p = torch.randn(20, 64, generator=rng(13))
    same = label_distances(from_arrays(p, [0] * 20), from_arrays(p.flip(0), [0] * 20), method="gaussian")
    assert abs(float(same.source_target)) <= same.certificate["error"] < 1e-10
    left, right = p.clone(), p.clone()
    left[:, 32:], right[:, :32] = 0, 0
    expected = (left.double().mean(0) - right.double().mean(0)).square().sum()
    expected += left.double().var(0, correction=0).sum() + right.double().var(0, correction=0).sum()
    assert two_classes(left, right) == pytest.approx(float(expected), rel=1e-12)


def test_sampled_gaussians_and_bound_by_exact_transport() -> None:
    """C06: ``W_2^2 = |m|^2 + d (1 - s)^2`` within sampling error, and Gaussian <= exact."""
    ot = pytest.importorskip("ot")
    d, s, m = 4, 0.5, torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    p = torch.randn(20_000, d, generator=rng(14), dtype=torch.float64)
    q = m + s * torch.randn(20_000, d, generator=rng(15), dtype=torch.float64)
    expected = float(m @ m) + d * (1 - s) ** 2
    assert two_classes(p, q) == pytest.approx(expected, rel=0.02)
    p, q = p[:200], q[:200]
    exact = float(ot.emd2([], [], torch.cdist(p, q).square().numpy()))
    assert two_classes(p, q) <= exact


def test_constant_columns_and_far_from_origin() -> None:
    """C04: 10 points a class in d = 784 with 300 constant columns, also moved to 1e4."""
    x = torch.rand(40, 784, generator=rng(16), dtype=torch.float64)
    x[:, :300] = 0.7
    y = torch.arange(40) % 4
    tables = [label_distances(from_arrays(x + s, y), from_arrays(2 * x + s, y)).joint() for s in (0.0, 1e4)]
    assert torch.isfinite(tables[0]).all()
    assert torch.allclose(*tables, rtol=1e-9)


def test_batches_of_pairs_do_not_change_the_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = [torch.randn(r, 9, generator=rng(r)).double() for r in (1, 4, 9, 0, 3, 9)]
    pairs = [(i, j) for i in range(6) for j in range(6)]
    whole = nuclear.nuclear_pairs(factors, pairs)
    monkeypatch.setitem(nuclear._BATCH_BYTES, "cpu", 1)
    assert torch.allclose(nuclear.nuclear_pairs(factors, pairs), whole, rtol=1e-13)
    for (i, j), norm in zip(pairs, whole.tolist(), strict=True):
        expected = torch.linalg.svdvals(factors[i] @ factors[j].T).sum()
        assert norm == pytest.approx(float(expected), rel=1e-12)


def mixed_norm(matrices: Tensor) -> Tensor:
    """Nuclear norms as GPUs compute them; the CPU multiplies the same operands of ten bits, with sums in float32."""
    return (nuclear.mixed_polar_factor(matrices) * matrices).sum((1, 2))


def test_polar_form_equals_singular_values() -> None:
    """What GPUs use, on random, rank-deficient and badly scaled matrices."""
    matrices = torch.randn(4, 30, 40, generator=rng(18), dtype=torch.float64)
    matrices[1, 12:] = 0
    matrices[2] *= torch.logspace(0, -9, 30, dtype=torch.float64)[:, None]
    matrices[3] = 0
    expected = torch.linalg.svdvals(matrices).sum(1)
    exact = (nuclear.polar_factor(matrices) * matrices).sum((1, 2))
    torch.testing.assert_close(exact, expected, rtol=1e-8, atol=1e-12)
    mixed = mixed_norm(matrices)
    assert (mixed <= expected * (1 + 1e-12)).all()  # a lower bound
    torch.testing.assert_close(mixed, expected, rtol=nuclear._HALF_ERROR, atol=1e-12)
    single = mixed_norm(matrices.float()).double()
    torch.testing.assert_close(single, expected, rtol=2e-5, atol=1e-12)


def _spectra() -> dict[str, Tensor]:
    """Products as they occur and as they may occur at worst, ``(p, q)``."""
    p, q, d = 60, 80, 120
    left, right = torch.randn(p, d, generator=rng(20)).double(), torch.randn(q, d, generator=rng(21)).double()
    falling = torch.logspace(0, -6, p, dtype=torch.float64)[:, None]
    positive = torch.rand(p + q, d, generator=rng(22), dtype=torch.float64)
    return {
        "flat": left @ right.T,
        "falling rows": (falling * left) @ right.T,
        "falling on both sides": (falling * left) @ (torch.logspace(0, -4, q, dtype=torch.float64)[:, None] * right).T,
        "hidden fall": rotation(p, 23) @ (falling * left) @ right.T,
        "one large value": positive[:p] @ positive[p:].T,
        "rank one": torch.outer(torch.ones(p, dtype=torch.float64), right @ left[0]),
        "low rank": left[:, :9] @ right[:, :9].T,
        "orthogonal": rotation(q, 24)[:p],
        "covariance": left @ left.T,
        "one entry": left[:1, :1],
        "tiny": 1e-150 * (left @ right.T),
        "huge": 1e150 * (left @ right.T),
    }


@pytest.mark.parametrize("name", _spectra())
def test_half_precision_products_stay_within_the_stated_error(name: str) -> None:
    matrix = _spectra()[name]
    expected = float(torch.linalg.svdvals(matrix).sum())
    found = float(mixed_norm(matrix[None])[0])
    allowed = nuclear._HALF_ERROR + min(matrix.shape) * 1e-8
    assert expected * (1 - allowed) <= found <= expected * (1 + 1e-12)


def test_half_precision_of_single_rows() -> None:
    """Nothing averages their rounding out: the worst that was found."""
    rows = torch.randn(300, 1, 8, generator=rng(25), dtype=torch.float64)
    lost = 1 - mixed_norm(rows) / rows.norm(dim=2)[:, 0]
    assert nuclear._HALF_ERROR / 4 < float(lost.max()) < nuclear._HALF_ERROR


def test_half_precision_is_what_the_products_are_made_in() -> None:
    """The same as float64 throughout would mean that nothing is saved."""
    matrix = _spectra()["flat"][None]
    expected = torch.linalg.svdvals(matrix).sum()
    assert 1e-8 < 1 - float(mixed_norm(matrix)[0] / expected) < nuclear._HALF_ERROR / 8


@pytest.mark.data
def test_images(data_root) -> None:
    """Classes of 60 images in 784 dimensions, against covariance matrices and their eigenvalues."""
    names = ("mnist", "fashion_mnist")
    source, target = (load(name, split="train", max_samples=600, seed=0, data_root=data_root) for name in names)
    table = label_distances(source, target).source_target
    p, q = source.x[source.y == 0].double(), target.x[target.y == 9].double()
    covariance = [(v - v.mean(0)).T @ (v - v.mean(0)) / len(v) for v in (p, q)]
    expected = float((p.mean(0) - q.mean(0)).square().sum()) + bures(*covariance)
    assert float(table[0, 9]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [20, 90])
def test_gpu_equals_cpu(d: int) -> None:
    """More samples than features, and fewer."""
    x = torch.rand(400, d, generator=rng(17))
    source, target = from_arrays(x[:200], torch.arange(200) % 4), from_arrays(x[200:] ** 2, torch.arange(200) % 3)
    table = label_distances(source, target).joint()
    device = label_distances(source.to("cuda"), target.to("cuda"))
    gap = float((table - device.joint()).abs().max())
    assert gap <= min(device.error, 1e-5 * float(table.mean()))
