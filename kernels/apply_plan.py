"""The plan times a matrix, from potentials that are already known.

    O_ic = sum_j 2^(scale S_ij + u_i + v_j - table_ij) V_jc

A program owns one row block, one chunk of columns of ``V`` and a range of column blocks (a split). It streams operand
tiles (or stored scores, which hold the table) and ``V``, which is stored transposed, because TF32 wants both operands
along the sum. ``O`` stays in float32 registers; there is no running maximum. The plan tile and ``V`` are multiplied as
three TF32 products (relative error near 1e-6).
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import add_labels, score_tile, stored_tile


@triton.jit(
    do_not_specialize=[
        "row_base", "col_base", "row_end", "col_blocks", "split_blocks", "classes", "main", "half", "pitch", "kind",
    ]
)  # fmt: skip
def _apply_plan_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, u, v, values, out,
    row_base, col_base, row_end, col_blocks, split_blocks, values_pitch, out_pitch, out_split, pitch, kind,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, STORED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    row_base, col_base = row_base.to(tl.int64), col_base.to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M
    chunk = tl.program_id(1).to(tl.int64) * BLOCK_W + tl.arange(0, BLOCK_W)
    split = tl.program_id(2)
    uu = tl.load(u + row + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    acc = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
    for col_block in range(split * split_blocks, tl.minimum((split + 1) * split_blocks, col_blocks)):
        col = col_block * BLOCK_N
        vv = tl.load(v + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
        if STORED:
            score = stored_tile(tiles, row, col, pitch.to(tl.int64), kind, BLOCK_M, BLOCK_N, STORED) * scale
        else:
            dots = score_tile(
                rows, cols, row_base + row, col_base + col, width, main, half, MODE, TMA,
                BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            score = dots.to(tl.float32) * scale
            if LABELS:
                score = add_labels(
                    score, labels, table, row_base + row, col_base + col, row_end, classes, table_scale,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
        plan = tl.exp2(score + (uu[:, None] + vv[None, :]))  # [BLOCK_M, BLOCK_N]
        right = tl.load(values + chunk[:, None] * values_pitch + col + tl.arange(0, BLOCK_N)[None, :])
        acc = tl.dot(plan, tl.trans(right), acc, input_precision="tf32x3")
    at = split.to(tl.int64) * out_split + (row + tl.arange(0, BLOCK_M))[:, None] * out_pitch + chunk[None, :]
    tl.store(out + at, acc)


def apply_plan(source, exponents, values, out, *, rows, cols, strips, config) -> None:
    """Write ``splits`` partial products into ``out (splits, padded rows, padded width)``.

    Args:
        source: where the scores come from.
        exponents: ``(u, v)`` of the problem, float32, padded with ``-inf``.
        values: ``(padded width of V, padded columns)`` float32, V transposed.
        out: written whole.
        rows: ``(first operand row, end operand row, row blocks)``.
        cols: ``(first operand row, column blocks, column blocks per split)``.
        strips: ``(strip height, kind)`` of :func:`otdd_flash.kernels.primitives.stored_tile` for stored scores.
        config: block sizes, warps and stages.
    """
    u, v = exponents
    splits, _, out_width = out.shape
    _apply_plan_kernel[(rows[2], out_width // config.block_w, splits)](
        *source.arguments(u), u, v, values, out, rows[0], cols[0], rows[1], cols[1], cols[2], values.stride(0),
        out.stride(1), out.stride(0), *strips, MODE=config.mode, LABELS=source.labelled, TMA=config.tma,
        STORED=config.stored, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        BLOCK_W=config.block_w, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
