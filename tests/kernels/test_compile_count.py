"""How many compilations a process pays for, by Triton's own keys, without a GPU."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

KERNELS = {
    "potentials": "_exponents_kernel",
    **{
        name: f"_{name}_kernel"
        for name in ("marginals", "stored_marginals", "ordered_sum", "scores", "softmin", "apply_plan")
    },
}


class Recorder:
    """Stands in for a kernel: notes the key under which Triton would compile it for sm_90, and runs nothing."""

    def __init__(self, kernel):
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend
        from triton.runtime.jit import create_function_from_signature

        self.bind = create_function_from_signature(
            kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32))
        )
        self.keys: set[str] = set()

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            _, specialisation, options = self.bind(*args, **kwargs)
            self.keys.add(f"{specialisation} {options}")

        return launch


@pytest.fixture
def recorders(monkeypatch):
    importlib.import_module("otdd_flash.ops.fused")  # as a GPU would run it, before the interpreter is allowed
    found = {}
    for module, kernel in KERNELS.items():
        home = importlib.import_module(f"otdd_flash.kernels.{module}")
        found[module] = Recorder(getattr(home, kernel))
        monkeypatch.setattr(home, kernel, found[module])
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # clouds on the CPU are taken
    monkeypatch.setattr("otdd_flash.ops.tuning.architecture", lambda device: 90)
    return found


def uniform(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def use(n, m, memory):
    """Everything that an operator can do, once."""
    from otdd_flash.cost import DotProductCost, PointCloud
    from otdd_flash.ops.fused import FusedOperator

    gen = torch.Generator().manual_seed(n)
    clouds = [
        PointCloud(torch.randn(k, 70, generator=gen), uniform(k), torch.randint(0, 3, (k,), generator=gen))
        for k in (n, m)
    ]
    cost = DotProductCost.build(clouds, table=torch.ones(3, 3, dtype=torch.float64) - torch.eye(3))
    op = FusedOperator.build(cost, [(0, 1), (0, 0), (1, 1)], epsilon=1.0, precision="fp16x3", memory=memory)
    f, g = torch.zeros_like(op.a), torch.zeros_like(op.b)
    op.marginals(f, g, 0.1 + 1 / n)
    op.softmin(g, 0.1 + 1 / n, side="rows")
    op.softmin(f, 0.1 + 1 / n, side="columns")
    op.apply_plan(0, f[0, :n], g[0, :m], 0.1, v=torch.ones(m, 1), u=torch.ones(n, 5))


@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_thirty_sizes_compile_a_bounded_number_of_kernels(recorders, memory):
    """C22: thirty different n in one process; what a kernel is compiled for does not depend on n."""
    sizes = [1, 2, 15, 16, 17, 33, 64, 100, 127, 128, 129, 200, 255, 256, 257]
    for n in sizes:
        use(n, 2 * n + 1, memory)
    some = {name: len(recorder.keys) for name, recorder in recorders.items()}
    for n in [300, 333, 400, 512, 513, 640, 700, 777, 801, 900, 1000, 1023, 1024, 1025, 1100]:
        use(n, n + 7, memory)
    assert {name: len(recorder.keys) for name, recorder in recorders.items()} == some
    unused = {"scores", "stored_marginals"} if memory == "streamed" else {"marginals"}
    assert {name for name, count in some.items() if count == 0} == unused
    assert all(count <= 2 for count in some.values()), some


def test_small_problems_of_any_size_compile_a_bounded_number_of_kernels(monkeypatch):
    """What the kernels of stored costs are compiled for are few block sizes, and whether sizes divide by 16."""
    home = importlib.import_module("otdd_flash.ops.dense_fused")
    from otdd_flash.ops.dense import Step

    found = {}
    for name in ("dense_costs", "dense_step", "dense_pull"):
        module = importlib.import_module(f"otdd_flash.kernels.{name}")
        found[name] = Recorder(getattr(module, f"_{name}_kernel"))
        monkeypatch.setattr(module, f"_{name}_kernel", found[name])

    def solve(n: int, d: int) -> None:
        clouds = [torch.zeros(1, k, d) for k in (n, 2 * n)]
        weights = [torch.full(cloud.shape[:2], 1 / cloud.shape[1], dtype=torch.float64) for cloud in clouds]
        problems = home.FusedDense(clouds[0], weights[0], clouds[1], weights[1], debiased=True)
        problems.solve([Step(1.0 + n, 1.0, 0.0), Step(0.5, 1.0, 0.5), Step(0.5, 0.9, 0.0)])
        problems.pull(0.5)

    for n in (1, 2, 15, 16, 17, 64, 100, 128, 400, 512, 1000, 1024):
        solve(n, 3)
        solve(n, 70)
    some = {name: len(recorder.keys) for name, recorder in found.items()}
    for n in (3, 33, 77, 129, 256, 333, 640, 777, 1040):
        solve(n, 5)
        solve(n, 500)
    assert {name: len(recorder.keys) for name, recorder in found.items()} == some
    assert some["dense_costs"] <= 3, some
    assert some["dense_step"] <= 4, some
    assert some["dense_pull"] <= 8, some
