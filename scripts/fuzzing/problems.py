"""What a random problem is: clouds as arrays, the public function that is asked, and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
WAYS = ("distance", "divergence", "batch", "loss", "pairwise")
"""``dataset_distance``, ``sinkhorn_divergence``, ``sinkhorn_batch``, ``SamplesLoss(tol=...)``, ``pairwise``."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points ``(n, d)`` in the dtype that is handed over, float64 weights or uniform, class labels or none."""

    x: Array
    weights: Array | None = None
    labels: Array | None = None

    @property
    def masses(self) -> Array:
        """``(n,)`` float64 weights as given."""
        return np.full(len(self.x), 1.0 / len(self.x)) if self.weights is None else self.weights.astype(np.float64)

    @property
    def points(self) -> Array:
        """``(n, d)`` float64."""
        return self.x.astype(np.float64)


@dataclass(frozen=True)
class Settings:
    """Options of a call, in the library's words; ``epsilon`` is in units of the way's own cost.

    ``method`` is the label distance; ``None`` compares features alone.
    """

    way: str = "distance"
    epsilon: float | None = None
    relative_epsilon: float = 0.01
    tol: float = 1e-3
    debiased: bool = True
    reach_x: float | None = None
    reach_y: float | None = None
    method: str | None = None
    feature_weight: float = 1.0
    label_weight: float = 1.0
    max_iterations: int = 1000
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def unbalanced(self) -> bool:
        return self.reach_x is not None or self.reach_y is not None

    @property
    def halved(self) -> float:
        """Factor of the squared distance in the way's cost: GeomLoss's convention has a half."""
        return 0.5 if self.way == "loss" else self.feature_weight


@dataclass(frozen=True, eq=False)
class Problem:
    """Clouds, the pairs of them whose value is asked for, and options; ``note`` says what it is."""

    clouds: tuple[Cloud, ...]
    pairs: tuple[tuple[int, int], ...]
    settings: Settings
    note: str = ""


def pair(x: Cloud, y: Cloud, settings: Settings, note: str = "") -> Problem:
    return Problem((x, y), ((0, 1),), settings, note)


def mean_square(x: Cloud, y: Cloud) -> float:
    """``E |x - y|^2`` under independent draws."""
    p, q = (cloud.masses / cloud.masses.sum() for cloud in (x, y))
    return float(p @ squared_distances(x.points, y.points) @ q)


def squared_distances(x: Array, y: Array) -> Array:
    """``(n, m)``, from differences."""
    out = np.empty((len(x), len(y)))
    for i, row in enumerate(x):
        out[i] = ((y - row) ** 2).sum(1)
    return out
