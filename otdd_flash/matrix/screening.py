"""Screening of a matrix: a cheap distance for all pairs, the full one for the nearest neighbours of each set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.distance import DistanceOptions
from otdd_flash.matrix.moments import Moments
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.screening.cut import Screen, rank_correlation
from otdd_flash.screening.screener import Screener, Sketch


@dataclass(frozen=True, eq=False)
class MatrixScreening:
    """What the screen saw of all pairs, and which of them it let through.

    Args:
        screen: how.
        values: ``(k, k)`` squared screening distances, NaN for sets that failed; on another scale than the full ones.
        refined: ``(k, k)`` bool: pairs that are to have the full distance.
        ties_left: neighbours within the margin that were not let through, in all rows together.
        rank_correlation: Spearman's, of screening and full distance over the refined pairs; ``None`` below three.
        factor: median ratio of full to screening distance over the refined pairs, ``None`` where there is none.
    """

    screen: Screen
    values: Tensor
    refined: Tensor
    ties_left: int
    rank_correlation: float | None = None
    factor: float | None = None

    def pairs(self) -> list[tuple[int, int]]:
        """Refined pairs ``(i, j)``, ``i < j``."""
        return [(i, j) for i, j in self.refined.triu(1).nonzero().tolist()]

    def compared_with(self, certificates: Mapping[tuple[int, int], dict[str, Any]]) -> MatrixScreening:
        """With correlation and factor from the full distances of the refined pairs."""
        quick = [float(self.values[pair]) for pair in certificates]
        full = [certificate["value"] for certificate in certificates.values()]
        ratios = [y / x for x, y in zip(quick, full, strict=True) if x > 0 and y > 0]
        factor = float(torch.tensor(ratios, dtype=torch.float64).median()) if ratios else None
        return replace(self, rank_correlation=rank_correlation(quick, full), factor=factor)

    def subset(self, index: list[int]) -> MatrixScreening:
        """For the sets ``index``, in that order."""
        return replace(self, values=self.values[index][:, index], refined=self.refined[index][:, index])

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        values = [[x if math.isfinite(x) else None for x in row] for row in self.values.tolist()]
        return {
            "screen": self.screen.to_dict(), "ties_left": self.ties_left, "rank_correlation": self.rank_correlation,
            "factor": self.factor, "values": values,
        }  # fmt: skip

    def write(self, store: Store, kind: str, key: str) -> None:
        """Keep it as one record and one file of tensors."""
        store.write_tensors(kind, key, {"values": self.values, "refined": self.refined})
        store.write(kind, key, {"screen": self.screen.to_dict(), "ties_left": self.ties_left})

    @classmethod
    def read(cls, store: Store, kind: str, key: str) -> MatrixScreening | None:
        """What :meth:`write` kept, or ``None``."""
        record, tensors = store.read(kind, key), store.read_tensors(kind, key)
        if record is None or tensors is None:
            return None
        return cls(Screen(**record["screen"]), tensors["values"], tensors["refined"], record["ties_left"])


def settle_screener(screen: Screen, options: DistanceOptions, moments: Sequence[Moments], store: Store) -> Screener:
    """The screener of these sets; where it looks from is kept in the store, as epsilon is.

    Sets of another width than most have no sketch and fail when one is asked for.
    """
    width = Counter(len(item.mean) for item in moments).most_common(1)[0][0]
    fitting = [item for item in moments if len(item.mean) == width]
    center = torch.stack([item.mean for item in fitting]).mean(0)
    spread = sum(float(item.spread + (item.mean - center).square().sum()) for item in fitting) / len(fitting)
    key = content_key("screener", width, options.max_samples, options.seed)
    kept = store.write_first("settings", key, {"center": center.tolist(), "spread": spread})
    return Screener.of(screen, options, torch.tensor(kept["center"], dtype=torch.float64), kept["spread"])


def sketch_key(screener: Screener, fingerprint: str) -> str:
    """Key of a set's sketch in a store."""
    return content_key("sketch", fingerprint, screener.key)


def screened(screener: Screener, sketches: Mapping[int, Sketch], k: int) -> MatrixScreening:
    """Screening distances of the sets with a sketch, among ``k``, and the pairs that go on.

    All pairs of a set without a sketch go on: it has failed, and they are missing as in any matrix.
    """
    places = torch.tensor(list(sketches), dtype=torch.int64)
    values = torch.full((k, k), math.nan, dtype=torch.float64)
    refined = torch.ones(k, k, dtype=torch.bool)
    left = 0
    if len(sketches) > 1:
        between = screener.distances(list(sketches.values()))
        mask, left = neighbours(between, screener.screen)
        values[places[:, None], places] = between
        refined[places[:, None], places] = mask.fill_diagonal_(True)
    return MatrixScreening(screener.screen, values, refined, left)


def neighbours(values: Tensor, screen: Screen) -> tuple[Tensor, int]:
    """``(k, k)`` bool symmetric: one of the pair is among the nearest of the other; and how many near ties were left.

    Args:
        values: ``(k, k)`` squared distances.
        screen: how many neighbours each set keeps, and the margin for ties.
    """
    count = screen.count(len(values) - 1)
    apart, order = values.clone().fill_diagonal_(math.inf).sort(dim=1, stable=True)
    last = apart[:, count - 1 : count]
    near = (apart <= last + screen.margin * last.abs()) & apart.isfinite()
    left = int(near[:, 2 * count :].sum())
    near[:, 2 * count :] = False
    mask = torch.zeros_like(near).scatter(1, order, near)
    return mask | mask.T, left


def estimates(known: Tensor, screening: MatrixScreening) -> Tensor:
    """``known`` with ``factor`` times the screening distance where no full one was asked for.

    Raises:
        ValueError: no refined pair that gives a scale.
    """
    if screening.factor is None:
        raise ValueError("no pair has both distances above zero: there is no scale for the screened ones")
    return torch.where(screening.refined, known, screening.factor * screening.values)


def all_pairs(positions: Sequence[int], screening: MatrixScreening | None) -> Iterator[tuple[int, int]]:
    """The pairs that are to have the full distance, of the sets at ``positions``."""
    if screening is not None:
        there = set(positions)
        yield from (pair for pair in screening.pairs() if there.issuperset(pair))
        return
    for place, i in enumerate(positions):
        yield from ((i, j) for j in positions[place + 1 :])
