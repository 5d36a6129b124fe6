"""The whole path on a CUDA device: accuracy of every mode, determinism, compilations, recorded iterations."""

from __future__ import annotations

import itertools

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.sinkhorn import recording

pytestmark = pytest.mark.gpu

MODES = ("int8", "fp16", "fp16x3", "tf32", "fp32")
LIMIT = {"fp16": 5e-4, "tf32": 5e-4, "int8": 1e-5, "fp16x3": 1e-5, "fp32": 1e-5}


def pictures(n: int, classes: int, seed: int, d: int = 784) -> otdd.LabeledDataset:
    """Blurred class templates plus noise on the 8-bit grid."""
    template = torch.rand(classes, d, generator=torch.Generator().manual_seed(seed % 2)).cumsum(1).remainder(1.0)
    y = torch.arange(n) % classes
    noise = torch.rand(n, d, generator=torch.Generator().manual_seed(100 + seed))
    levels = (255 * (0.7 * template[y] + 0.3 * noise)).round()
    return otdd.from_arrays(levels / 255, y).to("cuda")


@pytest.mark.parametrize(("mode", "memory"), itertools.product(MODES, ("streamed", "cached")))
def test_every_mode_keeps_the_value(mode: str, memory: str) -> None:
    a, b = pictures(700, 5, 0), pictures(900, 7, 1)
    exact = otdd.dataset_distance(a, b, precision="fp64", backend="torch", tol=1e-9)
    table = exact.label_distances
    got = otdd.dataset_distance(a, b, precision=mode, memory=memory, backend="triton", label_distance=table, tol=1e-5)
    assert (got.precision, got.memory, got.backend) == (mode, memory, "triton")
    assert got.converged
    assert got.value == pytest.approx(exact.value, rel=LIMIT[mode])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_default_precision_is_within_1e_4(scale: float) -> None:
    """C31: features x 30, n = 512, d = 784; the mode is recorded."""
    x = torch.randn(2, 512, 784, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    y = torch.arange(512) % 4
    sets = [otdd.from_arrays(scale * (z + s), y).to("cuda") for s, z in enumerate(x)]
    exact = otdd.dataset_distance(*sets, precision="fp64", backend="torch", tol=1e-8)
    got = otdd.dataset_distance(*sets, label_distance=exact.label_distances, tol=1e-5)
    assert got.backend == "triton"
    assert got.precision == "fp16x3"
    assert got.value == pytest.approx(exact.value, rel=1e-4)


def test_five_runs_give_the_same_bits() -> None:
    """C28, on the way that a distance takes."""
    a, b = pictures(3000, 5, 0), pictures(2500, 7, 1)
    values = {otdd.dataset_distance(a, b, label_distance="sinkhorn").value for _ in range(5)}
    assert len(values) == 1


def test_recorded_iterations_equal_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pictures(800, 5, 0), pictures(600, 7, 1)
    recorded = otdd.dataset_distance(a, b, tol=1e-5)
    monkeypatch.setattr(recording, "_LARGEST", 0)
    eager = otdd.dataset_distance(a, b, tol=1e-5)
    assert recorded.iterations == eager.iterations > 4
    assert recorded.value == eager.value


def test_new_sizes_compile_nothing() -> None:
    """C22: thirty sizes in one process after the first two."""
    compiled = []
    from triton import knobs

    knobs.runtime.jit_post_compile_hook = lambda **event: compiled.append(event["fn"].name)
    try:
        for k in range(32):
            n = 300 + 37 * k
            otdd.dataset_distance(pictures(n, 5, 0), pictures(n + 11, 7, 1), label_distance="means")
            if k == 1:
                compiled.clear()
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert len(compiled) <= 6, compiled


def test_cuda_and_cpu_agree() -> None:
    """C05, C34: the same number on either device, and sides on different devices are named."""
    a, b = pictures(500, 5, 0), pictures(400, 7, 1)
    for method in ("means", "gaussian_diag", "gaussian", "sinkhorn"):
        gpu = otdd.dataset_distance(a, b, label_distance=method, tol=1e-5)
        cpu = otdd.dataset_distance(a.to("cpu"), b.to("cpu"), label_distance=method, tol=1e-5)
        assert gpu.value == pytest.approx(cpu.value, rel=1e-4)
    with pytest.raises(ValueError, match=r"cuda:0.*cpu"):
        otdd.dataset_distance(a, b.to("cpu"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_a_device_that_is_not_the_current_one() -> None:
    first, second = (
        otdd.dataset_distance(pictures(900, 5, 0), pictures(700, 7, 1), device=f"cuda:{k}") for k in (0, 1)
    )
    assert second.device == "cuda:1"
    assert second.value == pytest.approx(first.value, rel=1e-9)
    moved = otdd.gradient_flow(pictures(200, 5, 0).to("cuda:1"), pictures(200, 7, 1).to("cuda:1"), steps=1)
    assert moved.history[-1]["value"] < moved.history[0]["value"]
