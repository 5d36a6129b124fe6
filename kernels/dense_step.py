"""One averaged Sinkhorn step of small problems from stored costs: all potentials of a batch in one launch.

    s_ij = h_j - slope C_ij        f_i <- kept f_i + factor log2 sum_j 2^s_ij        h_i <- next_slope f_i + log2 a_i

with ``slope = log2(e) / eps``, ``factor = -(1 - kept) damping eps log(2)``. Points of both clouds are rows of one
matrix: a program owns a block of rows of one cloud, and sums over the columns of the other cloud (kind 0, the cross
problem) or of its own (kind 1, a self problem). So every cost is read once a step, no sum is shared between programs,
and a running maximum makes it safe from any start. Potentials are float64, exponents float32.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.potentials import two_parts


@triton.jit
def row_block(n, m, block, ROWS: tl.constexpr):
    """First row of a block, the end of its cloud, and whether that is the second; no block holds rows of both."""
    blocks = tl.cdiv(n, ROWS)
    second = block >= blocks
    return tl.where(second, n + (block - blocks) * ROWS, block * ROWS), tl.where(second, n + m, n), second


@triton.jit
def column_range(n, m, second, own):
    """Columns that rows of the first or ``second`` cloud see: those of the other cloud, or their ``own``."""
    far = second == own
    return tl.where(far, n, 0), tl.where(far, n + m, n)


@triton.jit(do_not_specialize=["n", "m"])
def _dense_step_kernel(
    costs, log_weights, old, new, seen, next_seen, n, m, slope, factor_hi, factor_lo, kept, next_hi, next_lo,
    ALIGNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    if ALIGNED:
        n, m = tl.multiple_of(n, 16), tl.multiple_of(m, 16)
    size = n + m
    own, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, row_end, second = row_block(n, m, tl.program_id(0), BLOCK_M)
    col, col_end = column_range(n, m, second, own != 0)
    vector = (batch * tl.num_programs(1) + own) * size
    rows = row + tl.arange(0, BLOCK_M)
    inside = rows < row_end
    line = costs + (batch * size + rows.to(tl.int64)) * size  # [BLOCK_M]
    peak = tl.full([BLOCK_M], -1e38, tl.float32)  # finite: what is seen of points of weight zero is -inf
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(col, col_end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        there = cols < col_end
        h = tl.load(seen + vector + cols, mask=there, other=-float("inf"))  # [BLOCK_N]
        cost = tl.load(line[:, None] + cols[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        score = h[None, :] - cost * slope  # [BLOCK_M, BLOCK_N]
        higher = tl.maximum(peak, tl.max(score, 1))
        total = total * tl.exp2(peak - higher) + tl.sum(tl.exp2(score - higher[:, None]), 1)
        peak = higher
    log_sum = peak.to(tl.float64) + tl.log2(total).to(tl.float64)
    moved = log_sum * factor_hi + log_sum * factor_lo
    moved += kept * tl.load(old + vector + rows, mask=inside, other=0.0)
    weight = tl.load(log_weights + batch * size + rows, mask=inside, other=0.0)
    tl.store(new + vector + rows, moved, mask=inside)
    tl.store(next_seen + vector + rows, (moved * next_hi + moved * next_lo + weight).to(tl.float32), mask=inside)


def dense_step(
    costs, log_weights, old, new, seen, next_seen, *, n: int, slope: float, factor: float, kept: float,
    next_slope: float, config,
) -> None:  # fmt: skip
    """Write potentials ``new`` and what the next step sees of them.

    Args:
        costs: ``(B, N, N)`` float32, ``N = n + m``.
        log_weights: ``(B, N)`` float64, base 2.
        old: ``(B, K, N)`` float64 potentials; may be ``new``.
        new: the same.
        seen: ``(B, K, N)`` float32, ``log2(e) / eps`` times the old potentials plus the log weights.
        next_seen: the same for the new ones at the next epsilon; not ``seen``.
        n: points of the first cloud.
        slope: ``log2(e) / eps``.
        factor: of the base 2 logarithm of the sums.
        kept: share of the old potentials.
        next_slope: ``log2(e)`` over the next epsilon.
        config: block sizes and warps.
    """
    batch, kinds, size = old.shape
    m = size - n
    grid = triton.cdiv(n, config.block_m) + triton.cdiv(m, config.block_m), kinds, batch
    _dense_step_kernel[grid](
        costs, log_weights, old, new, seen, next_seen, n, m, slope, *two_parts(factor), kept, *two_parts(next_slope),
        ALIGNED=n % 16 == 0 and m % 16 == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n, num_warps=config.warps,
        num_stages=config.stages,
    )  # fmt: skip
