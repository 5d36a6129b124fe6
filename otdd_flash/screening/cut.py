"""How many of the screened items get the full distance, and how well the screen agreed with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_count, check_fields, check_number, check_share

Method = Literal["sliced", "moments"]


@dataclass(frozen=True)
class Screen:
    """What a cheap distance sees first, so that the full one is computed for the nearest alone.

    Args:
        keep: how many get the full distance: of a ranking's candidates (a count, or a fraction in (0, 1), rounded up);
            of a matrix, the nearest neighbours of each set (a count).
        margin: near ties at the cut are kept as well: those whose squared screening distance is within this fraction
            of the last one's, as many again as ``keep`` at most.
        method: ``sliced`` (:func:`~otdd_flash.sliced_distance`) or ``moments`` (classes as point masses at their
            diagonal Gaussian distance, :func:`~otdd_flash.moment_distance`).
        projections: of the sliced distance.
        quantiles: points at which projections are compared; a set is summed up by ``projections * quantiles`` numbers.

    Raises:
        TypeError: not a number where one is due.
        ValueError: a number out of its range, or an unknown method.
    """

    keep: int | float = 20
    margin: float = 0.1
    method: Method = "sliced"
    projections: int = 500
    quantiles: int = 64

    def __post_init__(self) -> None:
        check_fields(self, check_share, "keep", of="screen.")
        check_fields(self, check_number, "margin", of="screen.", closed=True)
        check_choice("screen.method", self.method, get_args(Method))
        check_fields(self, check_count, "projections", "quantiles", of="screen.")

    def count(self, items: int) -> int:
        """How many of ``items`` are kept, near ties aside."""
        return min(items, math.ceil(self.keep * items) if isinstance(self.keep, float) else self.keep)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


@dataclass(frozen=True)
class Cut:
    """Positions that are kept, nearest first, ``near_ties`` of them past the count; ``left`` more ties were not."""

    kept: tuple[int, ...]
    near_ties: int
    left: int


def check_screen(screen: Any) -> None:
    """Refuse what is no screen.

    Raises:
        TypeError: another thing than a :class:`Screen` or ``None``.
    """
    if screen is not None and not isinstance(screen, Screen):
        raise TypeError(f"screen must be an otdd_flash.Screen or None, got {screen!r}: Screen(keep=20) is one")


def cut(values: Sequence[float], screen: Screen) -> Cut:
    """The positions of the smallest ``values`` that a screen keeps."""
    order = sorted(range(len(values)), key=values.__getitem__)
    count = screen.count(len(order))
    if count == 0:
        return Cut((), 0, 0)
    last = values[order[count - 1]]
    ties = [i for i in order[count:] if values[i] <= last + screen.margin * abs(last)]
    taken = ties[:count]
    return Cut((*order[:count], *taken), len(taken), len(ties) - len(taken))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation, ties averaged; ``None`` below three items or where one side is constant."""
    if len(first) < 3:
        return None
    ranks = [_ranks(torch.tensor(values, dtype=torch.float64)) for values in (first, second)]
    centred = [rank - rank.mean() for rank in ranks]
    scale = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / scale if scale > 0 else None


def _ranks(values: Tensor) -> Tensor:
    """Ranks from zero, ties averaged."""
    _, position, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).to(torch.float64)
    return (ends - (counts + 1) / 2)[position]
