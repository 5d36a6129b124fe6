"""Costs and gradients of many wide points as float64 products of the library, block by block of rows.

What :mod:`otdd_flash.kernels.dense_costs` and :mod:`otdd_flash.kernels.dense_pull` compute, with the same arguments and
in plain torch. Where float64 has its full rate, that is above the rate of three TF32 products in such kernels; it has
more digits, and no flag of the caller (such as ``allow_tf32``) can take them away.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 1 << 24  # entries, 128 MiB: a quarter of the scores of 4,096 + 4,096 points, and enough tiles for a GPU


def dense_costs(points: Tensor, costs: Tensor, *, n: int, own: bool) -> None:
    """Write ``costs (B, N, N)`` float32 of ``points (B, N, d)``; without ``own`` those within a cloud are left out.

    The norms are two more features, so that a block is one product: ``[-z, |z|^2/2, 1]`` times ``[z, 1, |z|^2/2]``.
    """
    batch, size, _ = points.shape
    right = torch.nn.functional.pad(points.to(torch.float64), (0, 2), value=1.0)
    right[:, :, -1] = right[:, :, :-2].square().sum(2).div_(2)
    zero = right.new_zeros(())
    everything, first, second = slice(0, size), slice(0, n), slice(n, size)
    for side, columns in [(everything, everything)] if own else [(first, second), (second, first)]:
        for group, rows in _blocks(batch, side, columns.stop - columns.start):
            z, norms = right[group, rows].split([points.shape[2], 2], 2)
            products = torch.cat([-z, norms.flip(2)], 2) @ right[group, columns].mT
            torch.maximum(products, zero, out=costs[group, rows, columns])


def dense_pull(
    costs: Tensor, points: Tensor, log_weights: Tensor, potentials: Tensor, seen: Tensor, out: Tensor, *, n: int,
    slope: float,
) -> None:  # fmt: skip
    """Write ``out (B, N, d)`` float32 from ``points (B, N, d)``; the rest as in the kernel ``dense_step``.

    Scores are rounded as there, so that a plan has the row sums that the last step made.
    """
    batch, kinds, size = potentials.shape
    fine = points.to(torch.float64)
    exponents = torch.add(log_weights[:, None], potentials, alpha=slope)

    def pulled(own: int, group: slice, rows: slice, columns: slice) -> Tensor:
        """``sum_j P_ij (z_i - z_j)`` of the cross problem or the ``own`` one, ``(b, r, d)`` float64."""
        scores = torch.add(seen[group, own, None, columns], costs[group, rows, columns], alpha=-slope)
        plan = torch.add(exponents[group, own, rows, None], scores).exp2_()
        return plan.sum(2, keepdim=True) * fine[group, rows] - plan @ fine[group, columns]

    first, second = slice(0, n), slice(n, size)
    for side, other in ((first, second), (second, first)):
        for group, rows in _blocks(batch, side, max(n, size - n)):
            moved = pulled(0, group, rows, other)
            out[group, rows] = moved if kinds == 1 else moved.sub_(pulled(1, group, rows, side))


def _blocks(batch: int, rows: slice, width: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of pairs and of their rows of ``width`` entries: whole pairs where these are small, else rows of one."""
    count = rows.stop - rows.start
    height = max(1, _BLOCK // width)
    together, height = max(1, height // count), min(height, count)
    for start in range(0, batch, together):
        for row in range(rows.start, rows.stop, height):
            yield slice(start, start + together), slice(row, min(row + height, rows.stop))
