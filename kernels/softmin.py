"""Safe half step: log-sum-exp of every row of a problem with a running maximum.

    M_i + log2 L_i = log2 sum_j 2^(scale S_ij + v_j - table_ij)

A program owns one row block and a range of column blocks (a split); it streams the operand tiles and writes the pair
``(M, L)`` of its split. Used where the potentials are no shift yet: cold starts and restarts of single rows.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import add_labels, score_tile


@triton.jit(do_not_specialize=["classes"])
def _softmin_kernel(
    rows, cols, exponent, labels, table, jobs, peak, total,
    width, pitch, classes, scale, table_scale,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    row_base, col_base = tl.load(job), tl.load(job + 1)
    v = exponent + tl.load(job + 2)
    row_end = tl.load(job + 3)
    row = tl.load(job + 4) * BLOCK_M
    col_first, col_last = tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)
    out = tl.load(job + 7) + row + tl.arange(0, BLOCK_M)
    high = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    for col_block in range(col_first, col_last):
        col = col_block * BLOCK_N
        vv = tl.load(v + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
        dots = score_tile(
            rows, cols, row_base + row, col_base + col, width, pitch,
            MODE, TMA, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        score = dots.to(tl.float32) * scale
        if LABELS:
            score = add_labels(
                score, labels, table, row_base + row, col_base + col, row_end, classes, table_scale, BLOCK_M, BLOCK_N
            )  # fmt: skip
        score += vv[None, :]
        new = tl.maximum(high, tl.max(score, 1))
        shift = tl.where(new == -float("inf"), 0.0, new)  # all columns so far have weight zero
        mass = mass * tl.exp2(high - shift) + tl.sum(tl.exp2(score - shift[:, None]), 1)
        high = new
    tl.store(peak + out, high)
    tl.store(total + out, mass)


def softmin(operand, exponent, labels, table, jobs, peak, total, *, scale, table_scale, config, fields: int) -> None:
    """Write ``(M, L)`` of every job into ``peak`` and ``total`` (float32).

    A job is ``(row base, column base, v offset, row end, row block, first and last column block, output offset)``.
    """
    rows, cols, width, pitch = operand
    _softmin_kernel[(jobs.shape[0],)](
        rows, cols, exponent, exponent if labels is None else labels, exponent if table is None else table, jobs, peak,
        total, width, pitch, 0 if table is None else table.shape[0], scale, table_scale, MODE=config.mode,
        LABELS=labels is not None, TMA=config.tma, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, FIELDS=fields, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
