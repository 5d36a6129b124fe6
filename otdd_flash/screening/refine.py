"""Cheap first, exact where it matters: value everything by a screen, the best of it by the full distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
    count = math.ceil(keep * len(items)) if isinstance(keep, float) and 0 < keep < 1 else keep
    if isinstance(keep, bool) or not (isinstance(count, int) and 1 <= count <= len(items)):
        raise ValueError(f"keep must be a fraction in (0, 1) or a count up to {len(items)}, got {keep!r}")
    screened = tuple(screen(item) for item in items)
    unusable = [i for i, value in enumerate(screened) if math.isnan(value)]
    if unusable:
        raise ValueError(f"screening gave NaN for the items {unusable}")
    by_screen = sorted(range(len(items)), key=screened.__getitem__)
    refined = {i: refine(items[i]) for i in by_screen[:count]}
    order = (*sorted(refined, key=refined.__getitem__), *by_screen[count:])
    agreement = rank_correlation([screened[i] for i in refined], list(refined.values()))
    return Screened(tuple(items), order, screened, refined, agreement)
