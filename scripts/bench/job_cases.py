"""Jobs of many small problems on one GPU: single distances, a matrix of sets, a ranking with its half-samples."""

from __future__ import annotations

from functools import partial

import torch
from gpu import images
from registry import Row, Settings, case, row, timed

import otdd_flash as otdd

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
