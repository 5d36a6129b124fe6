"""CPU solves to the same marginal error: ours (cached torch), GeomLoss tensorized, POT's log-domain Sinkhorn.

Debiased MNIST x Fashion-MNIST without labels at epsilon = 0.01 of the mean cost. Each peer runs its own method until
its potentials, looked at in float64 outside its code, meet the tolerance; the time of that many iterations counts.
POT solves the cross problem alone, so it is compared with our cross problem alone.
A time counts only where the solver met the tolerance and the values agree (the gate); one that has not met it after
several times our own time is timed so far, and says so.

    OTDD_DATA=... python scripts/bench/run.py --device cpu --output cpu.json
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from registry import Row, Settings, case, row, timed
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.sinkhorn import Divergence, Execution, SolverOptions, divergence

TOL = 1e-3
PATIENCE = 10.0  # times our own time (one second at least) that a solver gets where its iterations are slow
GATE = 1e-3  # relative disagreement of values beyond which no time is reported


def clouds(n: int, settings: Settings) -> tuple[Tensor, Tensor]:
    """The first ``n`` training images of both sets as float32 rows."""
    sets = (otdd.load(name, data_root=settings.data) for name in ("mnist", "fashion_mnist"))
    return tuple(s.subset(torch.arange(n)).x for s in sets)


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


def within(make: Callable[[int], Callable], check: Callable[[Tensor, Tensor], float], limit: float) -> tuple[int, bool]:
    """Iterations that meet the tolerance, and True; or as many as ``limit`` seconds allow, and False.

    Where they are cheap the count grows by a quarter from run to run, and the first that meets it is taken. Where one
    takes half a second there is one run of ``limit`` seconds, and if that meets it, shorter ones to bound the time.
    """
    seconds = {}
    for count in (5, 10):
        start = time.perf_counter()
        make(count)()
        seconds[count] = time.perf_counter() - start
    each = max((seconds[10] - seconds[5]) / 5, 1e-6)
    affordable = max(10, int(5 + (limit - seconds[5]) / each))

    def meets(count: int) -> bool:
        _, f, g = make(count)()
        return check(f, g) <= TOL

    if each < 0.5:
        count = 5
        while count < affordable:
            if meets(count):
                return count, True
            count = math.ceil(1.25 * count)
    if not meets(affordable):
        return affordable, False
    count = affordable
    while count > 10 and meets(int(0.8 * count)):
        count = int(0.8 * count)
    return count, True


def compare(n: int, settings: Settings) -> list[Row]:
    """One size: each solver to the same marginal error."""
    x, y = clouds(n, settings)
    w = torch.full((n,), 1 / n, dtype=torch.float64)
    epsilon = 0.01 * DotProductCost.build([PointCloud(x, w), PointCloud(y, w)]).mean(0, 1)

    def check(f: Tensor, g: Tensor) -> float:
        return marginal_error(x, y, f, g, epsilon)

    def measured(problem: str, solver: str, run: Callable, limit: float = math.inf) -> Row:
        once = {"repeats": 2, "warm": 0} if n > 2000 else {"repeats": min(settings.repeats, 3)}
        timing, (value, f, g) = timed(run, **once)
        error = check(f, g)
        agrees = math.isnan(value) or abs(value - expected) <= GATE * expected
        good = error <= limit and (agrees or limit == math.inf)
        return row(problem, solver, timing, gate=good, marginal_error=error, value=None if math.isnan(value) else value)

    expected = ours(x, y, epsilon, TOL)()[0]
    debiased, crossed = (f"CPU, {n} + {n} images, {kind} to {TOL:g}" for kind in ("debiased", "cross problem"))
    rows = [measured(debiased, "otdd-flash", ours(x, y, epsilon, TOL), 1.01 * TOL)]
    plain = ours(x, y, epsilon, TOL, debiased=False)
    timing, (_, f, g) = timed(plain, repeats=min(settings.repeats, 3))
    rows.append(row(crossed, "otdd-flash", timing, gate=check(f, g) <= 1.01 * TOL, marginal_error=check(f, g)))
    for problem, name, make, own in (
        (debiased, "geomloss tensorized", partial(geomloss, x, y, epsilon), rows[0]),
        (crossed, "POT sinkhorn_log", partial(pot, x, y, epsilon), rows[1]),
    ):
        limit = PATIENCE * max(own.get("ms", 0.0) / 1e3, 1.0)
        count, met = within(make, check, limit)
        if met:
            rows.append(measured(problem, f"{name}, {count} iterations", make(count), TOL))
        else:
            rows.append(measured(problem, f"{name}, {count} iterations (does not reach it yet)", make(count)))
    return rows


@case("cpu", data=True)
def cpu_peers(settings: Settings) -> list[Row]:
    """MNIST x Fashion-MNIST to the same marginal error: ours, GeomLoss tensorized, POT's log-domain Sinkhorn."""
    sizes = [200] if settings.small else [1000, 4000, 10_000]
    return [entry for n in sizes for entry in compare(n, settings)]


@case("cpu")
def many_small(settings: Settings) -> list[Row]:
    """C30: 45 pairs of 15 x 2 points, in one batch and one after the other."""
    generator = torch.Generator().manual_seed(0)
    sets = [torch.randn(15, 2, generator=generator) + 0.3 * k for k in range(10)]
    pairs = list(itertools.combinations(sets, 2))
    problem, rows = "CPU, 45 pairs of 15 x 2 points", []

    def loop() -> list[Divergence]:
        return [otdd.sinkhorn_divergence(x, y, epsilon=0.1) for x, y in pairs]

    batched, expected = timed(partial(otdd.sinkhorn_batch, pairs, epsilon=0.1), repeats=settings.repeats)
    single, alone = timed(loop, repeats=min(settings.repeats, 3))
    off = max(abs(p.value - q.value) / q.value for p, q in zip(expected, alone, strict=True))
    good = off <= GATE and all(result.converged and result.info.backend == "torch" for result in expected)
    rows.append(row(problem, "otdd-flash sinkhorn_batch", batched, gate=good, error=off))
    rows.append(row(problem, "one sinkhorn_divergence at a time", single, gate=all(r.converged for r in alone)))
    return rows
