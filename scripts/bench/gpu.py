"""The main jobs on one GPU. Every row is checked outside the code that made it, in float64, before its time counts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import torch
from registry import Row, Settings, case, row, timed
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.labels import label_distances
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution, SolverOptions, divergence

DEVICE = "cuda"
TOL = 1e-3


def images(settings: Settings, n: int | None = None) -> list[otdd.LabeledDataset]:
    """The first ``n`` training images of MNIST and Fashion-MNIST on the GPU."""
    sets = [otdd.load(name, data_root=settings.data) for name in ("mnist", "fashion_mnist")]
    n = settings.size(sets[0].n if n is None else n)
    return [s.subset(torch.arange(n)).to(DEVICE) for s in sets]


def uniform(n: int) -> Tensor:
    """Uniform weights."""
    return torch.full((n,), 1.0 / n, dtype=torch.float64, device=DEVICE)


def plain_cost(x: Tensor, y: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> DotProductCost:
    """The squared distance between two clouds."""
    sides = zip((x, y), (a, b), strict=True)
    return DotProductCost.build([PointCloud(p, uniform(len(p)) if w is None else w.double()) for p, w in sides])


def marginal_error(
    x: Tensor, y: Tensor, f: Tensor, g: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None
) -> float:
    """L1 error of both marginals in float64, independent of the library's kernels."""
    x, y, f, g = (t.double() for t in (x, y, f, g))
    a = uniform(len(x)) if a is None else a.double()
    b = uniform(len(y)) if b is None else b.double()
    centre = x.mean(0)
    x, y = x - centre, y - centre
    ny, columns, error = y.square().sum(1), torch.zeros_like(b), 0.0
    for s in range(0, len(x), 2000):
        rows = slice(s, s + 2000)
        cost = x[rows].square().sum(1)[:, None] + ny - 2 * x[rows] @ y.T
        plan = ((f[rows, None] + g - cost) / epsilon).exp_() * a[rows, None] * b
        error += float((plan.sum(1) - a[rows]).abs().sum())
        columns += plan.sum(0)
    return error + float((columns - b).abs().sum())


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


@case("gpu", data=True)
def accuracy(settings: Settings) -> list[Row]:
    """Value of every mode at n = 2,000 with labels against float64, as a fraction of the divergence."""
    a, b = images(settings, 2000)
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
            rows.append(row(f"value of {a.n} + {b.n} images", f"{mode} {memory}", {}, gate=error <= limit, error=error))
    return rows


@case("gpu", data=True)
def otdd_full(settings: Settings) -> list[Row]:
    """OTDD of all 60,000 + 60,000 images, from tensors on the GPU to the result."""
    a, b = images(settings)
    rows = []
    for label_distance in ("gaussian", "sinkhorn"):
        for memory in ("streamed", "cached"):
            torch.cuda.empty_cache()
            run = partial(otdd.dataset_distance, a, b, label_distance=label_distance, memory=memory)
            timing, result = timed(run, repeats=min(settings.repeats, 3))
            table = result.label_distances.source_target.to(DEVICE)
            check = sampled_row_error(a, b, *result.potentials, result.epsilon, table)
            rows.append(
                row(
                    f"OTDD of {a.n} + {b.n} images, labels {label_distance}", f"otdd-flash {memory}", timing,
                    gate=result.converged and check <= 1.5 * TOL, marginal_error=result.marginal_error,
                    checked_rows=check, value=result.value, iterations=result.iterations, seconds=result.seconds,
                    precision=result.precision, gap=result.gap,
                )
            )  # fmt: skip
    return rows


@case("gpu", data=True)
def cross(settings: Settings) -> list[Row]:
    """First 20,000 images each, no labels, epsilon 0.01 of the mean cost, cold to marginal error 1e-3."""
    from peers import flash_alternating, flash_missing

    a, b = images(settings, 20000)
    epsilon = 0.01 * plain_cost(a.x, b.x).mean(0, 1)
    problem, rows = f"cross problem of {a.n} + {b.n} images to {TOL:g}", []
    for mode, memory in (("int8", "streamed"), ("int8", "cached"), ("fp16x3", "cached"), ("fp16", "cached")):

        def run(mode: str = mode, memory: str = memory) -> Any:
            options, execution = SolverOptions(check_every=2), Execution("triton", mode, memory)
            return divergence(plain_cost(a.x, b.x), epsilon, debiased=False, options=options, execution=execution)

        timing, found = timed(run, repeats=settings.repeats)
        error = marginal_error(a.x, b.x, *found.potentials, epsilon)
        limit = 2e-2 if mode == "fp16" else 1.1 * TOL  # float16 operands are a slightly moved cloud
        rows.append(
            row(problem, f"otdd-flash {mode} {memory}", timing, gate=error <= limit, marginal_error=error,
                iterations=found.iterations, value=found.value)
        )  # fmt: skip
    if flash_missing() is None:
        for count in (40, 80):
            timing, potentials = timed(flash_alternating(a.x, b.x, epsilon, count), repeats=3)
            error = marginal_error(a.x, b.x, *potentials, epsilon)
            solver = f"flash-sinkhorn alternating {count} (does not reach {TOL:g})"
            rows.append(row(problem, solver, timing, gate=error < 0.5, marginal_error=error))
    return rows


_FIRST = """
import sys, time, torch, otdd_flash as otdd
root = sys.argv[1] or None
sets = [otdd.load(name, data_root=root).to("cuda") for name in ("mnist", "fashion_mnist")]
torch.cuda.synchronize()
start = time.perf_counter()
result = otdd.dataset_distance(*sets)
print(time.perf_counter() - start, result.converged)
"""


@case("gpu", data=True)
def first_call(settings: Settings) -> list[Row]:
    """A process's first distance, all 60,000 + 60,000 images, with an empty and with a filled kernel cache."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", _FIRST, str(settings.data or "")]
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        for name in ("empty", "filled"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds, converged = done.stdout.split()[-2:]
            ms = 1e3 * float(seconds)
            timing = {"ms": ms, "q20": ms, "q80": ms, "repeats": 1}
            rows.append(row(f"first call, {name} kernel cache", "otdd-flash", timing, gate=converged == "True"))
    return rows


@case("gpu")
def million(settings: Settings) -> list[Row]:
    """A fused cross pass at n = m = 1,000,000, d = 64, streamed, against the n^2 law."""
    rows, per_pair = [], None
    for n in (settings.size(250_000, 3000), settings.size(1_000_000, 6000)):
        torch.cuda.empty_cache()
        x, y = (torch.randn(n, 64, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(k)) for k in (0, 1))
        cost = plain_cost(x, y)
        epsilon = 0.1 * cost.mean(0, 1)
        operator = make_operator(cost, [(0, 1)], epsilon=epsilon, backend="triton", precision="fp16", memory="streamed")
        g = torch.zeros_like(operator.b)
        f = operator.softmin(g, epsilon, side="rows")
        timing, (r, _) = timed(partial(operator.marginals, f, g, epsilon), repeats=3)
        good = abs(float(r.sum()) - 1) < 1e-3  # f = softmin(g): every row sum is its weight
        now = timing["ms"] / n**2
        rows.append(
            row(f"cross pass, n = {n}, d = 64", "otdd-flash fp16 streamed", timing, gate=good, mass=float(r.sum()),
                against_square_law=None if per_pair is None else now / per_pair)
        )  # fmt: skip
        per_pair = now
        del operator, cost, x, y
    return rows
