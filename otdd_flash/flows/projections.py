"""Where moving points may be: boxes and pixel grids for images, the simplex for label distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_fields, check_number

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Box:
    """The nearest point with every feature in ``[low, high]``."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, check_number, "low", "high", low=-math.inf)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    def __call__(self, x: Tensor) -> Tensor:
        """Project ``x (n, d)``."""
        return x.clamp(self.low, self.high)


@dataclass(frozen=True)
class Grid:
    """The nearest point whose features are multiples of ``1 / levels`` in ``[0, 1]``: pictures of 8 bits.

    Moves under half a level are rounded away, so that a flow stalls once its steps are that small.
    """

    levels: int = 255

    def __post_init__(self) -> None:
        check_fields(self, check_count, "levels")

    def __call__(self, x: Tensor) -> Tensor:
        """Project ``x (n, d)``."""
        return (x.clamp(0, 1) * self.levels).round() / self.levels


def project_simplex(rows: Tensor) -> Tensor:
    """The nearest row of non-negative entries with sum one, for each of ``rows (n, k)``.

    Source: Duchi et al. (2008), figure 1.
    """
    ordered = rows.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - 1
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    active = (ordered * count > excess).sum(1, keepdim=True)
    threshold = excess.gather(1, active - 1) / active
    return (rows - threshold).clamp_min(0)
