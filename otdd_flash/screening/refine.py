"""Cheap first, exact where it matters: value everything by a screen, the best of it by the full distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Generic, TypeVar

from torch import Tensor

from otdd_flash.checks import check_callable, check_share, shown
from otdd_flash.screening.cut import rank_correlation

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Screened(Generic[Item]):
    """Items in order, the refined ones first.

    Args:
        items: as given.
        order: positions of the refined items by refined value, then of the others by screening value.
        screened: screening value of every item.
        refined: refined value by position of the item.
        rank_correlation: Spearman correlation of the two values over the refined items, ``None`` below three of them.
    """

    items: tuple[Item, ...]
    order: tuple[int, ...]
    screened: tuple[float, ...]
    refined: dict[int, float]
    rank_correlation: float | None


def screen_then_refine(
    items: Sequence[Item], screen: Callable[[Item], float], refine: Callable[[Item], float], *, keep: int | float
) -> Screened[Item]:
    """Value all ``items`` by ``screen`` and the ``keep`` smallest of them by ``refine``.

    Items are whatever both functions take: candidates of a ranking, pairs ``(i, j)`` of a matrix.

    >>> found = screen_then_refine([5, -3, 1, 4], abs, lambda v: v * v, keep=2)
    >>> found.order, found.refined
    ((2, 1, 3, 0), {2: 1, 1: 9})

    Args:
        items: candidates.
        screen: cheap distance.
        refine: full distance.
        keep: how many to refine: a count, or a fraction of the items in (0, 1), rounded up.

    Raises:
        ValueError: ``keep`` that is neither, or a screening value that is no number.
    """
    if not isinstance(items, Sequence):
        raise TypeError(f"items must be a list, got {shown(items)}")
    check_callable("screen", screen)
    check_callable("refine", refine)
    keep = check_share("keep", keep)
    count = keep if isinstance(keep, int) else math.ceil(keep * len(items))
    if not 1 <= count <= len(items):
        raise ValueError(f"keep must be a fraction in (0, 1) or a count up to the {len(items)} items, got {keep!r}")
    screened = tuple(_value("screen", screen(item)) for item in items)
    unusable = [i for i, value in enumerate(screened) if math.isnan(value)]
    if unusable:
        raise ValueError(f"screening gave NaN for the items {unusable}")
    by_screen = sorted(range(len(items)), key=screened.__getitem__)
    refined = {i: _value("refine", refine(items[i])) for i in by_screen[:count]}
    order = (*sorted(refined, key=refined.__getitem__), *by_screen[count:])
    agreement = rank_correlation([screened[i] for i in refined], list(refined.values()))
    return Screened(tuple(items), order, screened, refined, agreement)


def _value(name: str, value: float) -> float:
    """What a function gave, where that is one real number; it keeps its type."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if not isinstance(value, Real):
        raise TypeError(f"{name} must give one number for an item, got {shown(value)}")
    return value
