"""Small problems whole: the kernels against the same in torch and float64."""

from __future__ import annotations

import pytest
import torch

from otdd_flash.ops import dense_blocks, tuning
from otdd_flash.ops.dense import Step, TorchDense
from otdd_flash.ops.dense_fused import FusedDense


def batch(n: int, m: int, d: int, size: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n + m + d)
    x, y = (torch.rand(size, k, d, generator=generator) - 0.4 for k in (n, m))
    a, b = (torch.rand(size, k, generator=generator, dtype=torch.float64) + 0.1 for k in (n, m))
    return [x, a / a.sum(1, keepdim=True), y, b / b.sum(1, keepdim=True)]


def steps(rho: float | None) -> list[Step]:
    epsilons = [(1.0, 0.0), (1.0, 0.5), (0.3, 0.5), (0.1, 0.5), (0.1, 0.0)]
    return [Step(e, 1.0 if rho is None else 1 / (1 + e / rho), kept) for e, kept in epsilons]


@pytest.mark.parametrize(("n", "m", "d"), [(5, 9, 2), (32, 16, 8), (40, 20, 20), (1, 3, 1)])
@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("rho", [None, 0.5])
def test_steps_and_gradient(n: int, m: int, d: int, debiased: bool, rho: float | None) -> None:
    x, a, y, b = batch(n, m, d)
    exact = TorchDense.build(x.double(), a, y.double(), b, epsilon=0.1, debiased=debiased)
    fused = FusedDense(x, a, y, b, debiased=debiased)
    assert exact is not None
    expected = exact.solve(steps(rho))
    assert expected is not None
    for ours, theirs in zip(fused.solve(steps(rho)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(fused.pull(0.1).double(), exact.pull(0.1), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "block"), [((5, 9, 2), 1 << 24), ((20, 20, 40), 450), ((11, 3, 1), 50), ((6, 13, 12), 30)]
)
@pytest.mark.parametrize("debiased", [True, False])
def test_products_of_the_library_give_what_kernels_give(
    shape: tuple[int, int, int], block: int, debiased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exact as costs rounded once allow, wherever blocks end, with a point that weighs nothing."""
    monkeypatch.setattr(tuning, "dense_in_blocks", lambda *_: True)
    monkeypatch.setattr(dense_blocks, "_BLOCK", block)  # whole pairs, one pair, rows of one pair
    x, a, y, b = batch(*shape, size=3)
    exact = TorchDense.build(x.double(), a, y.double(), b, epsilon=0.1, debiased=debiased)
    fused = FusedDense(x, a, y, b, debiased=debiased)
    assert exact is not None
    expected = exact.solve(steps(0.5))
    assert expected is not None
    for ours, theirs in zip(fused.solve(steps(0.5)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(fused.pull(0.1).double(), exact.pull(0.1), rtol=1e-5, atol=1e-6)
    a[:, 1] = 0
    light = FusedDense(x, a, y, b, debiased=debiased)
    light.solve(steps(0.5))
    pulled = light.pull(0.1)
    assert bool(pulled.isfinite().all())
    assert float(pulled[:, 1].abs().max()) == 0


@pytest.mark.parametrize("block", [1 << 24, 1000, 100])
def test_costs_by_products_are_rounded_once_and_never_negative(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from the origin, with points that occur twice; entries within a cloud are written on request alone."""
    monkeypatch.setattr(dense_blocks, "_BLOCK", block)
    x = batch(30, 1, 12)[0] + 100.0
    points = torch.cat([x, x[:, :10]], 1)
    exact = (points.double()[:, :, None] - points.double()[:, None]).square().sum(3) / 2
    costs = torch.full((2, 40, 40), torch.nan)
    dense_blocks.dense_costs(points, costs, n=30, own=False)
    cross = torch.arange(40)[:, None].lt(30) != torch.arange(40).lt(30)
    torch.testing.assert_close(costs[:, cross].double(), exact[:, cross], rtol=1e-7, atol=1e-9)
    assert bool(costs[:, ~cross].isnan().all())
    dense_blocks.dense_costs(points, costs, n=30, own=True)
    torch.testing.assert_close(costs.double(), exact, rtol=1e-7, atol=1e-9)
    assert float(costs.min()) >= 0


def test_a_point_without_weight_is_a_row_and_no_column() -> None:
    x, a, y, b = batch(6, 7, 3, size=1)
    a[:, 2] = 0
    x[:, 2] = 50.0
    keep = a[0] > 0
    fused, without = (FusedDense(x[:, k], a[:, k], y, b, debiased=True) for k in (slice(None), keep))
    (_, potentials), (_, expected) = (found.solve(steps(None)) for found in (fused, without))
    others = torch.cat([keep, torch.ones(7, dtype=torch.bool)])
    torch.testing.assert_close(potentials[:, :, others], expected)
    pulled = fused.pull(0.1)
    torch.testing.assert_close(pulled[:, others], without.pull(0.1), rtol=1e-4, atol=1e-6)
    assert float(pulled[:, 2].abs().max()) == 0
    assert float(potentials[0, 0, 2]) > 1000  # about half of three times 50 squared


def test_a_cold_start_far_away_is_no_matter() -> None:
    """A running maximum: costs of ten thousand epsilons."""
    x, a, y, b = batch(6, 7, 3, size=1)
    exact = TorchDense.build(x.double(), a, y.double() + 3, b, epsilon=1e-3, debiased=False)
    (_, found) = FusedDense(x, a, y + 3, b, debiased=False).solve([Step(1e-3, 1.0, 0.0)] * 2)
    assert exact is not None
    cost = (x.double()[0, :, None] - (y.double()[0] + 3)).square().sum(2) / 2
    g = -1e-3 * torch.logsumexp(a[0].log()[:, None] - cost / 1e-3, 0)
    f = -1e-3 * torch.logsumexp(b[0].log() + (g - cost) / 1e-3, 1)
    torch.testing.assert_close(found[0, 0, :6], f, rtol=1e-5, atol=1e-5)
