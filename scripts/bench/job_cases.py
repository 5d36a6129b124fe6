"""Jobs around the kernels on one GPU: single distances, a matrix, a ranking, label tables, flow steps, many classes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from flow import Stopwatch
from gpu import DEVICE, TOL, images, sampled_row_error
from registry import Row, Settings, case, row, timed
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.flows import Box, DatasetTransport, Flow, LineSearch
from otdd_flash.labels import label_distances

LABELS = (None, "means", "gaussian")


def parts(settings: Settings, count: int) -> dict[str, otdd.LabeledDataset]:
    """Sets of 2,000 images, in turns of MNIST and Fashion-MNIST."""
    n = settings.size(2000, 40)
    both = images(settings, n * -(-count // 2))
    return {f"set {k}": both[k % 2].subset(torch.arange(n * (k // 2), n * (k // 2 + 1))) for k in range(count)}


@case("gpu", data=True)
def small_distances(settings: Settings) -> list[Row]:
    """Distances of 2,000 + 2,000 images, whole calls, against float64."""
    a, b = images(settings, 2000)
    rows = []
    for labels in LABELS:
        timing, found = timed(partial(otdd.dataset_distance, a, b, label_distance=labels), repeats=settings.repeats)
        exact = otdd.dataset_distance(
            a, b, label_distance=labels, epsilon=found.epsilon, backend="torch", precision="fp64", tol=1e-6
        )
        off = abs(found.value - exact.value)
        rows.append(
            row(
                f"dataset_distance of {a.n} + {b.n} images, labels {labels}", "otdd-flash", timing,
                gate=found.converged and off <= found.error + exact.error, value=found.value, off=off,
            )
        )  # fmt: skip
    return rows


@case("gpu", data=True)
def matrices(settings: Settings) -> list[Row]:
    """The matrix of 20 sets of 2,000 images; entries against single distances."""
    sets = parts(settings, 4 if settings.small else 20)
    rows = []
    for labels in LABELS:
        timing, found = timed(partial(otdd.pairwise, sets, label_distance=labels), repeats=min(settings.repeats, 3))
        good, names = found.converged, list(sets)
        for i, j in ((0, 1), (0, 2), (1, 3)):
            alone = otdd.dataset_distance(sets[names[i]], sets[names[j]], label_distance=labels, epsilon=found.epsilon)
            good &= abs(alone.value - float(found.values[i, j])) <= alone.error + float(found.errors[i, j])
        problem = f"pairwise of {len(sets)} x {sets[names[0]].n} images, labels {labels}"
        rows.append(row(problem, "otdd-flash", timing, gate=bool(good), total=float(found.values.sum())))
    return rows


@case("gpu", data=True)
def rankings(settings: Settings) -> list[Row]:
    """A ranking of 8 sets of 2,000 images with 40 replicates; values against single distances."""
    sets = parts(settings, 9)
    goal = sets.pop("set 8")
    run = partial(otdd.rank, sets, goal, bootstrap=10 if settings.small else 40)
    timing, found = timed(run, repeats=min(settings.repeats, 2))
    first = found.candidates[0]
    alone = otdd.dataset_distance(sets[first.name], goal, epsilon=found.epsilon)
    good = first.converged and abs(alone.value - first.value) <= alone.error + first.error
    problem = f"rank of {len(sets)} x {goal.n} images, {found.bootstrap} replicates"
    return [row(problem, "otdd-flash", timing, gate=bool(good), value=first.value, std=first.std)]


@case("gpu", data=True)
def label_tables(settings: Settings) -> list[Row]:
    """Class-to-class distances of all 60,000 + 60,000 images, from tensors on the GPU to the tables."""
    a, b = images(settings)
    rows = []
    for method in ("gaussian", "sinkhorn"):
        timing, found = timed(partial(label_distances, a, b, method=method), repeats=settings.repeats)
        table = found.source_target
        # the other way round the same numbers must come, to the stated error
        other = label_distances(b, a, method=method)
        off = float((table - other.source_target.T).abs().max())
        good = found.converged and off <= found.error + other.error + 1e-9 * float(table.max())
        problem = f"label distances {method} of {a.n} + {b.n} images"
        rows.append(row(problem, "otdd-flash", timing, gate=good, off=off, error=found.error))
    return rows


def once(run: Callable[[], Any]) -> tuple[Row, Any]:
    """Milliseconds of one call, and its result; for calls of seconds, whose kernels were compiled before."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    torch.cuda.synchronize()
    ms = 1e3 * (time.perf_counter() - start)
    return {"ms": ms, "q20": ms, "q80": ms, "repeats": 1}, result


def gaussian_classes(n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """``n`` points of ``classes`` normal classes in 64 dimensions, well separated."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    means = 4.0 * torch.randn(classes, 64, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(7))
    y = torch.randint(classes, (n,), device=DEVICE, generator=generator)
    return means[y] + torch.randn(n, 64, device=DEVICE, generator=generator), y


@case("gpu")
def separated_classes(settings: Settings) -> list[Row]:
    """Labelled distance of sets of 100 well separated classes, fp16 streamed, to a marginal error of 1e-3."""
    rows = []
    for n in (settings.size(250_000, 2000), settings.size(1_000_000, 4000)):
        a, b = (otdd.from_arrays(*gaussian_classes(n, 100, seed), name=f"set {seed}") for seed in (0, 1))
        run = partial(otdd.dataset_distance, a, b, label_distance="means", precision="fp16", memory="streamed")
        timing, found = once(run)
        table = found.label_distances.source_target.to(DEVICE)
        check = sampled_row_error(a, b, *found.potentials, found.epsilon, table)
        problem = f"labelled, {n} + {n} points of 100 classes, d = 64"
        # float16 operands are a slightly moved cloud: the row error outside may be that much larger
        rows.append(
            row(problem, "otdd-flash fp16 streamed", timing, gate=found.converged and check <= 20 * TOL,
                checked_rows=check, iterations=found.iterations, value=found.value)
        )  # fmt: skip
        del a, b, found
        torch.cuda.empty_cache()
    return rows


@case("gpu", data=True)
def flow_steps(settings: Settings) -> list[Row]:
    """Steps of a flow of MNIST to Fashion-MNIST with attached Gaussian labels: median time and peak of memory."""
    rows = []
    for n in (1000, 5000, 60000):
        n = settings.size(n, 60)
        source, target = images(settings, n)
        options = otdd.DistanceOptions(memory="streamed", label_distance="gaussian", tol=1e-2, precision="fp16")
        watch = Stopwatch()
        flow = Flow(DatasetTransport(target, options), stepper=LineSearch(0.1, grow=1.0), projection=Box())
        result = flow.run(source, steps=3 if settings.small else 10, callbacks=[watch])
        seconds = [b - a for a, b in zip(watch.stamps, watch.stamps[1:], strict=False)]
        values = [entry["value"] for entry in result.history]
        cold = otdd.dataset_distance(
            result.data, target, options=options, epsilon=float(result.state.at.memory["epsilon"]), tol=1e-3
        )
        off = abs(result.value - cold.value) / values[0]
        low, high = min(seconds), max(seconds)
        timing = {"ms": 1e3 * statistics.median(seconds), "q20": 1e3 * low, "q80": 1e3 * high, "repeats": len(seconds)}
        rows.append(
            row(f"flow step, {n} + {n} images, attached Gaussian labels", "otdd-flash", timing, gate=off < 2e-3,
                peak_MiB=max(watch.peaks, default=None), passes=watch.passes, fall=1 - values[-1] / values[0])
        )  # fmt: skip
    return rows
