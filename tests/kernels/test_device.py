"""The compiled kernels on a GPU against float64, by the checks that the benchmark runs first."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "parity.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_parity", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("memory", ["streamed", "cached"])
@pytest.mark.parametrize("mode", ["int8", "fp16", "fp16x3", "tf32", "fp32"])
def test_kernels_match_float64(bench, mode, memory):
    for (n, m, d), classes in (((1, 33, 3), 0), ((100, 1500, 64), 5), ((1000, 333, 784), 5), ((7, 130, 1025), 0)):
        for name, error in bench.check_shape(n, m, d, mode, memory, classes).items():
            assert error < bench.TOLERANCE[mode], (name, n, m, d)


@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_fixed_order_is_bitwise_repeatable(bench, memory):
    cost = bench.make_cost([5000, 7000], 130, 4, "cuda")
    eps = 0.1 * cost.mean(0, 1)
    op = bench.FusedOperator.build(cost, [(0, 1), (0, 0), (1, 1)], epsilon=eps, memory=memory)
    f, g = op.softmin(torch.zeros_like(op.b), eps, side="rows"), torch.zeros_like(op.b)
    first = op.marginals(f, g, eps)
    for _ in range(4):
        assert all(torch.equal(x, y) for x, y in zip(first, op.marginals(f, g, eps), strict=True))


def test_a_pass_can_be_captured(bench):
    cost = bench.make_cost([300, 200], 20, 3, "cuda")
    eps = 0.1 * cost.mean(0, 1)
    op = bench.FusedOperator.build(cost, [(0, 1)], epsilon=eps, memory="streamed")
    f, g = op.softmin(torch.zeros_like(op.b), eps, side="rows"), torch.zeros_like(op.b)
    expected = op.marginals(f, g, eps)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op.marginals(f, g, eps)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(expected, captured, strict=True))
