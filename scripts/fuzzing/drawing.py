"""Random parts of problems: clouds, weights, groups far apart, labels, options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuzzing.problems import Array, Cloud, Settings, mean_square

TOLERANCES = (1e-2, 1e-3, 1e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
NEAR_EQUAL = (0.0, 1e-9, 1e-7, 1e-5, 1e-4, 4e-4, 1e-3, 3e-3)
"""Relative differences between the masses of groups that are meant to be nearly equal."""


def options(rng: np.random.Generator, *ways: str) -> Settings:
    """One of the ways, a tolerance of 1e-2 to 1e-7, debiased three times in four."""
    return Settings(way=str(rng.choice(ways)), tol=float(rng.choice(TOLERANCES)), debiased=bool(rng.random() < 0.75))


def with_epsilon(rng: np.random.Generator, settings: Settings, x: Cloud, y: Cloud) -> Settings:
    """Epsilon of 1e-4 to 1 of the mean cost: relative where the function takes that, or absolute."""
    relative = float(10 ** rng.uniform(-4, 0))
    if settings.way in ("distance", "pairwise") and rng.random() < 0.7:
        return replace(settings, relative_epsilon=relative)
    mean = settings.halved * mean_square(x, y)
    return replace(settings, epsilon=relative * mean if mean > 0 else 1.0)


def normal_cloud(rng: np.random.Generator, d: int, n: int | None = None) -> Cloud:
    """Normal points of a random width about a random centre; weights uniform, random, or of all sizes."""
    n = int(rng.integers(1, 61)) if n is None else n
    x = 10 ** rng.uniform(-1, 0.5) * rng.normal(size=(n, d)) + rng.normal(size=d)
    return Cloud(x, draw_weights(rng, n))


def draw_weights(rng: np.random.Generator, n: int) -> Array | None:
    kind = rng.random()
    if kind < 0.5:
        return None
    weights = rng.random(n) + 0.01 if kind < 0.8 else 10 ** rng.uniform(-6, 0, size=n)
    return weights / weights.sum()


def group_centers(rng: np.random.Generator, count: int, d: int) -> Array:
    """Centres ``(count, d)`` at a distance of ten or more: on a grid of line or random."""
    if rng.random() < 0.5:
        return 10.0 * np.arange(count)[:, None] * np.ones(d) / np.sqrt(d)
    centers = rng.normal(size=(count, d))
    return centers * 10 / np.sqrt(nearest_centers(centers))


def nearest_centers(centers: Array) -> float:
    """Smallest squared distance of two centres."""
    return float(min(((p - q) ** 2).sum() for i, p in enumerate(centers) for q in centers[:i]))


def weighted_groups(rng: np.random.Generator, centers: Array, spread: float, delta: float) -> tuple[Cloud, Cloud]:
    """Up to ten points a group, group masses that differ by about ``delta`` of themselves between the sides."""
    masses = rng.dirichlet(5 * np.ones(len(centers)))
    moved = masses * (1 + delta * rng.normal(size=len(centers)))
    out = []
    for target in (masses, moved / moved.sum()):
        group = np.repeat(np.arange(len(centers)), rng.integers(1, 11, len(centers)))
        weights = rng.random(len(group)) + 0.1
        weights *= (target / np.bincount(group, weights))[group]
        out.append(Cloud(scatter(rng, centers[group], spread), weights / weights.sum()))
    return out[0], out[1]


def counted_groups(rng: np.random.Generator, centers: Array, spread: float, size: int) -> tuple[Cloud, Cloud]:
    """Uniform weights, ``size`` points in every group but for one more or less in some."""
    counts = np.full(len(centers), size)
    other = counts + rng.integers(-1, 2, len(centers))
    other[0] = size + 1
    other[1] = min(other[1], size)
    sides = [scatter(rng, np.repeat(centers, k, axis=0), spread) for k in (counts, other)]
    return Cloud(sides[0]), Cloud(sides[1])


def scatter(rng: np.random.Generator, points: Array, spread: float) -> Array:
    """Points moved by ``spread`` of the distance between centres."""
    return points + 10 * spread * rng.normal(size=points.shape)


def any_clouds(rng: np.random.Generator, d: int, spread_out: float = 0.3) -> tuple[Cloud, Cloud, str]:
    """Two clouds of ``d`` features: normal ones, or with probability ``spread_out`` groups far apart."""
    if rng.random() >= spread_out:
        return normal_cloud(rng, d), normal_cloud(rng, d), "normal clouds"
    centers = group_centers(rng, int(rng.integers(2, 5)), d) * 10 ** rng.uniform(-0.5, 0.3)
    delta, spread = float(rng.choice(NEAR_EQUAL)), float(10 ** rng.uniform(-3, -1))
    return (*weighted_groups(rng, centers, spread, delta), f"{len(centers)} groups, masses equal to {delta:g}")


def mapped(cloud: Cloud, scale: float, offset: Array | float, dtype: type = np.float64) -> Cloud:
    """The cloud scaled, moved, and rounded to a dtype."""
    return replace(cloud, x=(scale * (cloud.x + offset)).astype(dtype))


def labelled(rng: np.random.Generator, cloud: Cloud, classes: int) -> Cloud:
    """Classes of uneven size, some of one sample, moved apart by a random amount; every class has some mass."""
    n = len(cloud.x)
    shares = rng.dirichlet(np.full(classes, 0.7))
    labels = np.unique(rng.choice(classes, size=n, p=shares), return_inverse=True)[1]
    apart = 10 ** rng.uniform(-1, 1) * rng.normal(size=(classes, cloud.x.shape[1]))
    return replace(cloud, x=cloud.x + apart[labels], labels=3 * labels + 1)


def padded(rng: np.random.Generator, cloud: Cloud, count: int, distance: float) -> Cloud:
    """``count`` points of weight zero among the others, up to ``distance`` times as far out."""
    n, d = cloud.x.shape
    width = float(np.abs(cloud.x - cloud.x.mean(0)).max()) or 1.0
    extra = cloud.x.mean(0) + distance * width * rng.normal(size=(count, d))
    order = rng.permutation(n + count)
    x, weights = np.concatenate([cloud.x, extra])[order], np.concatenate([cloud.masses, np.zeros(count)])[order]
    labels = None
    if cloud.labels is not None:
        labels = np.concatenate([cloud.labels, rng.choice(cloud.labels, count)])[order]
    return Cloud(x.astype(cloud.x.dtype), weights, labels)


def with_reach(rng: np.random.Generator, settings: Settings, x: Cloud, y: Cloud) -> Settings:
    """Penalties for one side or both, from far below the mean cost to far above it."""
    unit = np.sqrt(settings.halved * mean_square(x, y)) or 1.0
    reach = [float(unit * 10 ** rng.uniform(-1.3, 2)) for _ in "xy"]
    kind = rng.random()
    if settings.way not in ("distance", "divergence") or kind < 0.5:
        return replace(settings, reach_x=reach[0], reach_y=reach[0])
    if kind < 0.7:
        return replace(settings, reach_x=reach[0], reach_y=reach[1])
    return replace(settings, **{str(rng.choice(["reach_x", "reach_y"])): reach[0]})
