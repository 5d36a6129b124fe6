"""Families of random problems; each is a function of a random generator and the index, and says what it aims at."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fuzzing.drawing import (
    NEAR_EQUAL,
    any_clouds,
    counted_groups,
    group_centers,
    labelled,
    mapped,
    nearest_centers,
    normal_cloud,
    options,
    padded,
    weighted_groups,
    with_epsilon,
    with_reach,
)
from fuzzing.problems import WAYS, Cloud, Problem, Settings, pair

Family = Callable[[np.random.Generator, int], Problem]
FAMILIES: dict[str, Family] = {}


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
    x, y = (mapped(cloud, scale, offset) for cloud in (x, y))
    return pair(x, y, with_epsilon(rng, options(rng, "distance", "divergence"), x, y), f"scale {scale:.2g}")


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
    settings = replace(options(rng, "distance", "divergence"), epsilon=nearest_centers(centers) / ratio)
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


@family
def padding(rng: np.random.Generator, index: int) -> Problem:
    """Points of weight zero, near and far, on one side or both: the same as no points."""
    x, y, word = any_clouds(rng, int(rng.integers(1, 6)))
    settings = with_epsilon(rng, options(rng, "distance", "divergence", "batch", "loss"), x, y)
    if rng.random() < 0.3:
        settings = with_reach(rng, settings, x, y)
    count, distance = int(rng.choice([1, 3, 10, 100])), float(10 ** rng.uniform(-1, 3))
    sides = int(rng.integers(1, 4))
    x, y = (padded(rng, c, count, distance) if sides & bit else c for c, bit in ((x, 1), (y, 2)))
    return pair(x, y, settings, f"{word}, {count} points of weight zero, {distance:.2g} times as far")


@family
def labels(rng: np.random.Generator, index: int) -> Problem:
    """Every label distance, classes of one sample, weights of both parts of the cost, zero among them."""
    d = int(rng.integers(1, 9))
    x, y = (labelled(rng, normal_cloud(rng, d), int(rng.integers(1, 6))) for _ in "xy")
    method = str(rng.choice(["means", "gaussian_diag", "gaussian", "sinkhorn"]))
    weights = [(1.0, 1.0), (1.0, 1.0), (float(10 ** rng.uniform(-2, 2)), 1.0), (0.0, 1.0), (1.0, 0.0)]
    feature, label = weights[int(rng.integers(len(weights)))]
    settings = replace(
        options(rng, "distance"), method=method, feature_weight=feature, label_weight=label,
        relative_epsilon=float(10 ** rng.uniform(-3, 0)),
    )  # fmt: skip
    return pair(x, y, settings, f"{method}, weights {feature:.2g} and {label:.2g}")


@family
def reach(rng: np.random.Generator, index: int) -> Problem:
    """Unbalanced and semi-unbalanced, masses other than one where the function takes them."""
    x, y, word = any_clouds(rng, int(rng.integers(1, 6)))
    settings = with_epsilon(rng, options(rng, "distance", "divergence", "batch", "loss"), x, y)
    settings = with_reach(rng, settings, x, y)
    if settings.way in ("divergence", "batch"):
        x, y = (replace(c, weights=c.masses * float(10 ** rng.uniform(-1, 1))) for c in (x, y))
    return pair(x, y, settings, f"{word}, reach {settings.reach_x}, {settings.reach_y}")


@family
def dtypes(rng: np.random.Generator, index: int) -> Problem:
    """Inputs of float64, float32 and float16, at the origin and far from it, through every function."""
    x, y, word = any_clouds(rng, int(rng.integers(1, 6)))
    dtype = (np.float64, np.float32, np.float32, np.float16)[int(rng.integers(4))]
    scale, offset = 1.0, float(rng.choice([0.0, 10 ** rng.uniform(0, 2.5)]))
    if dtype is not np.float16:
        scale = float(10 ** rng.uniform(-3, 3))
    x, y = (mapped(cloud, scale, offset, dtype) for cloud in (x, y))
    settings = with_epsilon(rng, options(rng, *WAYS[:4]), x, y)
    return pair(x, y, settings, f"{word}, {dtype.__name__}, scale {scale:.2g}, offset {offset:.2g}")


@family
def degenerate(rng: np.random.Generator, index: int) -> Problem:
    """Equal clouds, nearly equal clouds, single points, repeated points, features that do not vary."""
    d, word = int(rng.integers(1, 6)), DEGENERATE[index % len(DEGENERATE)]
    x, y = normal_cloud(rng, d), normal_cloud(rng, d)
    if word == "equal clouds":
        y = x
    elif word == "equal but for the order":
        order = rng.permutation(len(x.x))
        y = Cloud(x.x[order], x.masses[order])
    elif word == "nearly equal":
        y = replace(x, x=x.x + 10 ** rng.uniform(-9, -3) * rng.normal(size=x.x.shape))
    elif word == "single points":
        x, y = normal_cloud(rng, d, 1), normal_cloud(rng, d, int(rng.integers(1, 3)))
    elif word == "repeated points":
        x, y = (Cloud(np.repeat(c.x, int(rng.integers(1, 6)), axis=0)) for c in (x, y))
    elif word == "all in one point":
        x, y = (Cloud(np.repeat(x.x[:1], k, axis=0)) for k in rng.integers(1, 9, 2))
    else:
        x, y = (replace(c, x=np.column_stack([c.x, np.full(len(c.x), 1e3)])) for c in (x, y))
    return pair(x, y, with_epsilon(rng, options(rng, *WAYS[:4]), x, y), word)


DEGENERATE = (
    "equal clouds", "equal but for the order", "nearly equal", "single points", "repeated points", "all in one point",
    "constant feature",
)  # fmt: skip


@family
def batches(rng: np.random.Generator, index: int) -> Problem:
    """Several pairs in one call of ``sinkhorn_batch``, clouds shared among them, some of them groups far apart."""
    d = int(rng.integers(1, 6))
    clouds: list[Cloud] = []
    for _ in range(int(rng.integers(1, 4))):
        clouds += any_clouds(rng, d)[:2]
    pairs = [(k, k + 1) for k in range(0, len(clouds), 2)]
    for i, j in rng.integers(0, len(clouds), (int(rng.integers(0, 3)), 2)):
        pairs.append((int(i), int(j)))
    settings = with_epsilon(rng, options(rng, "batch"), clouds[0], clouds[1])
    return Problem(tuple(clouds), tuple(pairs), settings, f"{len(pairs)} pairs")


@family
def matrices(rng: np.random.Generator, index: int) -> Problem:
    """``pairwise`` over three sets, features alone or with a label distance."""
    d, method = int(rng.integers(1, 6)), (None, "means", "gaussian_diag", "gaussian")[int(rng.integers(4))]
    clouds = [*any_clouds(rng, d)[:2], normal_cloud(rng, d)]
    if method is not None:
        clouds = [labelled(rng, cloud, int(rng.integers(1, 4))) for cloud in clouds]
    settings = replace(
        options(rng, "pairwise"), method=method, debiased=True, relative_epsilon=float(10 ** rng.uniform(-3, 0))
    )
    return Problem(tuple(clouds), ((0, 1), (0, 2), (1, 2)), settings, f"three sets, {method}")
