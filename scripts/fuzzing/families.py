"""Families of random problems; each is a function of a random generator and the index, and says what it aims at."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fuzzing.problems import Array, Cloud, Problem, Settings, mean_square, pair

Family = Callable[[np.random.Generator, int], Problem]
FAMILIES: dict[str, Family] = {}
TOLERANCES = (1e-2, 1e-3, 1e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
NEAR_EQUAL = (0.0, 1e-9, 1e-7, 1e-5, 1e-4, 4e-4, 1e-3, 3e-3)
"""Relative differences between the masses of groups that are meant to be nearly equal."""


def family(function: Family) -> Family:
    FAMILIES[function.__name__] = function
    return function


def make(name: str, seed: int, index: int) -> Problem:
    """The problem of that family, seed and index: always the same."""
    return FAMILIES[name](np.random.default_rng([seed, zlib.crc32(name.encode()), index]), index)


@family
def random(rng: np.random.Generator, index: int) -> Problem:
    """Clouds of 1 to 60 points in 1 to 20 dimensions, of all scales and offsets."""
    d = int(rng.integers(1, 21))
    x, y = normal_cloud(rng, d), normal_cloud(rng, d)
    scale, offset = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-1, 2) * rng.normal(size=d)
    x, y = (replace(c, x=scale * (c.x + offset)) for c in (x, y))
    way = str(rng.choice(["distance", "divergence"]))
    return pair(x, y, with_epsilon(rng, options(rng, way), x, y), f"scale {scale:.2g}")


@family
def separated(rng: np.random.Generator, index: int) -> Problem:
    """Two to six groups far apart by the measure of epsilon, whose masses on both sides are nearly equal."""
    centers = group_centers(rng, int(rng.integers(2, 7)), int(rng.integers(1, 6)))
    spread = float(rng.choice([0.0, 10 ** rng.uniform(-4, -1)]))
    delta = float(rng.choice(NEAR_EQUAL))
    if rng.random() < 0.3:
        x, y, word = (*counted_groups(rng, centers, spread, int(rng.integers(3, 26))), "one point more or less")
    else:
        x, y, word = (*weighted_groups(rng, centers, spread, delta), f"masses equal to {delta:g}")
    ratio = 10 ** rng.uniform(1.3, 3.7)
    way = str(rng.choice(["distance", "divergence"]))
    settings = replace(options(rng, way), epsilon=nearest_centers(centers) / ratio)
    return pair(x, y, settings, f"{len(centers)} groups, cost/epsilon {ratio:.0f}, spread {spread:.2g}, {word}")


@family
def near_equal(rng: np.random.Generator, index: int) -> Problem:
    """Features alone in ``dataset_distance``, its default options or another tol: groups whose masses nearly agree.

    The first is 500 + 500 points against 500 + 501 at distance ten, the second two points against the same two.
    """
    line = np.array([[0.0], [1.0]])
    if index == 0:
        x, y = (Cloud(np.repeat(10 * line, [500, k], axis=0)) for k in (500, 501))
        return pair(x, y, Settings(), "500 + 500 points against 500 + 501")
    if index == 1:
        x, y = (Cloud(line, np.array(w)) for w in ((0.5, 0.5), (0.5004, 0.4996)))
        return pair(x, y, Settings(epsilon=0.005), "two points against the same two")
    counted = index % 5 == 0
    centers = group_centers(rng, int(rng.integers(2, 4 if counted else 7)), int(rng.integers(1, 6)))
    spread = float(rng.choice([0.0, 10 ** rng.uniform(-3, -1)]))
    delta = float(10 ** rng.uniform(-5, -2.5))
    if counted:
        x, y = counted_groups(rng, centers, spread, int(rng.integers(100, 300)))
        delta = 1 / len(x.x)
    else:
        x, y = weighted_groups(rng, centers, spread, delta)
    settings = Settings(
        tol=float(rng.choice([1e-3, 1e-3, 1e-2, 1e-4, 1e-5])),
        relative_epsilon=float(rng.choice([0.01, 0.01, 0.01, 3e-3, 1e-3, 3e-4])),
    )
    return pair(x, y, settings, f"{len(centers)} groups, masses equal to {delta:.1g}, spread {spread:.2g}")


def options(rng: np.random.Generator, way: str) -> Settings:
    return Settings(way=way, tol=float(rng.choice(TOLERANCES)), debiased=bool(rng.random() < 0.75))


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
