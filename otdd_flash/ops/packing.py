"""All clouds of a cost in one operand: what the kernels read.

    C_ij = alpha_i + alpha_j - scale <z_i, z_j> + table[l_i, l_j],       alpha_i = (scale / 2) |z_i|^2

``z`` are the points, centred, scaled and rounded to the operand's precision; ``alpha`` is taken in float64 from the
rounded values, so a solve is exact for a slightly moved cloud and ``C_ii = 0``. Rows are sorted by class within a
cloud. Everything is packed in blocks of rows, so that the operand is the only large allocation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops.tuning import WIDTH_MULTIPLE

SPARE_ROWS = 256  # a tile may run past the last cloud by less than this
_BLOCK = 1 << 21  # elements handled at a time: 16 MiB in float64, and five such copies beside the operand
_DTYPES = {"int8": torch.int8, "fp16": torch.float16, "fp16x3": torch.float16, "tf32": torch.float32,
           "fp32": torch.float32}  # fmt: skip
_GRIDS = (255.0, 1.0, 256.0, 128.0, 16.0)  # levels per unit: images in [0, 1], raw bytes, dyadic grids, digits / 16


@dataclass(frozen=True, eq=False)
class PackedClouds:
    """The packed operand of a cost."""

    mode: str
    operand: Tensor  # (rows + spare, width); for fp16x3 (2 (rows + spare), width), low halves below the high ones
    features: int  # d
    width: int  # d padded to the K step
    scale: float  # cost per unit of the dot product: C = alpha + alpha' - scale <z, z'> + T
    alpha: Tensor  # (rows + spare,) float64
    labels: Tensor | None  # (rows + spare,) int32
    table: Tensor | None  # (c, c) float32
    offsets: tuple[int, ...]  # first row of each cloud
    order: tuple[Tensor | None, ...]  # packed position -> row of the cloud, None for the identity

    @property
    def main(self) -> int:
        """Columns before the packed rest; see :func:`_rest`."""
        return self.features - _rest(self.mode, self.features) if _rest(self.mode, self.features) else self.width

    @property
    def used(self) -> int:
        """Columns that hold anything."""
        return self.features + 2 * _rest(self.mode, self.features)

    @property
    def half(self) -> int:
        """Operand rows from a high half to its low half."""
        return self.alpha.shape[0]

    @property
    def bytes(self) -> int:
        """Bytes held."""
        held = (self.operand, self.alpha, self.labels, self.table)
        return sum(t.numel() * t.element_size() for t in held if t is not None)


@dataclass(frozen=True, eq=False)
class Grid:
    """Points as integers: ``x = (z + offset) / levels`` with ``z`` in int8."""

    levels: float
    offset: Tensor  # (d,) float64, integers


def pack(cost: DotProductCost, precision: str) -> PackedClouds:
    """Pack all clouds of ``cost``; ``auto`` takes ``int8`` on an 8-bit grid and ``fp16x3`` elsewhere.

    Raises:
        ValueError: ``fp64`` (float64 runs on the torch backend), or ``int8`` for points that lie on no 8-bit grid.
    """
    if precision == "fp64":
        raise ValueError("precision='fp64' is not available on backend='triton'; use backend='torch', or 'fp16x3'")
    if precision not in ("auto", *_DTYPES):
        raise ValueError(f"precision must be auto, {', '.join(_DTYPES)} or fp64, got {precision!r}")
    grid = find_grid(cost) if precision in ("auto", "int8") else None
    if precision == "int8" and grid is None:
        raise ValueError(
            "precision='int8' needs features that are integer multiples of one step with at most 256 levels "
            f"(tried steps {', '.join(f'1/{levels:g}' for levels in _GRIDS)}); use precision='auto' or 'fp16x3'"
        )
    mode = ("int8" if grid is not None else "fp16x3") if precision == "auto" else precision
    unit = grid.levels if grid is not None else _power_of_two(cost) if mode.startswith("fp16") else 1.0
    return _fill(cost, mode, unit, None if grid is None else grid.offset)


def find_grid(cost: DotProductCost) -> Grid | None:
    """The 8-bit grid that all points lie on, or ``None``; the offset centres every feature as its range allows."""
    if cost.clouds[0].points.shape[1] > 1 << 16:
        return None  # products reach 2^14: sums of more than 2^16 of them could overflow int32
    found = (_on_grid(cost, levels) for levels in _GRIDS)
    return next((grid for grid in found if grid is not None), None)


def _on_grid(cost: DotProductCost, levels: float) -> Grid | None:
    """The grid of one step, or ``None`` at the first block of points that leaves it."""
    d = cost.clouds[0].points.shape[1]
    low = torch.full((d,), math.inf, dtype=torch.float64, device=cost.device)
    high, mean, off, since = -low, torch.zeros_like(low), low.new_zeros(()), 0
    blocks = list(_blocks(cost))
    for count, block in enumerate(blocks):
        scaled = block.to(torch.float64) * levels
        nearest = scaled.round()
        slack = 1e-9 if block.dtype == torch.float64 else 2.0**-14
        least, most = nearest.aminmax(dim=0)
        low, high = torch.minimum(low, least), torch.maximum(high, most)
        off = torch.maximum(off, (scaled - nearest).abs_().max())
        mean += (nearest.mean(0) - mean) / (count + 1)
        since += block.numel()
        if since >= _BLOCK // 2 or count + 1 == len(blocks):  # a look from the host
            worst, spread = torch.stack([off, (high - low).max()]).tolist()
            if worst > slack or spread > 255:
                return None
            since = 0
    return Grid(levels, torch.maximum(torch.minimum(mean.round(), low + 128), high - 127))


def _blocks(cost: DotProductCost) -> Iterator[Tensor]:
    """Blocks of rows of all clouds."""
    for cloud in cost.clouds:
        rows = max(1, _BLOCK // max(cloud.points.shape[1], 1))
        yield from cloud.points.split(rows)


def _power_of_two(cost: DotProductCost) -> float:
    """The power of two that brings the largest centred coordinate just under 2^14: no overflow, least underflow."""
    peak = 0.0
    for block in _blocks(cost):
        values = block.to(torch.float64)
        peak = max(peak, float((values if cost.center is None else values - cost.center).abs().max()))
    return 2.0 ** (14 - math.frexp(peak)[1]) if peak > 0 else 1.0


def _rounded(z: Tensor, mode: str) -> tuple[Tensor, Tensor | None, Tensor]:
    """High and low operands of float64 ``z``, and ``|z|^2`` of what was kept."""
    if mode == "tf32":
        bits = z.to(torch.float32).view(torch.int32)
        hi = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    else:
        hi = z.to(_DTYPES[mode])
    kept = hi.to(torch.float64)
    if mode != "fp16x3":
        return hi, None, kept.square().sum(1)
    lo = (z - kept).to(torch.float16)
    return hi, lo, (kept * (kept + 2.0 * lo.to(torch.float64))).sum(1)


def _rest(mode: str, features: int) -> int:
    """Features behind the last whole K step whose three products fit one more step; 0 where they do not or need not."""
    rest = features % WIDTH_MULTIPLE
    return rest if mode == "fp16x3" and features > WIDTH_MULTIPLE and 3 * rest <= WIDTH_MULTIPLE else 0


def _write_halves(high: Tensor, low: Tensor, hi: Tensor, lo: Tensor, rest: int) -> None:
    """Write the two halves ``hi, lo (rows, d)`` into operand rows ``high, low (rows, width)``."""
    d = hi.shape[1]
    main = d - rest
    high[:, :main], low[:, :main] = hi[:, :main], lo[:, :main]
    if rest:
        high[:, main : main + 3 * rest] = torch.cat([lo[:, main:], hi[:, main:], hi[:, main:]], 1)
        low[:, main : main + 3 * rest] = torch.cat([hi[:, main:], lo[:, main:], hi[:, main:]], 1)


def _fill(cost: DotProductCost, mode: str, unit: float, offset: Tensor | None) -> PackedClouds:
    """Allocate and write the operand block by block."""
    d, device = cost.clouds[0].points.shape[1], cost.device
    sizes = [cloud.n for cloud in cost.clouds]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    total = sum(sizes) + SPARE_ROWS
    width = -(-d // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    operand = torch.zeros((2 if mode == "fp16x3" else 1) * total, width, dtype=_DTYPES[mode], device=device)
    alpha = torch.zeros(total, dtype=torch.float64, device=device)
    labels = None if cost.table is None else torch.zeros(total, dtype=torch.int32, device=device)
    scale = 2.0 * cost.feature_weight / unit**2
    order: list[Tensor | None] = []
    for cloud, start in zip(cost.clouds, offsets, strict=True):
        position = None
        if labels is not None:
            if cloud.labels is None:
                raise ValueError("the cost has a label table but a cloud has no labels")
            position = torch.argsort(cloud.labels, stable=True)
            labels[start : start + cloud.n] = cloud.labels[position].to(torch.int32)
        order.append(position)
        rows = max(1, _BLOCK // max(d, 1))
        for s in range(0, cloud.n, rows):
            e = min(s + rows, cloud.n)
            z = (cloud.points[s:e] if position is None else cloud.points[position[s:e]]).to(torch.float64)
            if offset is not None:
                z = (z * unit).round() - offset
            else:
                z = (z if cost.center is None else z - cost.center) * unit
            high, low, norms = _rounded(z, mode)
            if low is None:
                operand[start + s : start + e, :d] = high
            else:
                high_rows, low_rows = (operand[first + s : first + e] for first in (start, total + start))
                _write_halves(high_rows, low_rows, high, low, _rest(mode, d))
            alpha[start + s : start + e] = norms * (scale / 2)
    table = None if cost.table is None else cost.table.to(device=device, dtype=torch.float32).contiguous()
    return PackedClouds(mode, operand, d, width, scale, alpha, labels, table, tuple(offsets), tuple(order))
