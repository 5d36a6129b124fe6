"""Which scores are stored and which are computed anew in every pass, and the job lists of both.

A pass over a batch is one sweep per tile shape: the stored scores in one, the rest in another. Both add to the same
marginals, so a problem that does not fit the memory at hand is cut by columns: the first ones are stored, the others
streamed. Symmetric problems are stored whole or not at all (a cut triangle would be a triangle and a rectangle).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from otdd_flash.ops.tiles import Extent, JobList, TilePlan, ceil_div, tile_count
from otdd_flash.ops.tuning import KernelConfig

ALIGN = 256  # layouts are padded to a multiple of this and problems are cut at one; every block size divides it
_PATTERNS = 32  # job lists kept, one per activity pattern

Piece = tuple[int, Extent]  # a problem, and the part of it that a sweep does


class Sweep:
    """The tiles of one shape: jobs, slots of partial sums, job lists of the activity patterns met so far.

    Args:
        pieces: parts of problems; no two write the same sums.
        config: tile shape.
        stored: scores are read from memory.
        deterministic: fixed summation order.
        slot_bytes: bound for the memory of the partial sums.
    """

    def __init__(
        self, pieces: list[Piece], config: KernelConfig, *, stored: bool, deterministic: bool, slot_bytes: int
    ) -> None:
        self.owners = [problem for problem, _ in pieces]
        self.config, self.stored = config, stored
        self.plan = TilePlan(
            [extent for _, extent in pieces], config.block_m, config.block_n, deterministic=deterministic,
            slot_bytes=slot_bytes,
        )  # fmt: skip
        self._lists: dict[tuple[bool, ...] | None, JobList | None] = {}

    def jobs(self, active: Tensor | None, device: torch.device) -> JobList | None:
        """Job list of an activity pattern of the problems, built once; ``None`` where there is nothing to do."""
        key = None if active is None or bool(active.all()) else tuple(active.tolist())
        if key not in self._lists:
            if len(self._lists) >= _PATTERNS:  # a recorded pass reads its list again: the least recently used goes
                self._lists.pop(next(k for k in self._lists if k is not None))
            pieces = None if key is None else [key[problem] for problem in self.owners]
            self._lists[key] = self.plan.jobs(pieces, device) if pieces is None or any(pieces) else None
        self._lists[key] = self._lists.pop(key)
        return self._lists[key]


def divide(extents: list[Extent], capacity: int, config: KernelConfig) -> tuple[list[Piece], list[Piece]]:
    """Pieces of which the scores are stored, and pieces that are streamed.

    Args:
        extents: the problems.
        capacity: scores that may be stored.
        config: shape of stored tiles.

    Returns:
        Whole problems while they fit, symmetric ones first, then the first columns of those that do not; and the rest.
        Stored pieces have their place among the tiles.
    """
    room = capacity // (config.block_m * config.block_n)
    stored: list[Piece] = []
    streamed: list[Piece] = []
    used = 0
    for problem in sorted(range(len(extents)), key=lambda p: not extents[p].symmetric):
        extent = replace(extents[problem], tile=used)
        count = tile_count(extent, config.block_m, config.block_n)
        if used + count <= room:
            stored.append((problem, extent))
            used += count
            continue
        strip = ceil_div(extent.n, config.block_m)  # tiles of a column block
        fitting = 0 if extent.symmetric else (room - used) // strip * config.block_n
        columns = fitting // ALIGN * ALIGN
        if columns:
            stored.append((problem, _columns(extent, 0, columns)))
            used += columns // config.block_n * strip
        streamed.append((problem, _columns(extent, columns, extent.m) if columns else extent))
    return sorted(stored, key=lambda piece: piece[0]), sorted(streamed, key=lambda piece: piece[0])


def _columns(extent: Extent, first: int, last: int) -> Extent:
    """Columns ``first`` to ``last`` of a problem that is not symmetric, as a problem of its own."""
    return replace(extent, m=last - first, col_base=extent.col_base + first, v=extent.v + first, c=extent.c + first)


def softmin_jobs(
    extents: list[Extent],
    config: KernelConfig,
    *,
    rows: bool,
    fields: int,
    sizes: tuple[int, int],
    stored: KernelConfig,
) -> tuple[int, Tensor]:
    """Number of column splits and the jobs of ``softmin`` for one side.

    Args:
        extents: the problems, whole.
        config: tile shape of the kernel.
        rows: half steps of the rows, or of the columns.
        fields: width of a job.
        sizes: values in the row layout and in the column layout of all problems.
        stored: tile shape of stored scores.
    """
    blocks = sum(ceil_div(e.n if rows else e.m, config.block_m) for e in extents)
    longest = max(ceil_div(e.m if rows else e.n, config.block_n) for e in extents)
    splits = max(1, min(longest, ceil_div(512, blocks), 16))
    lists = []
    for e in extents:
        n, m, base, other = (e.n, e.m, e.row_base, e.col_base) if rows else (e.m, e.n, e.col_base, e.row_base)
        own = e.r if rows else e.c - sizes[0]
        block, split = (
            t.reshape(-1)
            for t in torch.meshgrid(torch.arange(ceil_div(n, config.block_m)), torch.arange(splits), indexing="ij")
        )
        col_blocks = ceil_div(m, config.block_n)
        share = ceil_div(col_blocks, splits)
        out = torch.zeros(len(block), fields, dtype=torch.int64)
        for column, value in enumerate((base, other, e.c if rows else e.r, base + n)):
            out[:, column] = value
        out[:, 4], out[:, 5] = block, (split * share).clamp_max(col_blocks)
        out[:, 6], out[:, 7] = ((split + 1) * share).clamp_max(col_blocks), own + split * sizes[0 if rows else 1]
        out[:, 8], out[:, 9] = e.tile * stored.block_m * stored.block_n, strip_height(e, stored)
        out[:, 10] = 2 if e.symmetric else 0 if rows else 1
        lists.append(out)
    return splits, torch.cat(lists)


def strip_height(extent: Extent, stored: KernelConfig) -> int:
    """Rows of a strip of stored scores of a problem that is not symmetric."""
    return ceil_div(extent.n, stored.block_m) * stored.block_m
