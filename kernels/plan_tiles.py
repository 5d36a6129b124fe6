"""A rectangle of the plan in float16, for products with matrices so wide that scores should not be computed per chunk.

    H_ij + L_ij = 2^(scale S_ij + u_i + v_j - table_ij)

A program owns one tile. It streams operand tiles (or stored scores, which hold the table) and writes two bytes an
entry, or four where the low pieces are wanted too. The exponents ``u`` are shifted as in ``apply_plan``. A library's
matrix product does the rest.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import base_two_score, split_half


@triton.jit(
    do_not_specialize=["row_base", "col_base", "row_end", "row", "col", "classes", "main", "half", "pitch", "kind"]
)
def _plan_tiles_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, u, v, high, low, out_pitch,
    row_base, col_base, row_end, row, col, pitch, kind,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, STORED: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row_base, col_base, pitch = row_base.to(tl.int64), col_base.to(tl.int64), pitch.to(tl.int64)
    in_rows = tl.program_id(0).to(tl.int64) * BLOCK_M
    in_cols = tl.program_id(1).to(tl.int64) * BLOCK_N
    row, col = row.to(tl.int64) + in_rows, col.to(tl.int64) + in_cols
    uu = tl.load(u + row + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    vv = tl.load(v + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
    score = base_two_score(
        rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, row_base, col_base,
        row_end, row, col, pitch, kind, MODE, LABELS, TMA, STORED, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    plan_high, plan_low = split_half(tl.exp2(score + (uu[:, None] + vv[None, :])))
    at = (in_rows + tl.arange(0, BLOCK_M))[:, None] * out_pitch + (in_cols + tl.arange(0, BLOCK_N))[None, :]
    tl.store(high + at, plan_high)
    if EXACT:
        tl.store(low + at, plan_low)


def plan_tiles(source, exponents, halves, *, at, bases, strips, config) -> None:
    """Write the plan from row ``at[0]`` and column ``at[1]`` on into ``halves``.

    Args:
        source: where the scores come from.
        exponents: ``(u, v)`` of the problem, float32, padded with ``-inf`` to whole tiles.
        halves: float16 rectangles of whole tiles: high pieces, and low ones or ``None``.
        at: first row and column of the problem, multiples of the block sizes.
        bases: ``(first operand row, end operand row)`` of the rows and first operand row of the columns.
        strips: as in :func:`otdd_flash.kernels.apply_plan.apply_plan`.
        config: block sizes, warps and stages.
    """
    (u, v), (high, low) = exponents, halves
    (first, end), col_base = bases
    _plan_tiles_kernel[(high.shape[0] // config.block_m, high.shape[1] // config.block_n)](
        *source.arguments(u), u, v, high, high if low is None else low, high.stride(0), first, col_base, end, *at,
        *strips, MODE=config.mode, LABELS=source.labelled, TMA=config.tma, STORED=config.stored,
        EXACT=low is not None, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
