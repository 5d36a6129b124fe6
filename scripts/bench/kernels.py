"""Kernels on a GPU: first against dense float64 over odd shapes, then timed; or, without a GPU, their resource report.

python scripts/bench/kernels.py --check --time --output kernels.json
python scripts/bench/kernels.py --report          # registers, spills, shared memory for sm_80 and sm_90
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
from functools import partial
from pathlib import Path

import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops.fused import FusedOperator

MODES = ("int8", "fp16", "fp16x3", "tf32", "fp32")
TOLERANCE = {"int8": 5e-5, "fp16x3": 5e-5, "fp32": 5e-5, "fp16": 3e-2, "tf32": 3e-2}


def make_cost(sizes, d, classes, device, *, grid=True, seed=0, zero_weight=True):
    """Random clouds on the 8-bit grid (or Gaussian), random weights with a zero, sorted or no labels."""
    gen = torch.Generator(device=device).manual_seed(seed)
    table = torch.rand(max(classes, 1), max(classes, 1), dtype=torch.float64, generator=gen, device=device) * d / 4
    clouds = []
    for n in sizes:
        points = torch.rand(n, d, generator=gen, device=device)
        points = (points * 255).round() / 255 if grid else points
        weights = torch.rand(n, dtype=torch.float64, generator=gen, device=device) + 0.1
        if zero_weight and n > 2:
            weights[1] = 0.0
        labels = torch.randint(0, classes, (n,), generator=gen, device=device) if classes else None
        clouds.append(PointCloud(points, weights / weights.sum(), labels))
    return DotProductCost.build(clouds, table=(table + table.T) / 2 if classes else None)


def dense(cost, i, j):
    """Float64 cost matrix."""
    x, y = (cost.clouds[k].points.to(torch.float64) - cost.center for k in (i, j))
    value = (x.square().sum(1)[:, None] + y.square().sum(1)[None] - 2 * x @ y.T).clamp_min(0)
    return value if cost.table is None else value + cost.table[cost.clouds[i].labels][:, cost.clouds[j].labels]


def relative(x, y):
    """Norm-wise relative error; NaN counts as infinite."""
    error = float((x - y).norm() / y.norm().clamp_min(1e-300))
    return error if error == error else float("inf")


def check_shape(n, m, d, mode, memory, classes):
    """Largest relative error of marginals, softmin and apply_plan on the debiased triple."""
    cost = make_cost([n, m], d, classes, "cuda", seed=n + 7 * m + 13 * d)
    problems = [(0, 1), (0, 0), (1, 1)]
    eps = 0.2 * cost.mean(0, 1) + 1e-3
    op = FusedOperator.build(cost, problems, epsilon=eps, precision=mode, memory=memory)
    fs, gs, plans, errors = [], [], [], {}
    for p, (i, j) in enumerate(problems):
        C, a, b = dense(cost, i, j), cost.clouds[i].weights, cost.clouds[j].weights
        g = torch.rand(len(b), dtype=torch.float64, device="cuda") * eps
        f = -eps * torch.logsumexp((g[None] - C) / eps + b.log()[None], 1)
        if i == j:
            f = g = f / 2
        plans.append((f, g, a[:, None] * b[None] * torch.exp((f[:, None] + g[None] - C) / eps), C, a, b))
        fs.append(op.pack_rows(f, p))
        gs.append(op.pack_columns(g, p))
    f, g = torch.stack(fs), torch.stack(gs)
    op._partial.fill_(float("nan"))
    op._exponent.fill_(float("nan"))
    r, c = op.marginals(f, g, eps)
    rows, columns = op.softmin(g, eps, side="rows"), op.softmin(f, eps, side="columns")
    for p, (f1, g1, P, C, a, b) in enumerate(plans):
        v, u = (torch.randn(k, w, dtype=torch.float64, device="cuda") for k, w in ((len(b), 70), (len(a), 3)))
        pv, pu = op.apply_plan(p, f1, g1, eps, v=v, u=u)
        pairs = {
            "marginals": [(op.unpack_rows(r[p], p), P.sum(1)), (op.unpack_columns(c[p], p), P.sum(0))],
            "softmin": [
                (op.unpack_rows(rows[p], p), -eps * torch.logsumexp((g1[None] - C) / eps + b.log()[None], 1)),
                (
                    op.unpack_columns(columns[p], p),
                    -eps * torch.logsumexp((f1[:, None] - C) / eps + a.log()[:, None], 0),
                ),
            ],
            "apply_plan": [(pv, P @ v), (pu, P.T @ u)],
        }
        for name, both in pairs.items():
            for x, y in both:  # a potential is an exponent: its error counts in units of eps
                error = float((x - y).abs().max() / eps) if name == "softmin" else relative(x, y)
                errors[name] = max(errors.get(name, 0.0), error if error == error else float("inf"))
    return errors


def check(modes, report):
    """All shapes, memory modes and labels; returns False when an error is over its tolerance."""
    good = True
    for mode in modes:
        worst: dict[str, tuple[float, str]] = {}
        shapes = itertools.product((1, 7, 100, 1000), (1, 33, 1500), (1, 3, 64, 784, 1025))
        for (n, m, d), memory, classes in itertools.product(shapes, ("streamed", "cached"), (0, 5)):
            for name, error in check_shape(n, m, d, mode, memory, classes).items():
                if error >= worst.get(name, (-1.0, ""))[0]:
                    worst[name] = (error, f"n={n} m={m} d={d} {memory} classes={classes}")
        for name, (error, where) in worst.items():
            ok = error < TOLERANCE[mode]
            good &= ok
            report.append({"check": name, "mode": mode, "worst": error, "at": where, "ok": ok})
            print(
                f"{'ok  ' if ok else 'FAIL'} {mode:7s} {name:11s} worst relative error {error:.1e} at {where}",
                flush=True,
            )
    return good


def median_ms(run, repeats=11):
    """Median with 20/80 quantiles of device time."""
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    quantiles = statistics.quantiles(times, n=5)
    return {"ms": statistics.median(times), "q20": quantiles[0], "q80": quantiles[-1]}


CASES = [  # n, d, mode, memory, classes, target ms
    (60000, 784, "int8", "streamed", 0, 11.0), (60000, 784, "int8", "streamed", 20, 12.1),
    (60000, 784, "fp16", "streamed", 0, 20.0), (60000, 784, "fp16", "streamed", 20, 22.0),
    (60000, 784, "fp16x3", "streamed", 0, 52.0), (60000, 784, "fp16x3", "streamed", 20, 57.2),
    (60000, 784, "int8", "cached", 0, 8.5), (60000, 784, "fp16x3", "cached", 20, 8.5),
    (50000, 64, "fp16", "streamed", 0, 3.2), (50000, 64, "fp16", "streamed", 20, 3.52),
    (50000, 64, "fp16x3", "streamed", 0, None), (10000, 784, "fp16x3", "cached", 0, 0.35),
    (10000, 784, "int8", "streamed", 0, None), (1000, 784, "fp16x3", "cached", 0, None),
]  # fmt: skip


def time_all(report, deterministic=True):
    """A debiased iteration: cross problem and both self problems, one launch."""
    for n, d, mode, memory, classes, target in CASES:
        cost = make_cost([n, n], d, classes, "cuda", zero_weight=False)
        eps = 0.05 * cost.mean(0, 1)
        torch.cuda.reset_peak_memory_stats()
        op = FusedOperator.build(
            cost, [(0, 1), (0, 0), (1, 1)], epsilon=eps, precision=mode, memory=memory, deterministic=deterministic
        )
        f, g = op.softmin(torch.zeros_like(op.b), eps, side="rows"), torch.zeros_like(op.b)
        row = {"n": n, "d": d, "mode": mode, "memory": memory, "classes": classes, "target": target}
        row.update(median_ms(partial(op.marginals, f, g, eps)), bytes=op.info.bytes)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op.marginals(f, g, eps)
        row["graph_ms"] = median_ms(graph.replay)["ms"]
        row["softmin_ms"] = median_ms(partial(op.softmin, g, eps, side="rows"), 3)["ms"]
        row["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
        report.append(row)
        print(json.dumps(row), flush=True)
        del op, cost, graph
        torch.cuda.empty_cache()


def images(folder, name, device):
    """The 60,000 training images of ``name`` (idx .gz under ``folder``) in [0, 1], and their labels."""
    raw = []
    for part, skip in (("images-idx3", 16), ("labels-idx1", 8)):
        with gzip.open(folder / name / f"train-{part}-ubyte.gz") as file:
            raw.append(torch.frombuffer(bytearray(file.read()[skip:]), dtype=torch.uint8).to(device))
    return raw[0].view(-1, 784).float() / 255, raw[1].to(torch.int64)


def time_images(folder, report):
    """MNIST against Fashion-MNIST, all of both: one debiased iteration in each mode, with a label table."""
    sets = [images(folder, name, "cuda") for name in ("mnist", "fashion-mnist")]
    weights = torch.full((60000,), 1 / 60000, dtype=torch.float64, device="cuda")
    table = torch.rand(20, 20, dtype=torch.float64, device="cuda") * 50
    for classes in (0, 20):
        clouds = [PointCloud(x, weights, y + 10 * k if classes else None) for k, (x, y) in enumerate(sets)]
        cost = DotProductCost.build(clouds, table=(table + table.T) / 2 if classes else None)
        eps = 0.01 * cost.mean(0, 1)
        for mode, memory in (("int8", "streamed"), ("fp16", "streamed"), ("fp16x3", "streamed"), ("int8", "cached")):
            torch.cuda.reset_peak_memory_stats()
            op = FusedOperator.build(cost, [(0, 1), (0, 0), (1, 1)], epsilon=eps, precision=mode, memory=memory)
            f, g = op.softmin(torch.zeros_like(op.b), eps, side="rows"), torch.zeros_like(op.b)
            row = {"data": "MNIST x Fashion-MNIST", "mode": mode, "memory": memory, "classes": classes}
            row.update(median_ms(partial(op.marginals, f, g, eps)), bytes=op.info.bytes)
            row["softmin_ms"] = median_ms(partial(op.softmin, g, eps, side="rows"), 3)["ms"]
            points = sets[1][0].double()
            f0, g0 = op.unpack_rows(f[0], 0), op.unpack_columns(g[0], 0)
            row["apply_plan_784_ms"] = median_ms(partial(op.apply_plan, 0, f0, g0, eps, v=points), 2)["ms"]
            row["apply_plan_1_ms"] = median_ms(partial(op.apply_plan, 0, f0, g0, eps, v=points[:, :1]), 2)["ms"]
            row["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
            report.append(row)
            print(json.dumps(row), flush=True)
            del op
            torch.cuda.empty_cache()


def time_limits(report):
    """Widths without a cliff, a million points, the cost of a fixed order, and bitwise equal repeats."""
    for d in (64, 110, 112, 128, 129, 256, 784, 1000, 1024, 1025):
        cost = make_cost([10000, 10000], d, 0, "cuda", zero_weight=False)
        eps = 0.05 * cost.mean(0, 1)
        row = {"n": 10000, "d": d}
        for mode in ("int8", "fp16", "fp16x3"):
            op = FusedOperator.build(cost, [(0, 1)], epsilon=eps, precision=mode, memory="streamed")
            f, g = torch.zeros_like(op.a), torch.full_like(op.b, cost.mean(0, 1))
            row[mode] = median_ms(partial(op.marginals, f, g, eps), 5)["ms"]
        report.append(row)
        print(json.dumps(row), flush=True)
    cost = make_cost([20000, 15000], 784, 20, "cuda")
    eps = 0.05 * cost.mean(0, 1)
    for mode, memory in (("int8", "streamed"), ("fp16x3", "streamed"), ("int8", "cached")):
        times, sums = {}, []
        for fixed in (True, False):
            op = FusedOperator.build(
                cost, [(0, 1), (0, 0), (1, 1)], epsilon=eps, precision=mode, memory=memory, deterministic=fixed
            )
            f, g = torch.zeros_like(op.a), torch.full_like(op.b, cost.mean(0, 1))
            times[fixed] = median_ms(partial(op.marginals, f, g, eps), 7)["ms"]
            sums.append([torch.cat([t.flatten() for t in op.marginals(f, g, eps)]) for _ in range(5)])
        equal = [all(torch.equal(run[0], again) for again in run) for run in sums]
        row = {"mode": mode, "memory": memory, "fixed_ms": times[True], "atomic_ms": times[False]}
        row.update(fixed_bitwise_equal=equal[0], atomic_bitwise_equal=equal[1])
        report.append(row)
        print(json.dumps(row), flush=True)
        del op
    torch.cuda.empty_cache()
    for n in (250_000, 1_000_000):
        cost = make_cost([n, n], 64, 0, "cuda", zero_weight=False, grid=False)
        torch.cuda.reset_peak_memory_stats()
        eps = 0.05 * cost.mean(0, 1)
        op = FusedOperator.build(cost, [(0, 1)], epsilon=eps, precision="fp16", memory="streamed")
        f, g = torch.zeros_like(op.a), torch.full_like(op.b, cost.mean(0, 1))
        row = {"n": n, "d": 64, "mode": "fp16", "cross_ms": median_ms(partial(op.marginals, f, g, eps), 3)["ms"]}
        row["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
        report.append(row)
        print(json.dumps(row), flush=True)
        del op, cost, f, g


def resource_report():
    """Registers, spills and shared memory of every kernel at the table's configuration."""
    from otdd_flash.ops.compile_report import cases, compile_case

    for arch in (80, 90):
        for kernel, config, constants in cases(arch):
            used = compile_case(kernel, config, constants, arch)
            shape = f"{config.block_m}x{config.block_n}x{config.block_k} w{config.warps} s{config.stages}"
            print(
                f"sm_{arch} {kernel:10s} {config.mode:6s} {used.variant:14s} {shape:20s} registers {used.registers:3d} "
                f"spill bytes {used.spill_bytes:4d} shared {used.shared_bytes >> 10:3d} KiB"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--images", type=Path, help="folder with mnist/ and fashion-mnist/ idx .gz files to time on")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    good = True
    if args.report:
        resource_report()
    if args.check:
        good = check(args.modes, rows)
    if args.time and good:
        time_all(rows)
    if args.limits and good:
        time_limits(rows)
    if args.images and good:
        time_images(args.images, rows)
    if args.output:
        about = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
        args.output.write_text(json.dumps({"about": about, "rows": rows}, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
