"""Certificates through the Triton backend: two-level steps carry what the certificate asks for."""

from __future__ import annotations

import pytest
import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution, sinkhorn_divergence
from otdd_flash.sinkhorn.aggregate import Groups, aggregated_plan
from otdd_flash.types import Potentials

DOUBLE = torch.float64


@pytest.mark.parametrize(("memory", "precision"), [("streamed", "fp16x3"), ("cached", "fp32")])
def test_separated_groups_of_nearly_equal_masses_are_certified_and_right(memory: str, precision: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sides = [torch.cat([torch.randn(6, 2, generator=generator) / 10 + shift for shift in (0.0, 10.0)])] * 2
    a = torch.full((12,), 1 / 12, dtype=DOUBLE)
    b = torch.cat([a[:6] * 1.0004, a[6:] * 0.9996])
    settings = {"a": a, "b": b, "epsilon": 1.0}
    found = sinkhorn_divergence(*sides, **settings, execution=Execution("triton", precision, memory))
    truth = sinkhorn_divergence(*(side.double() for side in sides), **settings, execution=Execution("torch", "fp64"))
    assert truth.converged
    assert truth.value > 0.01
    assert found.converged
    assert abs(found.value - truth.value) <= found.error + truth.error
    assert found.value == pytest.approx(truth.value, rel=1e-2)


def test_masses_between_groups_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    points = torch.cat([torch.randn(5, 2, generator=generator, dtype=DOUBLE) / 10 + shift for shift in (0.0, 4.0)])
    cloud = PointCloud(points.float(), torch.full((10,), 0.1, dtype=DOUBLE))
    cost = DotProductCost.build([cloud, cloud])
    ids = torch.arange(10) // 5
    zero = Potentials(torch.zeros(10, dtype=DOUBLE), torch.zeros(10, dtype=DOUBLE))
    small = [
        aggregated_plan(make_operator(cost, [(0, 1)], epsilon=0.5, backend=backend), 0, zero, 0.5, Groups(ids, ids, 2))
        for backend in ("torch", "triton")
    ]
    assert 0 < float(small[0][0, 1]) < 1e-20
    torch.testing.assert_close(small[1], small[0], rtol=2e-2, atol=0.0)
