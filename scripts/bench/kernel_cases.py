"""The kernels alone as cases, and the gate that stands before all GPU times."""

from __future__ import annotations

from functools import partial

import parity
import torch
from gpu import DEVICE, images, plain_cost, uniform
from registry import Row, Settings, case, row, timed
from roofline import Work, ceilings, share
from torch import Tensor

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops.fused import FusedOperator

GATE_SHAPES = (((1, 33, 3), 0), ((100, 1500, 64), 5), ((1000, 333, 784), 5), ((7, 130, 1025), 0))
TRIPLE = [(0, 1), (0, 0), (1, 1)]


def gate() -> list[Row]:
    """Every kernel, mode and memory mode against dense float64 on four odd shapes."""
    entries = []
    for mode in parity.MODES:
        for memory in ("streamed", "cached"):
            worst: dict[str, float] = {}
            for shape, classes in GATE_SHAPES:
                for name, error in parity.check_shape(*shape, mode, memory, classes).items():
                    worst[name] = max(worst.get(name, 0.0), error)
            good = all(error < parity.TOLERANCE[mode] for error in worst.values())
            entries.append({"mode": mode, "memory": memory, "gate": good, **worst})
    return entries


@case("gpu")
def kernel_parity(settings: Settings) -> list[Row]:
    """All kernels, modes and memory modes against dense float64 over 60 odd shapes, labels on and off."""
    found: list[Row] = []
    parity.check(parity.MODES[:2] if settings.small else parity.MODES, found)
    return [
        row(f"{entry['check']}, worst of all shapes", entry["mode"], {}, gate=entry["ok"], error=entry["worst"],
            at=entry["at"])
        for entry in found
    ]  # fmt: skip


@case("gpu")
def iteration(settings: Settings) -> list[Row]:
    """A debiased iteration (cross and both self problems, all launches), with and without labels; the roofline."""
    from peers import flash_iteration, flash_missing

    ceiling = ceilings()
    rows = []
    for n, d, mode, memory, classes, _ in parity.CASES:
        n = settings.size(n)
        cost = parity.make_cost([n, n], d, classes, DEVICE, zero_weight=False)
        epsilon = 0.05 * cost.mean(0, 1)
        operator = FusedOperator.build(cost, TRIPLE, epsilon=epsilon, precision=mode, memory=memory)
        g = torch.zeros_like(operator.b)
        f = operator.softmin(g, epsilon, side="rows")
        timing, (r, _) = timed(partial(operator.marginals, f, g, epsilon), repeats=2 * settings.repeats, warm=3)
        good = abs(float(r[0].sum()) - 1) < 5e-3  # f = softmin(g): every row sum of the cross problem is its weight
        work = Work(n, n, operator.packed.width, mode, stored=memory == "cached")
        rows.append(
            row(_problem(n, d, classes), f"otdd-flash {mode} {memory}", timing, gate=good,
                of_roofline=share(work, timing["ms"], ceiling), graph_ms=_graph_ms(operator, f, g, epsilon))
        )  # fmt: skip
        del operator
    if flash_missing() is None:
        for n, d in ((60000, 784), (50000, 64), (10000, 784)):
            n = settings.size(n)
            cost = parity.make_cost([n, n], d, 0, DEVICE, zero_weight=False)
            x, y = (cloud.points for cloud in cost.clouds)
            timing, finite = flash_iteration(x, y, 0.05 * cost.mean(0, 1))
            rows.append(row(_problem(n, d, 0), "flash-sinkhorn TF32", timing, gate=finite))
    return rows


def _graph_ms(operator: FusedOperator, f: Tensor, g: Tensor, epsilon: float) -> float:
    """The same pass replayed from a CUDA graph: what the launches cost is the difference."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operator.marginals(f, g, epsilon)
    return timed(graph.replay, repeats=7)[0]["ms"]


@case("gpu", data=True)
def images_iteration(settings: Settings) -> list[Row]:
    """MNIST against Fashion-MNIST, all of both: a debiased iteration, a safe half step, and the plan times a matrix."""
    sets = images(settings)
    n = sets[0].n
    table = (
        torch.rand(20, 20, dtype=torch.float64, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)) * 50
    )
    rows = []
    for classes in (0, 20):
        clouds = [PointCloud(s.x, uniform(n), s.y + 10 * k if classes else None) for k, s in enumerate(sets)]
        cost = DotProductCost.build(clouds, table=(table + table.T) / 2 if classes else None)
        epsilon = 0.01 * cost.mean(0, 1)
        for mode, memory in (("int8", "streamed"), ("fp16", "streamed"), ("fp16x3", "streamed"), ("int8", "cached")):
            operator = FusedOperator.build(cost, TRIPLE, epsilon=epsilon, precision=mode, memory=memory)
            g = torch.zeros_like(operator.b)
            f = operator.softmin(g, epsilon, side="rows")
            solver, labels = f"otdd-flash {mode} {memory}", ", 20 classes" if classes else ""
            timing, (r, _) = timed(partial(operator.marginals, f, g, epsilon), repeats=2 * settings.repeats, warm=2)
            good = abs(float(r[0].sum()) - 1) < 5e-3
            rows.append(row(f"images, debiased iteration{labels}", solver, timing, gate=good))
            timing, _ = timed(partial(operator.softmin, g, epsilon, side="rows"), repeats=3)
            rows.append(row(f"images, safe half step of all three problems{labels}", solver, timing, gate=good))
            f0, g0, points = operator.unpack_rows(f[0], 0), operator.unpack_columns(g[0], 0), sets[1].x.double()
            for columns in (784, 1):
                apply = partial(operator.apply_plan, 0, f0, g0, epsilon, v=points[:, :columns])
                timing, product = timed(apply, repeats=2)
                out = product.pv
                inside = bool((out * n >= -1e-3).all() and (out * n <= 1 + 1e-3).all())  # means of pixels in [0, 1]
                rows.append(row(f"images, plan times {columns} columns{labels}", solver, timing, gate=inside))
            del operator
    return rows


def _problem(n: int, d: int, classes: int) -> str:
    return f"debiased iteration, n = {n}, d = {d}" + (f", {classes} classes" if classes else "")


@case("gpu")
def limits(settings: Settings) -> list[Row]:
    """Widths without a cliff, and what a fixed order of summation costs."""
    rows = []
    n = settings.size(10000)
    for d in (64, 110, 112, 128, 129, 256, 784, 1000, 1024, 1025):
        cost = parity.make_cost([n, n], d, 0, DEVICE, zero_weight=False)
        epsilon = 0.05 * cost.mean(0, 1)
        for mode in ("int8", "fp16", "fp16x3"):
            operator = FusedOperator.build(cost, [(0, 1)], epsilon=epsilon, precision=mode, memory="streamed")
            g = torch.zeros_like(operator.b)
            f = operator.softmin(g, epsilon, side="rows")
            timing, (r, _) = timed(partial(operator.marginals, f, g, epsilon), repeats=settings.repeats, warm=2)
            good = abs(float(r.sum()) - 1) < 5e-3
            rows.append(row(f"cross pass, n = {n}, d = {d}", f"otdd-flash {mode} streamed", timing, gate=good))
    sizes = [settings.size(20000), settings.size(15000)]
    cost = parity.make_cost(sizes, 784, 20, DEVICE)
    epsilon = 0.05 * cost.mean(0, 1)
    for mode, memory in (("int8", "streamed"), ("fp16x3", "streamed"), ("int8", "cached")):
        for fixed in (True, False):
            operator = FusedOperator.build(
                cost, TRIPLE, epsilon=epsilon, precision=mode, memory=memory, deterministic=fixed
            )
            f, g = torch.zeros_like(operator.a), torch.full_like(operator.b, cost.mean(0, 1))
            timing, first = timed(partial(operator.marginals, f, g, epsilon), repeats=settings.repeats)
            again = [operator.marginals(f, g, epsilon) for _ in range(4)]
            equal = all(torch.equal(x, y) for run in again for x, y in zip(first, run, strict=True))
            name = f"otdd-flash {mode} {memory}, {'fixed order' if fixed else 'atomic'}"
            rows.append(
                row(f"debiased iteration, {sizes[0]} + {sizes[1]}, 20 classes", name, timing, gate=equal or not fixed,
                    bitwise_equal=equal)
            )  # fmt: skip
    return rows


@case("gpu")
def part_cached(settings: Settings) -> list[Row]:
    """A debiased iteration with budgets for none, a quarter, half and all of the scores."""
    n = settings.size(30000)
    x, y = (torch.randn(n, 784, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(k)) for k in (0, 1))
    cost = plain_cost(x, y)
    epsilon = 0.05 * cost.mean(0, 1)
    rows, expected = [], None
    for part in (0.0, 0.25, 0.5, 1.05):
        budget = int(part * 4 * 2 * n * n)
        operator = FusedOperator.build(cost, TRIPLE, epsilon=epsilon, memory="auto", memory_budget=budget)
        if expected is None:
            expected = operator.softmin(torch.zeros_like(operator.b), epsilon, side="rows")
        g = torch.zeros_like(operator.b)
        timing, (r, _) = timed(partial(operator.marginals, expected, g, epsilon), repeats=settings.repeats)
        good = abs(float(r[0].sum()) - 1) < 1e-4
        name = f"otdd-flash fp16x3 {operator.info.memory}, budget {budget / 2**30:.1f} GiB"
        rows.append(row(f"debiased iteration, n = {n}, d = 784, by budget", name, timing, gate=good))
        del operator
    return rows
