"""The ground cost in dot-product form: all that ops, solver and kernels know about it.

Every cost of this library is ``C_ij = w |x_i - y_j|^2 + T[l_i, l'_j] = alpha_i + beta_j - <q_i, k_j>`` with

    q_i = [sqrt(2 w) x_i ; -T[l_i, classes of y]]     k_j = [sqrt(2 w) y_j ; onehot(l'_j)]

so a solver sees points of a slightly larger Euclidean space and no labels. The factorisation of the label table is
exact and needs no positive-definiteness. Clouds are shifted by a common centre first: far-from-origin data would lose
its digits in ``alpha + beta - <q, k>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

_NOISE = 8 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class PointCloud:
    """One weighted cloud: ``points (n, d)``, ``weights (n,)`` float64, optional ``labels (n,)`` rows of the table."""

    points: Tensor
    weights: Tensor
    labels: Tensor | None = None

    @property
    def n(self) -> int:
        """Number of points."""
        return self.points.shape[0]

    def take(self, rows: Tensor) -> PointCloud:
        """The points ``rows`` alone, with their weights and labels."""
        return PointCloud(self.points[rows], self.weights[rows], None if self.labels is None else self.labels[rows])


class Factors(NamedTuple):
    """``C_ij = alpha_i + beta_j - <q_i, k_j>`` for one ordered pair of clouds."""

    alpha: Tensor  # (n,)
    beta: Tensor  # (m,)
    q: Tensor  # (n, k)
    k: Tensor  # (m, k)


@dataclass(frozen=True, eq=False)
class DotProductCost:
    """Squared-Euclidean plus label-table cost over a list of clouds; a *problem* is an ordered pair ``(i, j)`` of them.

    Args:
        clouds: the clouds, all of one width and device.
        feature_weight: ``w``, the factor of the squared distance.
        table: ``(C, C)`` float64, symmetric, label weight included; rows are what the clouds' ``labels`` point at.
        center: ``(d,)`` float64, subtracted from every point.
    """

    clouds: tuple[PointCloud, ...]
    feature_weight: float = 1.0
    table: Tensor | None = None
    center: Tensor | None = None

    @classmethod
    def build(
        cls,
        clouds: Sequence[PointCloud],
        *,
        feature_weight: float = 1.0,
        table: Tensor | None = None,
        center: Tensor | None = None,
    ) -> DotProductCost:
        """A cost with a given centre, or about the mean of the clouds' means.

        Raises:
            ValueError: clouds of different width or device, or labels without a table.
        """
        widths = {cloud.points.shape[1] for cloud in clouds}
        devices = {cloud.points.device for cloud in clouds}
        if len(widths) != 1 or len(devices) != 1:
            raise ValueError(f"clouds must share width and device, got widths {widths} on {devices}")
        if table is None and any(cloud.labels is not None for cloud in clouds):
            raise ValueError("clouds carry labels but the cost has no label table")
        if center is None:
            center = torch.stack([mean_of(cloud) for cloud in clouds]).mean(0)
        center = center.to(clouds[0].points.device, torch.float64)
        return cls(tuple(clouds), float(feature_weight), table, center)

    @property
    def device(self) -> torch.device:
        """Where the clouds live."""
        return self.clouds[0].points.device

    @cached_property
    def supports(self) -> tuple[Tensor | None, ...]:
        """Of each cloud the rows ``(k,)`` whose weight is not zero, or ``None`` where that is every row."""
        present = [cloud.weights != 0 for cloud in self.clouds]
        whole = torch.stack([rows.all() for rows in present]).tolist()  # one look from the host
        return tuple(None if every else rows.nonzero()[:, 0] for every, rows in zip(whole, present, strict=True))

    @cached_property
    def supported(self) -> DotProductCost:
        """The same cost without the points of weight zero; itself where there are none."""
        pairs = list(zip(self.clouds, self.supports, strict=True))
        if all(rows is None for _, rows in pairs):
            return self
        return replace(self, clouds=tuple(cloud if rows is None else cloud.take(rows) for cloud, rows in pairs))

    def centred(self, i: int, dtype: torch.dtype, columns: slice = slice(None)) -> Tensor:
        """``(n, d)`` points of cloud ``i`` minus the centre, not yet scaled; the difference is taken in float64."""
        points = self.clouds[i].points[:, columns]
        if self.center is None:
            return points.to(dtype)
        center = self.center[columns]
        if points.dtype == torch.float64 or dtype == torch.float64:
            return (points.to(torch.float64) - center).to(dtype)
        out = torch.empty(points.shape, dtype=dtype, device=points.device)
        for rows in _row_blocks(points):
            out[rows] = points[rows].to(torch.float64) - center
        return out

    def factors(self, i: int, j: int, dtype: torch.dtype) -> Factors:
        """The dot-product form of problem ``(i, j)`` in ``dtype``, label columns included."""
        return self.many_factors([(i, j)], dtype)[0]

    def many_factors(self, problems: Sequence[tuple[int, int]], dtype: torch.dtype) -> list[Factors]:
        """The dot-product forms of many problems; what belongs to a cloud is computed once."""
        root = (2.0 * self.feature_weight) ** 0.5
        points = {k: self.centred(k, dtype) * root for k in dict.fromkeys(k for pair in problems for k in pair)}
        halves = {k: squared_norms(x) / 2 for k, x in points.items()}
        out = []
        for i, j in problems:
            x, y = points[i], points[j]
            if self.table is not None:
                rows, columns = self.labels_of(i), self.labels_of(j)
                present, position = torch.unique(columns, return_inverse=True)
                x = torch.cat([x, -self.table[rows][:, present].to(dtype)], 1)
                y = torch.cat([y, torch.nn.functional.one_hot(position, len(present)).to(dtype)], 1)
            out.append(Factors(halves[i], halves[j], x, y))
        return out

    def mean(self, i: int, j: int) -> float:
        """Mean cost under the independent coupling ``a (x) b``, in O((n + m) d)."""
        return float(self.means([(i, j)])[0])

    def means(self, problems: Sequence[tuple[int, int]]) -> Tensor:
        """``(B,)`` float64 mean costs of many problems, on the host."""
        pairs = torch.tensor(problems)
        return self._mean_table[pairs[:, 0], pairs[:, 1]]

    @cached_property
    def _mean_table(self) -> Tensor:
        """Mean costs of all pairs of clouds, on the host."""
        first, square = (torch.stack(parts) for parts in list(zip(*self._statistics, strict=True))[:2])
        both = square[:, None] + square[None, :]
        squares = both - 2 * (first @ first.T)
        # of points in one place rounding leaves a little more or less than nothing
        means = self.feature_weight * torch.where(squares > _NOISE * both, squares, 0.0)
        if self.table is not None:
            shares = self._shares(self.table, [(k, c.weights / c.weights.sum()) for k, c in enumerate(self.clouds)])
            means = means + shares @ self.table @ shares.T
        return means.cpu()

    def totals(self, entries: Sequence[tuple[int, int, Tensor, Tensor]]) -> Tensor:
        """``(B,)`` float64 ``sum_ij u_i v_j C_ij`` of many problems, in O((n + m) d) each.

        Args:
            entries: first cloud, second cloud, ``u (n,)`` and ``v (m,)`` float64.
        """
        weights = [side for i, j, u, v in entries for side in ((i, u), (j, v))]
        first, square, mass = self._moments_under(weights)
        value = self.feature_weight * (
            square[::2] * mass[1::2] + square[1::2] * mass[::2] - 2 * (first[::2] * first[1::2]).sum(1)
        )
        if self.table is not None:
            shares = self._shares(self.table, weights)
            value = value + ((shares[::2] @ self.table) * shares[1::2]).sum(1)
        return value

    def _moments_under(self, weights: Sequence[tuple[int, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """First and second moments ``(B, d), (B,)`` about the centre and masses ``(B,)``, of clouds under weights."""
        groups = {k: [p for p, (cloud, _) in enumerate(weights) if cloud == k] for k in dict(weights)}
        parts = []
        for k, places in groups.items():
            both = torch.stack([weights[p][1] for p in places])
            found = _moments(self.clouds[k], self.center, both)
            parts.append((found.first, found.square, both.sum(1)))
        order = sorted(range(len(weights)), key=[p for places in groups.values() for p in places].__getitem__)
        first, square, mass = (torch.cat(part)[order] for part in zip(*parts, strict=True))
        return first, square, mass

    def _shares(self, table: Tensor, weights: Sequence[tuple[int, Tensor]]) -> Tensor:
        """``(B, C)`` masses by row of the table, of clouds under weights."""
        out = table.new_zeros(len(weights), len(table))
        for row, (k, w) in enumerate(weights):
            out[row].index_add_(0, self.labels_of(k), w)
        return out

    def bound(self, i: int, j: int) -> float:
        """An upper bound of the cost between points with weight of problem ``(i, j)``: annealing starts there."""
        if (i, j) not in self._bounds:
            self._bounds[i, j] = self._bound(i, j)
        return self._bounds[i, j]

    @cached_property
    def _bounds(self) -> dict[tuple[int, int], float]:
        return {}

    def _bound(self, i: int, j: int) -> float:
        value = self.feature_weight * (self._radii[i] + self._radii[j]) ** 2
        if self._host_table is None:
            return value
        table, rows = self._host_table
        return value + max(0.0, float(table[rows[i]][:, rows[j]].max()))

    @cached_property
    def _statistics(self) -> list[_Moments]:
        """Of each cloud about the centre under its weights, in one sweep of row blocks."""
        return [_moments(cloud, self.center, cloud.weights / cloud.weights.sum()) for cloud in self.clouds]

    @cached_property
    def _radii(self) -> list[float]:
        """Largest distance of a point of each cloud from the centre."""
        return torch.stack([moments.largest for moments in self._statistics]).sqrt().tolist()

    @cached_property
    def _host_table(self) -> tuple[Tensor, list[Tensor]] | None:
        """The label table, and the rows of it where each cloud has mass, on the host."""
        if self.table is None:
            return None
        masses = self._shares(self.table, [(k, cloud.weights) for k, cloud in enumerate(self.clouds)])
        return self.table.cpu(), [row.nonzero()[:, 0] for row in (masses != 0).cpu()]

    def labels_of(self, i: int) -> Tensor:
        """``(n,)`` rows of the table of cloud ``i``."""
        labels = self.clouds[i].labels
        if labels is None:
            raise ValueError(f"cloud {i} has no labels but the cost has a label table")
        return labels


class _Moments(NamedTuple):
    """Of a centred cloud under weights ``w``, float64."""

    first: Tensor  # (d,) sum_i w_i x_i
    square: Tensor  # sum_i w_i |x_i|^2
    largest: Tensor  # max_i |x_i|^2


def _moments(cloud: PointCloud, center: Tensor | None, weights: Tensor) -> _Moments:
    """Under ``weights (n,)``, or many of them ``(B, n)``."""
    blocks = []
    for rows in _row_blocks(cloud.points):
        points = cloud.points[rows]
        centred = points.to(torch.float64) if center is None else points - center  # float64 either way, one copy
        norms = torch.linalg.vector_norm(centred, dim=1).square()
        largest = norms.masked_fill(cloud.weights[rows] == 0, 0.0).max()
        blocks.append(_Moments(weights[..., rows] @ centred, weights[..., rows] @ norms, largest))
    first, square, largest = blocks[0]
    for block in blocks[1:]:
        first, square = first + block.first, square + block.square
        largest = torch.maximum(largest, block.largest)
    return _Moments(first, square, largest)


def _row_blocks(x: Tensor) -> Iterator[slice]:
    """Row ranges of about 32 MiB in float64."""
    rows = max(1, (1 << 22) // max(x.shape[1], 1))
    return (slice(s, s + rows) for s in range(0, x.shape[0], rows))


def squared_norms(x: Tensor) -> Tensor:
    """Row-wise squared norms, accumulated in float64 block by block and returned in float64."""
    out = torch.empty(x.shape[0], dtype=torch.float64, device=x.device)
    for rows in _row_blocks(x):
        out[rows] = x[rows].to(torch.float64).square().sum(1)
    return out


def weighted_mean(x: Tensor, weights: Tensor) -> Tensor:
    """``(d,)`` float64 mean of ``x (n, d)`` under ``weights`` that sum to one, block by block."""
    out = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for rows in _row_blocks(x):
        out += weights[rows] @ x[rows].to(torch.float64)
    return out


def mean_of(cloud: PointCloud) -> Tensor:
    """``(d,)`` float64 weighted mean of a cloud."""
    return weighted_mean(cloud.points, cloud.weights / cloud.weights.sum())
