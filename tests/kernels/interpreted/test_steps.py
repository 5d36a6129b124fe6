"""The solver's vector kernels against the tensor operations that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from otdd_flash.kernels import steps
from otdd_flash.kernels.steps import Vectors
from otdd_flash.sinkhorn import anderson
from otdd_flash.sinkhorn.anderson import Anderson, FusedAnderson

N, M, EPS = 40, 56, 1.0
SYMMETRIC = torch.tensor([False, True, False])


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Costs ``(3, N, M)`` and weights of a cross problem, a symmetric one of N points, and one with padding."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, N, 2, generator=rng, dtype=torch.float64), torch.randn(3, M, 2, generator=rng).double() + 0.5
    y[1, :N] = x[1]
    cost = torch.cdist(x, y).square()
    a, b = torch.rand(3, N, generator=rng).double() + 0.1, torch.rand(3, M, generator=rng).double() + 0.1
    a[2, -7:] = b[2, -9:] = b[1, N:] = 0.0
    a /= a.sum(1, keepdim=True)
    b[1, :N] = a[1]
    return cost, a, b / b.sum(1, keepdim=True)


def sums(cost: Tensor, a: Tensor, b: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    g = g.clone()
    g[1, :N] = f[1]
    plan = a[:, :, None] * b[:, None] * ((f[:, :, None] + g[:, None] - cost) / EPS).exp()
    return plan.sum(2), plan.sum(1)


def residuals(a: Tensor, b: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    first, second = ((w / s).log().nan_to_num(0.0, 0.0, 0.0) for w, s in ((a, r), (b, c)))
    return first, torch.where(SYMMETRIC[:, None], 0.0, second)


def vectors(a: Tensor, b: Tensor) -> Vectors:
    return Vectors(a, b, SYMMETRIC.int())


@pytest.mark.parametrize("block", [32, 1024])
def test_accelerated_steps(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen steps, more than the memory of eight; a growing error makes both forget, one problem is left alone."""
    monkeypatch.setattr(steps, "BLOCK", block)
    cost, a, b = problem()
    idle = SYMMETRIC[:, None] & (torch.arange(N + M) >= N)
    plain = Anderson(torch.cat([a, b], 1), idle, SYMMETRIC[:, None])
    fused = FusedAnderson(vectors(a, b), 1.0)
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    ours, turn = (f.clone(), g.clone()), 1.0
    for step in range(13):
        marginals = sums(cost, a, b, f, g)
        live = torch.tensor([1, 1, int(step < 11)], dtype=torch.int32)
        error = (marginals[0] - a).abs().sum(1) * (1e3 if step == 2 else 1.0)
        fused.advance(ours, sums(cost, a, b, *ours), error, live, EPS)
        first, second = residuals(a, b, *marginals)
        side = torch.where(SYMMETRIC[:, None], anderson._SYMMETRIC_MIXING, turn)
        safe = torch.cat([side * first, (1 - turn) * second], 1)
        moves = plain.step(torch.cat([f, g], 1), torch.cat([first, second], 1), safe, error, EPS)
        for potential, move in zip((f, g), moves.split([N, M], 1), strict=True):
            potential += EPS * torch.where(live[:, None] != 0, move, 0.0)
        turn = 1.0 - turn
        for one, other in zip(ours, (f, g), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    before, after = (
        float((r[:2] - a[:2]).abs().sum())
        for r, _ in (sums(cost, a, b, torch.zeros_like(a), torch.zeros_like(b)), sums(cost, a, b, *ours))
    )
    assert after < 0.02 * before


def test_an_annealing_step() -> None:
    cost, a, b = problem()
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    r, c = sums(cost, a, b, f, g)
    r[0, 3] = 0.0  # lost to underflow: no step
    live = torch.tensor([1, 1, 0], dtype=torch.int32)
    vectors(a, b).anneal((f, g), (r, c), live, epsilon=EPS, rows_by=1.5, columns_by=0.0, symmetric_by=0.5)
    first, _ = residuals(a, b, r, c)
    expected = EPS * torch.tensor([1.5, 0.5, 0.0], dtype=torch.float64)[:, None] * first
    torch.testing.assert_close(f, expected, rtol=1e-12, atol=1e-13)
    assert f[0, 3] == 0
    assert not g.any()


@pytest.mark.parametrize("block", [32, 1024])
def test_measuring(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live problems take the new sums, the others keep theirs; a sum lost where there is weight makes it infinite."""
    monkeypatch.setattr(steps, "BLOCK", block)
    _, a, b = problem()
    rng = torch.Generator().manual_seed(1)
    kept, new = ((torch.rand(w.shape, generator=rng).double() + 0.01 for w in (a, b)) for _ in range(2))
    (r, c), (new_r, new_c) = kept, new
    new_c[0, 5] = 0.0
    a[2, 4], new_r[2, 4] = 1e-14, 0.0  # a weight not worth missing
    live, least = torch.tensor([1, 0, 1], dtype=torch.int32), torch.full((3,), 1e-12, dtype=torch.float64)
    expected = [torch.where(live[:, None] != 0, one, other) for one, other in ((new_r, r), (new_c, c))]
    error = vectors(a, b).measure((new_r, new_c), (r, c), live, least)
    assert torch.equal(r, expected[0])
    assert torch.equal(c, expected[1])
    torch.testing.assert_close(error[1:], ((r - a).abs().sum(1) + (c - b).abs().sum(1))[1:], rtol=1e-12, atol=0)
    assert error[0] == torch.inf
