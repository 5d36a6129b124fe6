"""The main jobs on one GPU, side by side with flash-sinkhorn where it is installed: gates first, then times.

    python scripts/bench/gpu.py --data DIR --output gpu.json [--cases accuracy otdd cross iteration first_call]

Every case checks its numbers outside the code that made them (marginals of the returned potentials in float64) and
reports a ratio only where its gate holds. Times are medians of whole calls between device synchronisations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.labels import label_distances
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution, SolverOptions, divergence

DEVICE = "cuda"
CASES: dict[str, Callable[[argparse.Namespace], Any]] = {}


def case(run: Callable[[argparse.Namespace], Any]) -> Callable[[argparse.Namespace], Any]:
    """Register a case under its function's name."""
    CASES[run.__name__] = run
    return run


def timed(run: Callable[[], Any], repeats: int = 5, warm: int = 1) -> tuple[float, Any]:
    """Median milliseconds of whole calls, and the last result."""
    for _ in range(warm):
        result = run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), result


def images(arguments: argparse.Namespace, n: int | None = None) -> list[otdd.LabeledDataset]:
    """The first ``n`` training images of MNIST and Fashion-MNIST on the GPU."""
    sets = [otdd.load(name, data_root=arguments.data) for name in ("mnist", "fashion_mnist")]
    return [(s if n is None else s.subset(torch.arange(n))).to(DEVICE) for s in sets]


def uniform(n: int) -> Tensor:
    """Uniform weights."""
    return torch.full((n,), 1.0 / n, dtype=torch.float64, device=DEVICE)


def row_errors(x: Tensor, y: Tensor, f: Tensor, g: Tensor, epsilon: float, extra: Tensor | None = None) -> float:
    """L1 error of both marginals for uniform weights, float64, independent of the library's kernels."""
    n, m = len(x), len(y)
    x, y, f, g = (t.double() for t in (x, y, f, g))
    centre = x.mean(0)
    x, y = x - centre, y - centre
    ny, columns, error = y.square().sum(1), torch.zeros(m, dtype=torch.float64, device=x.device), 0.0
    for s in range(0, n, 2000):
        cost = x[s : s + 2000].square().sum(1)[:, None] + ny - 2 * x[s : s + 2000] @ y.T
        cost = cost if extra is None else cost + extra[s : s + 2000]
        plan = ((f[s : s + 2000, None] + g - cost) / epsilon).exp_() / (n * m)
        error += float((plan.sum(1) - 1 / n).abs().sum())
        columns += plan.sum(0)
    return error + float((columns - 1 / m).abs().sum())


@case
def accuracy(arguments: argparse.Namespace) -> list[dict]:
    """Value of every mode at n = 2,000 with labels against float64, as a fraction of the divergence."""
    a, b = images(arguments, 2000)
    table = label_distances(a, b)
    exact = otdd.dataset_distance(a, b, label_distance=table, precision="fp64", backend="torch", tol=1e-9)
    rows = []
    for mode in ("int8", "fp16", "fp16x3", "tf32", "fp32"):
        for memory in ("streamed", "cached"):
            got = otdd.dataset_distance(
                a, b, label_distance=table, precision=mode, backend="triton", memory=memory, tol=1e-5
            )
            error = abs(got.value - exact.value) / exact.value
            limit = 5e-4 if mode in ("fp16", "tf32") else 1e-5
            rows.append({"mode": mode, "memory": memory, "value": got.value, "error": error, "gate": error <= limit})
    return rows


@case
def otdd_full(arguments: argparse.Namespace) -> list[dict]:
    """All 60,000 + 60,000 images from tensors on the GPU to the result."""
    a, b = images(arguments)
    rows = []
    for label_distance, memory in (
        ("gaussian", "streamed"),
        ("gaussian", "cached"),
        ("sinkhorn", "streamed"),
        ("sinkhorn", "cached"),
    ):
        options = {"label_distance": label_distance, "memory": memory}
        torch.cuda.empty_cache()
        milliseconds, result = timed(lambda o=options: otdd.dataset_distance(a, b, **o), repeats=3)
        f, g = result.potentials
        table = result.label_distances.source_target.to(DEVICE)
        check = sampled_row_error(a, b, f, g, result.epsilon, table)
        rows.append(
            {
                **options, "milliseconds": milliseconds, "value": result.value, "root": result.root,
                "converged": result.converged, "marginal_error": result.marginal_error, "checked_rows": check,
                "iterations": result.iterations, "certificates": result.certificates, "seconds": result.seconds,
                "peak_MiB": result.peak_memory / 2**20, "precision": result.precision, "gap": result.gap,
                "gate": result.converged and check <= 1.5e-3,
            }
        )  # fmt: skip
    return rows


def sampled_row_error(
    a: otdd.LabeledDataset, b: otdd.LabeledDataset, f: Tensor, g: Tensor, epsilon: float, table: Tensor
) -> float:
    """Mean relative row error over 2,000 random rows in float64: an estimate of the L1 row error."""
    rows = torch.randperm(a.n, generator=torch.Generator().manual_seed(0))[:2000].to(DEVICE)
    x = a.x[rows].double()
    total = torch.zeros(len(rows), dtype=torch.float64, device=DEVICE)
    for s in range(0, b.n, 10000):
        y = b.x[s : s + 10000].double()
        cost = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T + table[a.y[rows]][:, b.y[s : s + 10000]]
        total += ((f[rows, None] + g[s : s + 10000] - cost) / epsilon).exp().sum(1) / b.n
    return float((total - 1).abs().mean())


@case
def cross(arguments: argparse.Namespace) -> dict:
    """First 20,000 images each, no labels, epsilon 0.01 of the mean cost, cold to marginal error 1e-3."""
    a, b = images(arguments, 20000)
    n = a.n
    cost = DotProductCost.build([PointCloud(a.x, uniform(n)), PointCloud(b.x, uniform(n))])
    epsilon = 0.01 * cost.mean(0, 1)
    row: dict[str, Any] = {"epsilon": epsilon}
    for mode, memory in (("int8", "streamed"), ("int8", "cached"), ("fp16x3", "cached"), ("fp16", "cached")):

        def run(mode: str = mode, memory: str = memory) -> Any:
            fresh = DotProductCost.build([PointCloud(a.x, uniform(n)), PointCloud(b.x, uniform(n))])
            options, execution = SolverOptions(check_every=2), Execution("triton", mode, memory)
            return divergence(fresh, epsilon, debiased=False, options=options, execution=execution)

        milliseconds, found = timed(run)
        error = row_errors(a.x, b.x, *found.potentials, epsilon)
        row[f"ours {mode} {memory}"] = {
            "milliseconds": milliseconds, "marginal_error": error, "iterations": found.iterations, "value": found.value,
        }  # fmt: skip
    flash = flash_sinkhorn()
    if flash is not None:
        solvers = flash
        for count in (40, 80):

            def peer(count: int = count) -> Any:
                w = uniform(n).float()
                x, y = a.x - cost.center.float(), b.x - cost.center.float()  # its TF32 loses digits off the centre
                return solvers.sinkhorn_flashstyle_alternating(x, y, w, w, eps=epsilon, n_iters=count)

            milliseconds, (f, g) = timed(peer, repeats=3)
            error = row_errors(a.x, b.x, f, g, epsilon)
            row[f"flash-sinkhorn alternating {count}"] = {"milliseconds": milliseconds, "marginal_error": error}
    return row


@case
def iteration(arguments: argparse.Namespace) -> list[dict]:
    """One debiased iteration (one fused pass of the cross and both self problems) against flash-sinkhorn's."""
    rows = []
    for n, d, modes in (
        (60000, 784, ("int8", "fp16", "fp16x3")),
        (50000, 64, ("fp16", "fp16x3")),
        (10000, 784, ("int8",)),
    ):
        generator = torch.Generator(device=DEVICE).manual_seed(0)
        x, y = (torch.randint(0, 256, (n, d), generator=generator, device=DEVICE) / 255.0 for _ in range(2))
        cost = DotProductCost.build([PointCloud(x, uniform(n)), PointCloud(y, uniform(n))])
        epsilon = 0.05 * cost.mean(0, 1)
        row: dict[str, Any] = {"n": n, "d": d}
        for mode, memory in [(mode, "streamed") for mode in modes] + [(modes[0], "cached")]:
            operator = make_operator(
                cost, [(0, 1), (0, 0), (1, 1)], epsilon=epsilon, backend="triton", precision=mode, memory=memory
            )
            f, g = torch.zeros_like(operator.a) + epsilon, torch.zeros_like(operator.b)
            row[f"{mode} {memory}"], _ = timed(partial(operator.marginals, f, g, epsilon), repeats=10, warm=3)
            del operator
        if flash_sinkhorn() is not None:
            row["flash-sinkhorn"] = flash_iteration(x, y, epsilon)
            row["ratio"] = {
                k: row["flash-sinkhorn"] / v for k, v in row.items() if k.split()[-1] in ("streamed", "cached")
            }
        rows.append(row)
    return rows


def flash_iteration(x: Tensor, y: Tensor, epsilon: float) -> float:
    """Milliseconds that one more epsilon step costs flash-sinkhorn's debiased loss."""
    from flash_sinkhorn import SamplesLoss

    def loss(steps: int) -> Callable[[], Tensor]:
        module = SamplesLoss(blur=epsilon**0.5, debias=True, eps_list=[epsilon] * steps, half_cost=False)
        return lambda: module(x, y)

    with torch.no_grad():
        few, _ = timed(loss(2), repeats=3)
        many, _ = timed(loss(6), repeats=3)
    return (many - few) / 4


def flash_sinkhorn() -> Any:
    """flash-sinkhorn's solvers with its autotune lists cut to what is fast here, or ``None``."""
    try:
        import flash_sinkhorn.kernels.sinkhorn_flashstyle_sqeuclid as kernels
        from flash_sinkhorn import sinkhorn_solvers
    except ImportError:
        return None
    for name in dir(kernels):
        tuner = getattr(kernels, name)
        if name.endswith("autotune") and hasattr(tuner, "configs"):
            kept = [c for c in tuner.configs if _fast(c.kwargs)]
            tuner.configs = kept or tuner.configs
    return sinkhorn_solvers


def _fast(blocks: dict[str, int]) -> bool:
    """Block sizes that are in the running on a large GPU; the rest costs minutes of compilation."""
    return blocks.get("BLOCK_K", 32) == 32 and min(blocks.get("BLOCK_M", 64), blocks.get("BLOCK_N", 64)) >= 64


_FIRST = """
import sys, time, torch, otdd_flash as otdd
sets = [otdd.load(name, data_root=sys.argv[1]).to("cuda") for name in ("mnist", "fashion_mnist")]
torch.cuda.synchronize()
start = time.perf_counter()
otdd.dataset_distance(*sets)
print(time.perf_counter() - start)
"""


@case
def first_call(arguments: argparse.Namespace) -> dict:
    """Seconds of a process's first distance, all 60,000 + 60,000 images, with an empty and a filled kernel cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", _FIRST, str(arguments.data)]
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        cold, warm = (
            float(
                subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]
            )
            for _ in range(2)
        )
    return {"cold_seconds": cold, "warm_seconds": warm}


@case
def million(arguments: argparse.Namespace) -> list[dict]:
    """n = m, d = 64, streamed: time per fused cross pass against the n^2 law, memory."""
    rows = []
    for n in (250_000, 1_000_000):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        x, y = (torch.randn(n, 64, device=DEVICE) for _ in range(2))
        cost = DotProductCost.build([PointCloud(x, uniform(n)), PointCloud(y, uniform(n))])
        epsilon = 0.1 * cost.mean(0, 1)
        operator = make_operator(cost, [(0, 1)], epsilon=epsilon, backend="triton", precision="fp16", memory="streamed")
        f, g = torch.zeros_like(operator.a), torch.zeros_like(operator.b)
        milliseconds, (r, _) = timed(partial(operator.marginals, f, g, epsilon), repeats=3)
        rows.append(
            {"n": n, "milliseconds": milliseconds, "per_n2_ps": milliseconds * 1e9 / n**2, "mass": float(r.sum()),
             "peak_MiB": torch.cuda.max_memory_allocated() / 2**20}
        )  # fmt: skip
        del operator, cost, x, y
    return rows


@case
def roofline(arguments: argparse.Namespace) -> dict:
    """What this card does on a plain copy and a plain matrix product."""
    source = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE).normal_()
    target = torch.empty_like(source)
    copy, _ = timed(lambda: target.copy_(source), repeats=10)
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    product, _ = timed(lambda: a @ b, repeats=20)
    return {"copy_TBps": 8 * (1 << 30) / copy / 1e9, "fp16_TFLOPs": 2 * 8192**3 / product / 1e9}


def main() -> None:
    """Run the chosen cases; each is kept even where a later one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in arguments.cases:
        start = time.perf_counter()
        try:
            report[name] = CASES[name](arguments)
        except (RuntimeError, ValueError, MemoryError) as error:
            report[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{name} ({time.perf_counter() - start:.1f} s): {json.dumps(report[name])}", flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
