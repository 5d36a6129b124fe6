"""CPU solves to the same marginal error: ours (cached torch), GeomLoss tensorized, POT's log-domain Sinkhorn.

Debiased MNIST x Fashion-MNIST without labels at epsilon = 0.01 of the mean cost. Each peer runs its own method until
its potentials, looked at in float64 outside its code, meet the tolerance; the time of that many iterations counts.
POT solves the cross problem alone, so it is compared with our cross problem alone.
A ratio is printed only where every solver met the tolerance and the values agree (the gate).

    OTDD_DATA=... python scripts/bench/cpu.py --n 1000 2000 --output cpu.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.sinkhorn import Execution, SolverOptions, divergence

GATE = 1e-3  # relative disagreement of values beyond which no ratio is reported


def clouds(n: int) -> tuple[Tensor, Tensor]:
    """The first ``n`` training images of both sets as float32 rows."""
    return tuple(otdd.load(name).subset(torch.arange(n)).x for name in ("mnist", "fashion_mnist"))


def marginal_error(x: Tensor, y: Tensor, f: Tensor, g: Tensor, epsilon: float) -> float:
    """L1 error of both marginals of the plan of ``f, g`` for the cost ``|x - y|^2``, float64, block by block."""
    n, m = len(x), len(y)
    columns, error = torch.zeros(m, dtype=torch.float64), 0.0
    f, g = f.double(), g.double()
    for s in range(0, n, 500):
        cost = torch.cdist(x[s : s + 500].double(), y.double()).square()
        plan = ((f[s : s + 500, None] + g - cost) / epsilon).exp() / (n * m)
        error += float((plan.sum(1) - 1 / n).abs().sum())
        columns += plan.sum(0)
    return error + float((columns - 1 / m).abs().sum())


def ours(
    x: Tensor, y: Tensor, epsilon: float, tol: float, *, debiased: bool = True
) -> Callable[[], tuple[float, Tensor, Tensor]]:
    """The certified solver, from tensors to value."""
    w, v = (torch.full((len(z),), 1 / len(z), dtype=torch.float64) for z in (x, y))

    def run() -> tuple[float, Tensor, Tensor]:
        cost = DotProductCost.build([PointCloud(x, w), PointCloud(y, v)])
        options = SolverOptions(tol=tol)
        execution = Execution(backend="torch", memory="cached")
        found = divergence(cost, epsilon, debiased=debiased, options=options, execution=execution)
        return found.value, *found.potentials

    return run


def geomloss(x: Tensor, y: Tensor, epsilon: float, extra: int) -> Callable[[], tuple[float, Tensor, Tensor]]:
    """GeomLoss's own loop, its schedule continued by ``extra`` iterations at the target; its cost is half of ours."""
    from geomloss._legacy.sinkhorn_divergence import epsilon_schedule, sinkhorn_loop
    from geomloss._legacy.sinkhorn_samples import softmin_tensorized

    def run() -> tuple[float, Tensor, Tensor]:
        xb, yb = x[None], y[None]
        a, b = (torch.full((1, z.shape[1]), -math.log(z.shape[1])) for z in (xb, yb))

        def cost(p: Tensor, q: Tensor) -> Tensor:
            norms = p.square().sum(-1)[:, :, None] + q.square().sum(-1)[:, None]
            return (norms - 2 * p @ q.mT).clamp_min(0) / 2

        diameter = float((x.max(0).values.maximum(y.max(0).values) - x.min(0).values.minimum(y.min(0).values)).norm())
        schedule = epsilon_schedule(2, diameter, math.sqrt(epsilon / 2), 0.5) + [epsilon / 2] * extra
        cxy = cost(xb, yb)
        with torch.no_grad():
            faa, gbb, gab, fba = sinkhorn_loop(
                softmin_tensorized, [a], [b], [cost(xb, xb)], [cost(yb, yb)], [cxy], [cxy.mT.contiguous()], schedule,
                None,
            )  # fmt: skip
        value = 2 * float((fba - faa).double().mean() + (gab - gbb).double().mean())
        return value, 2 * fba[0], 2 * gab[0]

    return run


def pot(x: Tensor, y: Tensor, epsilon: float, iterations: int) -> Callable[[], tuple[float, Tensor, Tensor]]:
    """POT's ``sinkhorn_log`` on a cost matrix in float32; the cross problem only, so its value is not compared."""
    import ot

    def run() -> tuple[float, Tensor, Tensor]:
        cost = (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp_min(0)
        a, b = (torch.full((len(z),), 1 / len(z)) for z in (x, y))
        _, log = ot.bregman.sinkhorn_log(a, b, cost, epsilon, numItermax=iterations, stopThr=0, log=True, warn=False)
        f = epsilon * (log["log_u"] + math.log(len(x)))
        g = epsilon * (log["log_v"] + math.log(len(y)))
        return math.nan, f, g

    return run


def iterations_needed(
    make: Callable[[int], Callable], check: Callable[[Tensor, Tensor], float], tol: float
) -> int | None:
    """The smallest power-of-1.25 number of iterations that meets ``tol``, or ``None`` within 4,000."""
    count = 5
    while count < 4000:
        _, f, g = make(count)()
        if check(f, g) <= tol:
            return count
        count = math.ceil(1.25 * count)
    return None


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall time after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(n: int, tol: float, repeats: int) -> dict:
    """One row of the table."""
    x, y = clouds(n)
    w = torch.full((n,), 1 / n, dtype=torch.float64)
    epsilon = 0.01 * DotProductCost.build([PointCloud(x, w), PointCloud(y, w)]).mean(0, 1)

    def check(f: Tensor, g: Tensor) -> float:
        return marginal_error(x, y, f, g, epsilon)

    value, f, g = ours(x, y, epsilon, tol)()
    row = {"n": n, "epsilon": epsilon, "tol": tol, "threads": torch.get_num_threads()}
    row["otdd_flash"] = {
        "value": value,
        "marginal_error": check(f, g),
        "seconds": seconds(ours(x, y, epsilon, tol), repeats),
        "seconds cross only": seconds(ours(x, y, epsilon, tol, debiased=False), repeats),
    }
    makers = {
        "geomloss": lambda k: geomloss(x, y, epsilon, k),
        "pot (cross only)": lambda k: pot(x, y, epsilon, k),
    }
    for name, make in makers.items():
        count = iterations_needed(make, check, tol)
        if count is None:
            row[name] = {"iterations": None}
            continue
        value_there, f, g = make(count)()
        row[name] = {
            "iterations": count,
            "value": value_there,
            "marginal_error": check(f, g),
            "seconds": seconds(make(count), repeats),
        }
    peer = row["geomloss"].get("value", math.nan)
    row["gate"] = row["otdd_flash"]["marginal_error"] <= 1.01 * tol and abs(peer - value) <= GATE * value
    return row


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[1000, 2000])
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = [compare(n, arguments.tol, arguments.repeats) for n in arguments.n]
    for row in rows:
        print(f"n = {row['n']}, gate {'passed' if row['gate'] else 'FAILED'}")
        for peer, own in (("geomloss", "seconds"), ("pot (cross only)", "seconds cross only")):
            mine, theirs = row["otdd_flash"][own], row[peer].get("seconds")
            if theirs is None:
                print(f"  {peer}: not converged in 4,000 iterations; otdd-flash {mine:.2f} s")
            elif row["gate"]:
                print(f"  {peer}: {theirs:.2f} s, otdd-flash {mine:.2f} s: {theirs / mine:.1f} times faster")
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1))
    if not all(row["gate"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
