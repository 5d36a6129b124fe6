"""The plan of one problem of the Triton backend times a matrix: narrow ones in one kernel, wide ones through memory.

A wide matrix would have the kernel compute every score once per 128 of its columns. It is cheaper to write a rectangle
of the plan in float16 and let the matrix library multiply it, rectangle by rectangle: O(1) memory, every score once.

Both factors are float16 pieces; rows of the plan are scaled to sum to ``2^SHIFT``. That holds for potentials that
nearly meet the row marginals, and is looked at: where it fails, exact row sums by a safe half step take the place of
the weights.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from otdd_flash.kernels.apply_plan import SHIFT, apply_plan
from otdd_flash.kernels.plan_tiles import plan_tiles
from otdd_flash.kernels.potentials import exponents
from otdd_flash.kernels.source import ScoreSource
from otdd_flash.ops import tuning
from otdd_flash.ops.sweeps import strip_height
from otdd_flash.ops.tiles import ceil_div

if TYPE_CHECKING:
    from otdd_flash.ops.fused import FusedOperator

_RECTANGLE = (2048, 16384)  # rows and columns of the plan in memory at a time: 64 MiB a piece
_SUMS = (2.0**-10, 2.0**5)  # of a row, as a fraction of its weight, between which float16 holds its entries
ROUNDED_ONCE = ("fp16", "tf32")  # modes whose scores carry ten bits: so may the plan
_CHUNK = 1 << 23  # elements of the right-hand side handled at a time


@dataclass(frozen=True, eq=False)
class Halves:
    """A matrix as float16 pieces, ``V_jc = (high + low)_jc 2^-shift_c``, padded with zeros.

    Args:
        high: ``(padded rows, padded columns)``.
        low: what rounding to ``high`` left.
        shift: ``(columns,)`` float32, whole numbers.
    """

    high: Tensor
    low: Tensor
    shift: Tensor

    @classmethod
    def split(cls, values: Tensor, order: Tensor | None, shape: tuple[int, int]) -> Halves:
        """Split ``values`` with rows in ``order``, a block of rows at a time."""
        rows, columns = values.shape
        peak = torch.linalg.vector_norm(values, math.inf, dim=0).to(torch.float32)
        shift = torch.where(peak > 0, 14.0 - torch.frexp(peak)[1], 0.0).clamp_max(126.0)
        scale = torch.exp2(shift).to(values.dtype)
        high = torch.zeros(shape, dtype=torch.float16, device=values.device)
        low = torch.zeros_like(high)
        step = max(1, _CHUNK // max(columns, 1))
        for start in range(0, rows, step):
            at = slice(start, min(start + step, rows))
            part = (values[at] if order is None else values[order[at]]) * scale
            high[at, :columns] = part
            low[at, :columns] = part - high[at, :columns]
        return cls(high, low, shift)


class PlanRows:
    """The plan of one problem, or its transpose, with all that does not depend on what it is multiplied with.

    Args:
        operator: packed clouds, and stored scores where there are any.
        problem: position of the problem.
        potentials: of the rows of the product and of its columns, in the clouds' order.
        epsilon: in units of the cost.
        transposed: the rows of the product are the columns of the problem.
    """

    def __init__(
        self, operator: FusedOperator, problem: int, potentials: tuple[Tensor, Tensor], epsilon: float, *,
        transposed: bool,
    ) -> None:  # fmt: skip
        self.operator: FusedOperator = weakref.proxy(operator)  # it keeps this: a cycle would hold its GPU memory
        self.problem, self.epsilon, self.transposed = problem, epsilon, transposed
        self.i, self.j = operator.problems[problem][::-1] if transposed else operator.problems[problem]
        self.n, self.m = (operator.cost.clouds[k].n for k in (self.i, self.j))
        self.extent = operator.extents[problem]
        self.exact = operator.packed.mode not in ROUNDED_ONCE
        self.potentials = potentials
        self.factor = operator.cost.clouds[self.i].weights * 2.0**-SHIFT
        self._sides = self._exponents(*potentials)
        self._in_range = False

    def times(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """``(P V, P 1)`` for ``V (m, w)``: ``(n, w)`` in the dtype of ``V`` and ``(n,)`` float64."""
        if values.dim() != 2 or len(values) != self.m:
            raise ValueError(f"the matrix must have one row for each of the {self.m} points, got {tuple(values.shape)}")
        sums, out = self._multiply(values)
        if not self._in_range:
            self._in_range = True
            share = sums * 2.0**-SHIFT
            wrong = ~((share >= _SUMS[0]) & (share <= _SUMS[1])) & (self.factor > 0)  # NaN is wrong too
            if bool(wrong.any()):
                self._normalise()
                sums, out = self._multiply(values)
        out.mul_(self.factor[:, None].to(out.dtype))
        return out, sums * self.factor

    def _normalise(self) -> None:
        """Let the rows sum to exactly their scale, by the potential that meets their marginals: a safe half step."""
        left, right = self.potentials
        op, rows = self.operator, not self.transposed
        like = op.b if rows else op.a
        batch = torch.zeros_like(like)
        batch[self.problem] = (op.pack_columns if rows else op.pack_rows)(right, self.problem)
        found = op.softmin(batch, self.epsilon, side="rows" if rows else "columns")[self.problem]
        safe = (op.unpack_rows if rows else op.unpack_columns)(found, self.problem)
        self.factor = self.factor * ((left - safe) / self.epsilon).exp()
        self._sides = self._exponents(safe, right)

    def _multiply(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Row sums ``(n,)`` float64 and the product ``(n, w)``, both for rows of weight ``2^SHIFT``."""
        width = values.shape[1]
        narrow = width <= tuning.WIDEST_IN_KERNEL
        out, sums = (self._in_kernel if narrow else self._through_memory)(self._sides, values)
        out, sums = out[: self.n].to(values.dtype), sums[: self.n]
        order = self.operator.packed.order[self.i]
        if order is None:
            return sums, out
        product, mass = torch.empty_like(out), torch.empty_like(sums)
        product[order], mass[order] = out, sums
        return mass, product

    def _exponents(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Exponents of the rows, shifted to sum to ``2^SHIFT``, and of the columns."""
        op, p = self.operator, self.problem
        packs = (op.pack_columns, op.pack_rows) if self.transposed else (op.pack_rows, op.pack_columns)
        potentials = [pack(potential, p) for pack, potential in zip(packs, (left, right), strict=True)]
        (alpha, other), (weight, other_weight) = (
            op.of_problem(t, p)[:: -1 if self.transposed else 1] for t in (op.alpha, op.log_weight)
        )
        unit = torch.where(weight > -math.inf, float(SHIFT), weight)
        both = torch.empty(len(alpha) + len(other), dtype=torch.float32, device=alpha.device)
        exponents(
            potentials[0][None], potentials[1][None], torch.cat([alpha, other]), torch.cat([unit, other_weight]),
            op.slopes(self.epsilon)[1], both,
        )  # fmt: skip
        return both[: len(alpha)], both[len(alpha) :]

    def _in_kernel(self, sides: tuple[Tensor, Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
        op, width = self.operator, values.shape[1]
        config = tuning.apply_config(op.packed.mode, width, op.arch, stored=op.strip, exact=self.exact)
        padded = ceil_div(max(width, 1), config.block_w) * config.block_w
        row_blocks, col_blocks = ceil_div(self.n, config.block_m), ceil_div(self.m, config.block_n)
        halves = Halves.split(values, op.packed.order[self.j], (col_blocks * config.block_n, padded))
        chunks = padded // config.block_w
        share = ceil_div(col_blocks, min(col_blocks, 16, ceil_div(512, row_blocks * chunks)))
        splits, height = ceil_div(col_blocks, share), row_blocks * config.block_m
        out = torch.empty(splits, height, padded, dtype=torch.float32, device=values.device)
        mass = torch.empty(splits, height, dtype=torch.float32, device=values.device)
        first = op.packed.offsets[self.i]
        apply_plan(
            self._source(config), sides, (halves.high, halves.low), out, mass,
            rows=(first, first + self.n, row_blocks), cols=(op.packed.offsets[self.j], col_blocks, share),
            strips=self._strips(), exact=self.exact, config=config,
        )  # fmt: skip
        summed = out[0] if splits == 1 else out.sum(0, dtype=torch.float64)
        return summed[:, :width] * torch.exp2(-halves.shift), mass.sum(0, dtype=torch.float64)

    def _through_memory(self, sides: tuple[Tensor, Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
        op, width = self.operator, values.shape[1]
        config = tuning.plan_tiles_config(op.packed.mode, op.arch, stored=op.strip)
        rows = ceil_div(self.n, config.block_m) * config.block_m
        cols = ceil_div(self.m, config.block_n) * config.block_n
        height, breadth = min(rows, _RECTANGLE[0]), min(cols, _RECTANGLE[1] // (2 if self.exact else 1))
        padded = ceil_div(width + 1, 8) * 8
        halves = Halves.split(values, op.packed.order[self.j], (cols, padded))
        halves.high[: self.m, width] = 1.0  # row sums of the plan as rounded
        high = torch.empty(height * breadth, dtype=torch.float16, device=values.device)
        low = torch.empty_like(high) if self.exact else None
        out = torch.zeros(rows, padded, dtype=torch.float32, device=values.device)
        source, first = self._source(config), op.packed.offsets[self.i]
        for row in range(0, rows, height):
            tall = min(height, rows - row)
            for col in range(0, cols, breadth):
                wide = min(breadth, cols - col)
                block, rest = (None if t is None else t[: tall * wide].view(tall, wide) for t in (high, low))
                assert block is not None
                plan_tiles(
                    source, sides, (block, rest), at=(row, col), strips=self._strips(), config=config,
                    bases=((first, first + self.n), op.packed.offsets[self.j]),
                )  # fmt: skip
                at, part = out[row : row + tall], slice(col, col + wide)
                _accumulate(at, block, halves.high[part])
                _accumulate(at, block, halves.low[part])
                if rest is not None:
                    _accumulate(at, rest, halves.high[part])
        out[:, :width].mul_(torch.exp2(-halves.shift))
        return out[:, :width], out[:, width].to(torch.float64)

    def _source(self, config: tuning.KernelConfig) -> ScoreSource:
        op = self.operator
        source = op.source(config, self.epsilon, stored=op.strip > 0)
        if source.tiles is None:
            return source
        stored = op.stored_config
        return replace(source, tiles=source.tiles[self.extent.tile * stored.block_m * stored.block_n :])

    def _strips(self) -> tuple[int, int]:
        kind = 2 if self.extent.symmetric else int(self.transposed)
        return strip_height(self.extent, self.operator.stored_config), kind


def _accumulate(out: Tensor, left: Tensor, right: Tensor) -> None:
    """``out += left @ right`` of float16 matrices, in float32."""
    if left.is_cuda:
        out.add_(torch.mm(left, right, out_dtype=torch.float32))
    else:
        out.add_(left.to(torch.float32) @ right.to(torch.float32))
