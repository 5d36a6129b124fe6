"""Row and column sums of the plan from one product and one exponential per score.

    P_ij = 2^(scale S_ij + u_i + v_j - table_ij)        r_i = sum_j P_ij        c_j = sum_i P_ij

A program owns a job: a rectangle of row blocks x column blocks of one problem. It streams the operand tiles (or stored
scores), keeps the column sums of a column block in registers while it walks down the row blocks, and adds row sums to
its own slot of ``partial``; one writer per slot makes the additions ordered. No running maximum: the potentials are the
shift. Jobs of a symmetric problem hold the upper triangle only: a tile right of the diagonal block serves rows and
columns, a tile of the diagonal block (BLOCK_N wide) is whole and serves rows only.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import add_labels, score_tile

JOB_FIELDS = 16


@triton.jit(do_not_specialize=["classes"])
def _marginals_kernel(
    rows_hi, rows_lo, cols_hi, cols_lo, tiles, exponent, labels, table, jobs, partial,
    width, classes, scale, table_scale,
    MODE: tl.constexpr, CACHED: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    row_base, col_base = tl.load(job), tl.load(job + 1)  # operand rows where the two clouds start
    u, v = exponent + tl.load(job + 2), exponent + tl.load(job + 3)
    row_end = tl.load(job + 4)
    row_first, row_last = tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)
    col_first, col_last = tl.load(job + 7).to(tl.int32), tl.load(job + 8).to(tl.int32)
    row_sums, col_sums = partial + tl.load(job + 9), partial + tl.load(job + 10)
    tile_base, tile_pitch = tl.load(job + 11), tl.load(job + 12)
    symmetric = tl.load(job + 13) != 0
    in_rows, in_cols = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    in_tile = in_rows[:, None] * BLOCK_N + in_cols[None, :]
    for col_block in range(col_first, col_last):
        col = col_block * BLOCK_N
        vv = tl.load(v + col + in_cols)  # [BLOCK_N]
        sums = tl.zeros([BLOCK_N], tl.float32)
        stop = row_last
        tile = tile_base + col_block * tile_pitch
        if symmetric:
            stop = tl.minimum(row_last, (col_block + 1) * (BLOCK_N // BLOCK_M))
            tile = tile_base + col_block * (col_block + 1) // 2 * (BLOCK_N // BLOCK_M)
        for row_block in range(row_first, stop):
            row = row_block * BLOCK_M
            uu = tl.load(u + row + in_rows)  # [BLOCK_M]
            if CACHED:
                score = tl.load(tiles + (tile + row_block) * (BLOCK_M * BLOCK_N) + in_tile) * scale
            else:
                dots = score_tile(
                    rows_hi, rows_lo, cols_hi, cols_lo, row_base + row, col_base + col, width,
                    MODE, TMA, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
                score = dots.to(tl.float32) * scale
                if LABELS:
                    score = add_labels(
                        score, labels, table, row_base + row, col_base + col, row_end, classes, table_scale,
                        BLOCK_M, BLOCK_N,
                    )  # fmt: skip
            plan = tl.exp2(score + (uu[:, None] + vv[None, :]))
            tl.atomic_add(row_sums + row + in_rows, tl.sum(plan, 1), sem="relaxed")
            sums = tl.where(symmetric & (row >= col), sums, sums + tl.sum(plan, 0))
        tl.atomic_add(col_sums + col + in_cols, sums, sem="relaxed")


def marginals(operand, tiles, exponent, labels, table, jobs, partial, *, scale, table_scale, config) -> None:
    """Add the partial sums of all ``jobs`` to ``partial`` (float32, zeroed by the caller).

    Args:
        operand: descriptors or tensors ``(rows_hi, rows_lo, cols_hi, cols_lo)`` and the padded width.
        tiles: stored scores, or ``None``.
        exponent: ``u`` and ``v`` of all problems, float32.
        labels: ``(rows,)`` int32, or ``None``.
        table: ``(c, c)`` float32, or ``None``.
        jobs: ``(jobs, JOB_FIELDS)`` int64, see the kernel's first lines.
        partial: slots of row and column sums.
        scale: ``log2(e) / eps`` per unit of the dot product (of the stored score when ``tiles`` is given).
        table_scale: ``-log2(e) / eps``.
        config: block sizes, warps and stages.
    """
    sides, width = operand
    spare = exponent
    _marginals_kernel[(jobs.shape[0],)](
        *sides, spare if tiles is None else tiles, exponent, spare if labels is None else labels,
        spare if table is None else table, jobs, partial, width, 0 if table is None else table.shape[0], scale,
        table_scale, MODE=config.mode, CACHED=tiles is not None, LABELS=labels is not None and tiles is None,
        TMA=config.tma, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, FIELDS=JOB_FIELDS,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
