"""The certificate by kernels against the tensor operations that it stands for."""

from __future__ import annotations

import pytest
import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.kernels import rounding
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn.certificate import _rounded, rounded_by_kernels
from otdd_flash.sinkhorn.penalty import Penalty


@pytest.mark.parametrize("block", [256, 1024])
def test_rounded_plans_by_kernels(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cross problem, a symmetric one, a point without weight and a lost sum."""
    monkeypatch.setattr(rounding, "BLOCK", block)
    rng = torch.Generator().manual_seed(0)
    clouds = []
    for n in (70, 45):
        w = torch.rand(n, generator=rng, dtype=torch.float64) + 0.1
        w[3] = 0.0
        clouds.append(PointCloud(torch.randn(n, 5, generator=rng), w / w.sum()))
    cost = DotProductCost.build(clouds)
    operator = make_operator(cost, [(0, 1), (0, 0)], epsilon=1.0, backend="triton", precision="fp16x3")
    f = 0.3 * torch.randn(operator.a.shape, generator=rng, dtype=torch.float64)
    g = 0.3 * torch.randn(operator.b.shape, generator=rng, dtype=torch.float64)
    size = min(f.shape[1], g.shape[1])
    g[1], g[1, :size] = 0.0, f[1, :size]
    f[0, 5] = -1e4  # its row sum is lost
    sums = operator.marginals(f, g, 1.0)
    hard = Penalty([None, None], f.device)
    every = torch.ones(2, dtype=torch.bool)
    one, other = (
        rounded(operator, 1.0, (f, g), sums, (hard, hard), every) for rounded in (_rounded, rounded_by_kernels)
    )
    assert float(one.left[0][0].sum()) > 1e-3
    for expected, found in zip(one, other, strict=True):
        for a, b in zip(expected, found, strict=True) if isinstance(expected, tuple) else ((expected, found),):
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-9)
