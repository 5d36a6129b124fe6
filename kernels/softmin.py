"""Safe half step: log-sum-exp of every row of a problem with a running maximum.

    M_i + log2 L_i = log2 sum_j 2^(scale S_ij + v_j - table_ij)

A program owns one row block and a range of column blocks (a split); it streams operand tiles (or stored scores, which
hold the table) and writes the pair ``(M, L)`` of its split. Used where the potentials are no shift yet: cold starts and
restarts of single rows. The columns of a problem are the rows of its transpose.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import base_two_score

SOFTMIN_FIELDS = 16


@triton.jit(do_not_specialize=["classes", "main", "half"])
def _softmin_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale,
    exponent, jobs, peak, total,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, STORED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    row_base, col_base = tl.load(job), tl.load(job + 1)
    v = exponent + tl.load(job + 2)
    row_end = tl.load(job + 3)
    row = tl.load(job + 4) * BLOCK_M
    col_first, col_last = tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)
    out = tl.load(job + 7) + row + tl.arange(0, BLOCK_M)
    tiles += tl.load(job + 8)
    pitch, kind = tl.load(job + 9), tl.load(job + 10)
    high = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    for col_block in range(col_first, col_last):
        col = col_block * BLOCK_N
        vv = tl.load(v + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
        score = base_two_score(
            rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, row_base, col_base,
            row_end, row, col, pitch, kind, MODE, LABELS, TMA, STORED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        score += vv[None, :]
        new = tl.maximum(high, tl.max(score, 1))
        shift = tl.where(new == -float("inf"), 0.0, new)  # all columns so far have weight zero
        mass = mass * tl.exp2(high - shift) + tl.sum(tl.exp2(score - shift[:, None]), 1)
        high = new
    tl.store(peak + out, high)
    tl.store(total + out, mass)


def softmin(source, exponent, jobs, peak, total, *, config) -> None:
    """Write ``(M, L)`` of every job into ``peak`` and ``total`` (float32).

    Args:
        source: where the scores come from.
        exponent: ``u`` and ``v`` of all problems, float32.
        jobs: ``(jobs, SOFTMIN_FIELDS)`` int64: row base, column base, v offset, row end, row block, first and last
            column block, output offset, first stored score, strip height, kind of ``stored_tile``.
        peak: ``M``, one value per row and split.
        total: ``L``, likewise.
        config: block sizes, warps and stages.
    """
    _softmin_kernel[(jobs.shape[0],)](
        *source.arguments(exponent), exponent, jobs, peak, total, MODE=config.mode, LABELS=source.labelled,
        TMA=config.tma, STORED=config.stored, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        FIELDS=SOFTMIN_FIELDS, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
