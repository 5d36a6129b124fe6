"""Kernels against dense float64 over odd shapes, on a GPU; or, without one, their resource report.

python scripts/bench/parity.py --check
python scripts/bench/parity.py --report          # registers, spills, shared memory for sm_80 and sm_90

Their times are the cases ``iteration``, ``images_iteration`` and ``limits`` of scripts/bench/run.py.
"""

from __future__ import annotations

import argparse
import itertools
import sys

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
    op._exponent.fill_(float("nan"))
    r, c = op.marginals(f, g, eps)
    rows, columns = op.softmin(g, eps, side="rows"), op.softmin(f, eps, side="columns")
    for p, (f1, g1, P, C, a, b) in enumerate(plans):
        v, u = (torch.randn(k, w, dtype=torch.float64, device="cuda") for k, w in ((len(b), 70), (len(a), 3)))
        wide = torch.randn(len(b), 200, dtype=torch.float64, device="cuda")
        product, through_memory = op.apply_plan(p, f1, g1, eps, v=v, u=u), op.apply_plan(p, f1, g1, eps, v=wide)
        pairs = {
            "marginals": [(op.unpack_rows(r[p], p), P.sum(1)), (op.unpack_columns(c[p], p), P.sum(0))],
            "softmin": [
                (op.unpack_rows(rows[p], p), -eps * torch.logsumexp((g1[None] - C) / eps + b.log()[None], 1)),
                (
                    op.unpack_columns(columns[p], p),
                    -eps * torch.logsumexp((f1[:, None] - C) / eps + a.log()[:, None], 0),
                ),
            ],
            "apply_plan": [(product.pv, P @ v), (product.ptu, P.T @ u), (product.r, P.sum(1)), (product.c, P.sum(0))],
            "plan_tiles": [(through_memory.pv, P @ wide), (through_memory.r, P.sum(1))],
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


CASES = [  # a debiased iteration: n, d, mode, memory, classes, target ms
    (60000, 784, "int8", "streamed", 0, 11.0), (60000, 784, "int8", "streamed", 20, 12.1),
    (60000, 784, "fp16", "streamed", 0, 20.0), (60000, 784, "fp16", "streamed", 20, 22.0),
    (60000, 784, "fp16x3", "streamed", 0, 52.0), (60000, 784, "fp16x3", "streamed", 20, 57.2),
    (60000, 784, "int8", "cached", 0, 8.5), (60000, 784, "fp16x3", "cached", 20, 8.5),
    (50000, 64, "fp16", "streamed", 0, 3.2), (50000, 64, "fp16", "streamed", 20, 3.52),
    (50000, 64, "fp16x3", "streamed", 0, None), (10000, 784, "fp16x3", "cached", 0, 0.35),
    (10000, 784, "int8", "streamed", 0, None), (1000, 784, "fp16x3", "cached", 0, None),
]  # fmt: skip


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
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    args = parser.parse_args()
    if args.report:
        resource_report()
    return 0 if not args.check or check(args.modes, []) else 1


if __name__ == "__main__":
    sys.exit(main())
