"""The gradient by the points, from stored costs: one launch for both clouds of every pair of a batch.

    O_i = sum_j P_ij (z_i - z_j), less the same over the self problem        P_ij = 2^(e_i + h_j - slope C_ij)

``e_i`` is a float64 exponent, the new potential of the row and its log weight; ``h_j`` is what the last step saw. The
exponents of a row cancel in float64, so a plan has the row sums that the last step made, however large costs over
epsilon are. A program owns a block of rows of one cloud and a chunk of features; plans and points are multiplied in
three TF32 products, and row sums come from the same plans, so that what is common to ``z_i`` and ``z_j`` cancels.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.dense_step import column_range, row_block
from otdd_flash.kernels.potentials import two_parts


@triton.jit(do_not_specialize=["n", "m", "width"])
def _dense_pull_kernel(
    costs, points, log_weights, potentials, seen, out, n, m, width, slope, slope_hi, slope_lo,
    KINDS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    if ALIGNED:
        n, m = tl.multiple_of(n, 16), tl.multiple_of(m, 16)
    size = n + m
    batch = tl.program_id(2).to(tl.int64)
    row, row_end, second = row_block(n, m, tl.program_id(1), BLOCK_M)
    rows = row + tl.arange(0, BLOCK_M)
    inside = rows < row_end
    chunk = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    wide = chunk[None, :] < width
    line = costs + (batch * size + rows.to(tl.int64)) * size  # [BLOCK_M]
    cloud = points + batch * size * width + chunk[None, :]
    weight = tl.load(log_weights + batch * size + rows, mask=inside, other=-float("inf"))
    acc = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    for own in tl.static_range(KINDS):
        vector = (batch * KINDS + own) * size
        potential = tl.load(potentials + vector + rows, mask=inside, other=0.0)
        exponent = potential * slope_hi + potential * slope_lo + weight  # [BLOCK_M] float64
        col, col_end = column_range(n, m, second, own != 0)
        for start in range(col, col_end, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            there = cols < col_end
            h = tl.load(seen + vector + cols, mask=there, other=-float("inf"))  # [BLOCK_N]
            cost = tl.load(line[:, None] + cols[None, :], mask=inside[:, None] & there[None, :], other=0.0)
            score = (h[None, :] - cost * slope).to(tl.float64) + exponent[:, None]
            plan = tl.exp2(score.to(tl.float32))  # [BLOCK_M, BLOCK_N]
            if own != 0:
                plan = -plan
            z = tl.load(cloud + cols.to(tl.int64)[:, None] * width, mask=there[:, None] & wide, other=0.0)
            acc = tl.dot(plan, z, acc, input_precision="tf32x3")  # [BLOCK_M, BLOCK_W]
            sums += tl.sum(plan, 1)
    at = rows.to(tl.int64)[:, None] * width
    z = tl.load(cloud + at, mask=inside[:, None] & wide, other=0.0)
    tl.store(out + batch * size * width + at + chunk[None, :], sums[:, None] * z - acc, mask=inside[:, None] & wide)


def dense_pull(costs, points, log_weights, potentials, seen, out, *, n: int, slope: float, config) -> None:
    """Write ``out (B, N, d)`` float32 from ``points (B, N, d)``; the rest as in ``dense_step``."""
    batch, kinds, size = potentials.shape
    m, width = size - n, points.shape[2]
    blocks = triton.cdiv(n, config.block_m) + triton.cdiv(m, config.block_m)
    _dense_pull_kernel[(triton.cdiv(width, config.block_w), blocks, batch)](
        costs, points, log_weights, potentials, seen, out, n, m, width, slope, *two_parts(slope), KINDS=kinds,
        ALIGNED=n % 16 == 0 and m % 16 == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_W=config.block_w,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
