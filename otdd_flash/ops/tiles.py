"""Job lists: which program does which tiles, where it writes partial sums, and who adds them up.

The blocks of a problem form a grid of row blocks x column blocks. A job is a rectangle of it; the triangle of a
symmetric problem is cut by jobs that stop at the diagonal. Jobs are ordered so that those running at the same time
share rows and columns in the L2 cache. All lists are built once on the host and copied to the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_GROUP = 16  # column supers that walk down the rows together
_WAVES = 12  # jobs per running program that keep the last wave's idle share small
_WALK = 2048  # rows that a job walks down before its column sums leave the registers
_PARALLEL = 264  # programs running at once on the largest chip of interest


@dataclass(frozen=True)
class Extent:
    """One problem: sizes, first operand rows of its clouds, and where its potentials, sums and tiles start."""

    n: int
    m: int
    row_base: int
    col_base: int
    u: int
    v: int
    tile: int
    symmetric: bool
    r: int
    c: int


@dataclass(frozen=True)
class JobList:
    """Device lists of one activity pattern."""

    jobs: Tensor  # (jobs, 16) int64
    sums: Tensor  # (outputs, 8) int64


def ceil_div(x: int, y: int) -> int:
    """Smallest integer not below ``x / y``."""
    return -(-x // y)


def tile_count(extent: Extent, block_m: int, block_n: int) -> int:
    """Tiles that a problem needs; a symmetric one up to its diagonal blocks."""
    columns = ceil_div(extent.m, block_n)
    if extent.symmetric:
        return columns * (columns + 1) // 2 * (block_n // block_m)
    return columns * ceil_div(extent.n, block_m)


class TilePlan:
    """Jobs of a batch of problems for one tile shape.

    Args:
        extents: the problems.
        block_m: rows of a tile.
        block_n: columns of a tile.
        deterministic: give every job its own slot of row and column sums; otherwise jobs add atomically to one.
        slot_bytes: bound for the memory of the slots.
    """

    def __init__(self, extents: list[Extent], block_m: int, block_n: int, *, deterministic: bool, slot_bytes: int):
        self.extents, self.block_m, self.block_n, self.deterministic = extents, block_m, block_n, deterministic
        total = sum(tile_count(e, block_m, block_n) for e in extents)
        self.rows_per_job, self.cols_per_job = 1, 1
        while total // (2 * self.rows_per_job) >= _WAVES * _PARALLEL and self.rows_per_job * block_m < _WALK:
            self.rows_per_job *= 2
        while 4 * self._slots() > slot_bytes and total > self.rows_per_job * self.cols_per_job:
            self._grow()
        self.slots = self._slots()
        offsets = [0]
        for extent in extents:
            offsets.append(offsets[-1] + self._slots_of(extent))
        self._jobs = [self._problem_jobs(e, o) for e, o in zip(extents, offsets, strict=False)]
        self._sums = [self._problem_sums(e, o) for e, o in zip(extents, offsets, strict=False)]

    def jobs(self, active: list[bool] | None, device: torch.device) -> JobList:
        """The lists of the active problems, on ``device``."""
        keep = [i for i in range(len(self.extents)) if active is None or active[i]]
        return JobList(
            torch.cat([self._jobs[i] for i in keep]).to(device), torch.cat([self._sums[i] for i in keep]).to(device)
        )

    def _grow(self) -> None:
        """Double the job along the side that saves more slots."""
        shapes = [self._shape(extent) for extent in self.extents]
        if sum(rows * job_cols for rows, _, _, job_cols in shapes) >= sum(
            cols * height for _, cols, height, _ in shapes
        ):
            self.cols_per_job *= 2
        else:
            self.rows_per_job *= 2

    def _shape(self, extent: Extent) -> tuple[int, int, int, int]:
        """Padded rows and columns, job rows and job columns of a problem."""
        rows, cols = (ceil_div(size, self.block_n) * self.block_n for size in (extent.n, extent.m))
        job_rows, job_cols = self.block_m * self.rows_per_job, self.block_n * self.cols_per_job
        return rows, cols, ceil_div(rows, job_rows), ceil_div(cols, job_cols)

    def _slots_of(self, extent: Extent) -> int:
        rows, cols, job_rows, job_cols = self._shape(extent)
        return rows * job_cols + cols * job_rows if self.deterministic else rows + cols

    def _slots(self) -> int:
        return sum(self._slots_of(extent) for extent in self.extents)

    def _problem_jobs(self, extent: Extent, offset: int) -> Tensor:
        """``(jobs, 16)`` rows of one problem, in the order in which they should start."""
        import numpy as np

        rows, cols, job_rows, job_cols = self._shape(extent)
        if not self.deterministic:
            slot_rows = slot_cols = 0
        else:
            slot_rows, slot_cols = rows, cols
        col_offset = offset + (rows * job_cols if self.deterministic else rows)
        i, j = (grid.reshape(-1) for grid in np.indices((job_rows, job_cols)))
        row_blocks, col_blocks = ceil_div(extent.n, self.block_m), ceil_div(extent.m, self.block_n)
        col_last = np.minimum((j + 1) * self.cols_per_job, col_blocks)
        if extent.symmetric:
            row_blocks = col_blocks * (self.block_n // self.block_m)
            used = i * self.rows_per_job * self.block_m < col_last * self.block_n
            i, j, col_last = i[used], j[used], col_last[used]
        order = np.argsort((j // _GROUP) * (job_rows * _GROUP) + i * _GROUP + j % _GROUP)
        i, j, col_last = i[order], j[order], col_last[order]
        out = np.zeros((len(i), 16), dtype=np.int64)
        constant = {
            0: extent.row_base, 1: extent.col_base, 2: extent.u, 3: extent.v, 4: extent.row_base + extent.n,
            11: extent.tile, 12: row_blocks, 13: int(extent.symmetric),
        }  # fmt: skip
        for column, value in constant.items():
            out[:, column] = value
        out[:, 5], out[:, 6] = i * self.rows_per_job, np.minimum((i + 1) * self.rows_per_job, row_blocks)
        out[:, 7], out[:, 8] = j * self.cols_per_job, col_last
        out[:, 9], out[:, 10] = offset + j * slot_rows, col_offset + i * slot_cols
        return torch.from_numpy(out)

    def _problem_sums(self, extent: Extent, offset: int) -> Tensor:
        """``(outputs, 8)`` rows: which slots make each block of ``block_n`` sums."""
        import numpy as np

        rows, cols, job_rows, job_cols = self._shape(extent)
        own = self.deterministic
        col_offset = offset + (rows * job_cols if own else rows)
        slot_rows, slot_cols = (rows, cols) if own else (0, 0)
        row_out, col_out = (np.zeros((size // self.block_n, 8), dtype=np.int64) for size in (rows, cols))
        at = np.arange(len(row_out))
        row_out[:, 0], row_out[:, 1] = extent.r + at * self.block_n, -1
        row_out[:, 2], row_out[:, 3], row_out[:, 4] = offset + at * self.block_n, slot_rows, job_cols if own else 1
        if extent.symmetric:
            first = at // self.cols_per_job
            above = -(-at * self.block_n // (self.rows_per_job * self.block_m))
            row_out[:, 1] = extent.c + at * self.block_n
            row_out[:, 2] += first * slot_rows
            row_out[:, 4] = (job_cols - first) if own else 1
            row_out[:, 5], row_out[:, 6] = col_offset + at * self.block_n, slot_cols
            row_out[:, 7] = above if own else 1
            return torch.from_numpy(row_out)
        at = np.arange(len(col_out))
        col_out[:, 0], col_out[:, 1] = extent.c + at * self.block_n, -1
        col_out[:, 2], col_out[:, 3] = col_offset + at * self.block_n, slot_cols
        col_out[:, 4] = job_rows if own else 1
        return torch.from_numpy(np.concatenate([row_out, col_out]))
