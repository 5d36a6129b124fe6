"""The plan times a narrow matrix, from potentials that are already known; row sums come with it.

    O_ic = sum_j 2^(scale S_ij + u_i + v_j - table_ij) V_jc        r_i = sum_j 2^(...)

A program owns one row block, one chunk of columns of ``V`` and a range of column blocks (a split). It streams operand
tiles (or stored scores, which hold the table) and ``V``; ``O`` and ``r`` stay in float32 registers, and there is no
running maximum. The plan tile and ``V`` are multiplied in float16: the exponents ``u`` are shifted so that a row sums
to about ``2^SHIFT``, which puts what matters of it into float16's range, and ``V`` comes in two pieces. EXACT splits
the plan in two as well; without it ``r`` sums the plan as rounded, so that ``r_i x_i - O_i`` cancels where it should.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import base_two_score, split_half

SHIFT = 10  # entries up to 64 times their row's weight stay finite; what is lost is under 2^-34 of that weight


@triton.jit(
    do_not_specialize=[
        "row_base", "col_base", "row_end", "col_blocks", "split_blocks", "classes", "main", "half", "pitch", "kind",
    ]
)  # fmt: skip
def _apply_plan_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, u, v, high, low, out, mass,
    row_base, col_base, row_end, col_blocks, split_blocks, values_pitch, out_pitch, out_split, pitch, kind,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, STORED: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    row_base, col_base, pitch = row_base.to(tl.int64), col_base.to(tl.int64), pitch.to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M
    chunk = tl.program_id(1).to(tl.int64) * BLOCK_W + tl.arange(0, BLOCK_W)
    split = tl.program_id(2)
    in_rows = row + tl.arange(0, BLOCK_M)
    uu = tl.load(u + in_rows)  # [BLOCK_M]
    acc = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    for col_block in range(split * split_blocks, tl.minimum((split + 1) * split_blocks, col_blocks)):
        col = col_block * BLOCK_N
        vv = tl.load(v + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
        score = base_two_score(
            rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, row_base, col_base,
            row_end, row, col, pitch, kind, MODE, LABELS, TMA, STORED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        plan = tl.exp2(score + (uu[:, None] + vv[None, :]))  # [BLOCK_M, BLOCK_N]
        plan_high, plan_low = split_half(plan)
        at = (col + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None] * values_pitch + chunk[None, :]
        right = tl.load(high + at)  # [BLOCK_N, BLOCK_W]
        acc = tl.dot(plan_high, right, acc)
        acc = tl.dot(plan_high, tl.load(low + at), acc)
        if EXACT:
            acc = tl.dot(plan_low, right, acc)
            sums += tl.sum(plan, 1)
        else:
            sums += tl.sum(plan_high.to(tl.float32), 1)
    tl.store(out + split.to(tl.int64) * out_split + in_rows[:, None] * out_pitch + chunk[None, :], acc)
    if tl.program_id(1) == 0:
        tl.store(mass + split.to(tl.int64) * tl.num_programs(0) * BLOCK_M + in_rows, sums)


def apply_plan(source, exponents, halves, out, mass, *, rows, cols, strips, exact, config) -> None:
    """Write ``splits`` partial products into ``out (splits, padded rows, padded width)``, row sums into ``mass``.

    Args:
        source: where the scores come from.
        exponents: ``(u, v)`` of the problem, float32, padded with ``-inf``.
        halves: ``V`` as float16 ``(padded columns, padded width)``, high and low pieces.
        out: float32, written whole.
        mass: ``(splits, padded rows)`` float32, written whole.
        rows: ``(first operand row, end operand row, row blocks)``.
        cols: ``(first operand row, column blocks, column blocks per split)``.
        strips: ``(strip height, kind)`` of :func:`otdd_flash.kernels.primitives.stored_tile` for stored scores.
        exact: split the plan too.
        config: block sizes, warps and stages.
    """
    (u, v), (high, low) = exponents, halves
    splits, _, out_width = out.shape
    _apply_plan_kernel[(rows[2], out_width // config.block_w, splits)](
        *source.arguments(u), u, v, high, low, out, mass, rows[0], cols[0], rows[1], cols[1],
        cols[2], high.stride(0), out.stride(1), out.stride(0), *strips, MODE=config.mode, LABELS=source.labelled,
        TMA=config.tma, STORED=config.stored, EXACT=exact, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, BLOCK_W=config.block_w, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
