"""The true value of a problem as an interval: cost and label tables from their definitions, then the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fuzzing.problems import Array, Cloud, Settings, squared_distances
from fuzzing.reference import Interval, bounds, self_bounds

MERGED_ABOVE = 150  # points: equal ones are then made one, which changes no value


@dataclass(frozen=True)
class Truth:
    """The interval of a value, and the mean cost between both clouds under independent draws."""

    value: Interval
    mean_cost: float

    @property
    def scale(self) -> float:
        """What an error of one in a thousand is a thousandth of."""
        return max(abs(self.value.middle), 0.01 * self.mean_cost)


def truth(x: Cloud, y: Cloud, settings: Settings, epsilon: float, table: Array | None = None) -> Truth:
    """The value that the settings ask for.

    Args:
        x: first cloud.
        y: second cloud.
        settings: penalties, weights of the cost, debiasing.
        epsilon: that was used, in units of the cost.
        table: squared distances of the classes of ``x``, then those of ``y``; ``None`` without labels.
    """
    shift = 0 if table is None else class_count(x)
    sides = [prepared(cloud, settings, offset) for cloud, offset in ((x, 0), (y, shift))]
    rho_x, rho_y = (math.inf if reach is None else reach**2 for reach in (settings.reach_x, settings.reach_y))
    rho = (rho_x, rho_y)
    costs = {(i, j): cost_matrix(sides[i], sides[j], settings, table) for i, j in ((0, 1), (0, 0), (1, 1))}
    a, b = (side[1] for side in sides)
    value = bounds(costs[0, 1], a, b, epsilon, rho)
    if settings.debiased:
        own = [self_bounds(costs[k, k], side[1], epsilon, rho[k]) for k, side in enumerate(sides)]
        term = epsilon / 2 * (a.sum() - b.sum()) ** 2
        value = Interval(
            value.lower - sum(part.upper for part in own) / 2 + term,
            value.upper - sum(part.lower for part in own) / 2 + term,
        )
    return Truth(value, float(a @ costs[0, 1] @ b / (a.sum() * b.sum())))


def class_count(cloud: Cloud) -> int:
    assert cloud.labels is not None
    return len(np.unique(cloud.labels[cloud.masses > 0]))


def prepared(cloud: Cloud, settings: Settings, offset: int) -> tuple[Array, Array, Array]:
    """Points, weights and rows of the label table, without points of weight zero."""
    keep = cloud.masses > 0
    points, weights = cloud.points[keep], cloud.masses[keep]
    if not settings.unbalanced or settings.way in ("distance", "pairwise"):
        weights = weights / weights.sum()
    labels = np.zeros(len(points), dtype=np.int64)
    if cloud.labels is not None:
        labels = offset + np.unique(cloud.labels[keep], return_inverse=True)[1]
    if len(points) <= MERGED_ABOVE:
        return points, weights, labels
    rows, first, position = np.unique(np.column_stack([points, labels]), axis=0, return_index=True, return_inverse=True)
    return points[first], np.bincount(position.ravel(), weights, len(rows)), labels[first]


def cost_matrix(
    x: tuple[Array, Array, Array], y: tuple[Array, Array, Array], settings: Settings, table: Array | None
) -> Array:
    """``w_x |x - y|^2 + w_y W[l, l']``."""
    cost = settings.halved * squared_distances(x[0], y[0])
    return cost if table is None else cost + settings.label_weight * table[x[2]][:, y[2]]


def label_table(x: Cloud, y: Cloud, method: str) -> Array:
    """Squared Wasserstein distances of all classes of both clouds, seen as points or Gaussians, from their moments."""
    classes = [(points, w) for cloud in (x, y) for points, w in class_parts(cloud)]
    means = np.stack([w @ points for points, w in classes])
    table = squared_distances(means, means)
    centred = [(points - mean) * np.sqrt(w)[:, None] for (points, w), mean in zip(classes, means, strict=True)]
    if method == "gaussian_diag":
        deviations = np.stack([np.sqrt((part**2).sum(0)) for part in centred])
        return table + squared_distances(deviations, deviations)
    if method == "gaussian":
        roots = [covariance_root(part) for part in centred]
        traces = np.array([(part**2).sum() for part in centred])
        cross = np.array([[np.linalg.svd(p @ q, compute_uv=False).sum() for q in roots] for p in roots])
        table = table + traces[:, None] + traces[None, :] - 2 * cross
    np.fill_diagonal(table, 0.0)
    return table


def sinkhorn_table(x: Cloud, y: Cloud, epsilon: float, *, debiased: bool) -> tuple[Array, Array]:
    """Bounds of ``OT_eps`` between all classes of both clouds, less half the self terms where debiased."""
    classes = [*class_parts(x), *class_parts(y)]
    own = [self_bounds(squared_distances(p, p), w, epsilon) for p, w in classes] if debiased else []
    lower, upper = np.zeros((2, len(classes), len(classes)))
    for i, (p, v) in enumerate(classes):
        for j, (q, w) in enumerate(classes[:i]):
            if np.array_equal(p, q) and np.array_equal(v, w):
                continue
            found = bounds(squared_distances(p, q), v, w, epsilon)
            lower[i, j] = found.lower - (own[i].upper + own[j].upper) / 2 if debiased else found.lower
            upper[i, j] = found.upper - (own[i].lower + own[j].lower) / 2 if debiased else found.upper
    return lower + lower.T, upper + upper.T


def class_parts(cloud: Cloud) -> list[tuple[Array, Array]]:
    """Points and normalised weights of each class, in the order of the labels."""
    assert cloud.labels is not None
    keep = cloud.masses > 0
    points, weights, labels = cloud.points[keep], cloud.masses[keep], cloud.labels[keep]
    return [(points[labels == k], weights[labels == k] / weights[labels == k].sum()) for k in np.unique(labels)]


def covariance_root(centred: Array) -> Array:
    """Symmetric root of ``Z^T Z``, from the singular vectors of ``Z``: no digit is lost to squaring."""
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    return (vectors.T * values) @ vectors
