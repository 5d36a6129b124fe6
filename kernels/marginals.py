"""Row and column sums of the plan from one product and one exponential per score.

    P_ij = 2^(scale S_ij + u_i + v_j - table_ij)        r_i = sum_j P_ij        c_j = sum_i P_ij

A program owns a job: a rectangle of row blocks x column blocks of one problem. It streams operand tiles, keeps the
column sums of a column block in registers while it walks down the row blocks, and adds row sums to its own slot of
``partial``; one writer per slot makes the additions ordered. No running maximum: the potentials are the shift.

Jobs of a symmetric problem hold the upper triangle only: a tile right of the diagonal block serves rows and columns, a
tile of the diagonal block (BLOCK_N wide) is whole and serves rows only.

The walk is one flat loop over (row block, K step), so the loads of the next tile are in flight while a tile is summed;
an operand of one K step keeps its column side in shared memory instead (RESIDENT). What a tile needs beside its K steps
is fetched at its first step. Column sums are kept one value per lane of the accumulator's layout (DEFER): the shuffles
happen once per column block, not once per tile.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import (
    add_further_classes,
    class_column,
    class_range,
    count_steps,
    load_rows,
    multiply,
    split_step,
    zero_tile,
)

JOB_FIELDS = 16


@triton.jit
def _plan_tile(
    acc, uu, v, vt, labels, table, col, row_at, col_at, first, last, current, classes, scale, table_scale,
    LABELS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The plan of a tile; ``vt`` carries ``v`` plus the table row of class ``current`` from tile to tile."""
    if LABELS:  # noqa: SIM102 (a compile-time test around a run-time one)
        if first != current:
            vt = tl.load(v + col + tl.arange(0, BLOCK_N))
            vt += class_column(labels, table, first, col_at, classes, table_scale, BLOCK_N)
    score = acc.to(tl.float32) * scale + (uu[:, None] + vt[None, :])
    if LABELS:  # noqa: SIM102
        if last != first:
            score = add_further_classes(
                score, labels, table, row_at, col_at, first, last, classes, table_scale, BLOCK_M, BLOCK_N
            )  # fmt: skip
    return tl.exp2(score), vt


@triton.jit
def _lane_sums(plan, DEFER: tl.constexpr, WARPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Column sums of a tile, or the part of them that needs no exchange between lanes of an MMA accumulator."""
    if DEFER:
        lanes = tl.reshape(plan, [BLOCK_M // (16 * WARPS), WARPS, 2, 8, BLOCK_N])
        return tl.sum(tl.sum(lanes, 2), 0)
    else:
        return tl.sum(plan, 0)


@triton.jit(do_not_specialize=["classes", "main", "half"])
def _marginals_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, exponent, jobs, partial,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, RESIDENT: tl.constexpr, DEFER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WARPS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    row_base, col_base = tl.load(job), tl.load(job + 1)  # operand rows where the two clouds start
    u, v = exponent + tl.load(job + 2), exponent + tl.load(job + 3)
    row_end = tl.load(job + 4)
    row_first, row_last = tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)
    col_first, col_last = tl.load(job + 7).to(tl.int32), tl.load(job + 8).to(tl.int32)
    row_sums, col_sums = partial + tl.load(job + 9), partial + tl.load(job + 10)
    symmetric = tl.load(job + 13) != 0
    in_rows, in_cols = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    for col_block in range(col_first, col_last):
        col = col_block * BLOCK_N
        col_at = col_base + col
        stop = row_last
        if symmetric:
            stop = tl.minimum(row_last, (col_block + 1) * (BLOCK_N // BLOCK_M))
        vt = tl.load(v + col + in_cols)  # [BLOCK_N]
        first, last, current = -1, -1, -1
        if DEFER:  # noqa: SIM108 (the two have different shapes)
            sums = tl.zeros([WARPS, 8, BLOCK_N], tl.float32)
        else:
            sums = tl.zeros([BLOCK_N], tl.float32)
        if RESIDENT:
            y = load_rows(cols, col_at, 0, width, TMA, BLOCK_N, BLOCK_K)
            if MODE == "fp16x3":
                y_lo = load_rows(cols, col_at + half, 0, width, TMA, BLOCK_N, BLOCK_K)
            for row_block in range(row_first, stop):
                row = row_block * BLOCK_M
                row_at = row_base + row
                if LABELS:
                    first, last = class_range(labels, row_at, row_end, BLOCK_M)
                uu = tl.load(u + row + in_rows)  # [BLOCK_M]
                x = load_rows(rows, row_at, 0, width, TMA, BLOCK_M, BLOCK_K)
                acc = zero_tile(MODE, BLOCK_M, BLOCK_N)
                if MODE == "fp16x3":
                    x_lo = load_rows(rows, row_at + half, 0, width, TMA, BLOCK_M, BLOCK_K)
                    acc = tl.dot(x_lo, y.T, acc)
                    acc = tl.dot(x, y_lo.T, acc)
                acc = multiply(x, y.T, acc, MODE)
                plan, vt = _plan_tile(
                    acc, uu, v, vt, labels, table, col, row_at, col_at, first, last, current, classes, scale,
                    table_scale, LABELS, BLOCK_M, BLOCK_N,
                )  # fmt: skip
                current = first
                tl.atomic_add(row_sums + row + in_rows, tl.sum(plan, 1), sem="relaxed")
                below = sums + _lane_sums(plan, DEFER, WARPS, BLOCK_M, BLOCK_N)
                sums = tl.where(symmetric & (row >= col), sums, below)
        else:
            per_tile = count_steps(width, main, MODE, BLOCK_K)
            step = -1
            row = (row_first - 1) * BLOCK_M
            acc = zero_tile(MODE, BLOCK_M, BLOCK_N)
            uu = tl.zeros([BLOCK_M], tl.float32)
            for _ in range(0, tl.maximum(stop - row_first, 0) * per_tile):
                step = tl.where(step == per_tile - 1, 0, step + 1)
                row = tl.where(step == 0, row + BLOCK_M, row)
                row_at = row_base + row
                k, row_shift, col_shift = split_step(step, main, half, MODE, BLOCK_K)
                x = load_rows(rows, row_at + row_shift, k, width, TMA, BLOCK_M, BLOCK_K)
                y = load_rows(cols, col_at + col_shift, k, width, TMA, BLOCK_N, BLOCK_K)
                acc = multiply(x, y.T, acc, MODE)
                if step == 0:
                    uu = tl.load(u + row + in_rows)  # [BLOCK_M]
                    if LABELS:
                        first, last = class_range(labels, row_at, row_end, BLOCK_M)
                if step == per_tile - 1:
                    plan, vt = _plan_tile(
                        acc, uu, v, vt, labels, table, col, row_at, col_at, first, last, current, classes, scale,
                        table_scale, LABELS, BLOCK_M, BLOCK_N,
                    )  # fmt: skip
                    current = first
                    tl.atomic_add(row_sums + row + in_rows, tl.sum(plan, 1), sem="relaxed")
                    below = sums + _lane_sums(plan, DEFER, WARPS, BLOCK_M, BLOCK_N)
                    sums = tl.where(symmetric & (row >= col), sums, below)
                    acc = zero_tile(MODE, BLOCK_M, BLOCK_N)
        if DEFER:
            tl.atomic_add(col_sums + col + in_cols, tl.sum(tl.sum(sums, 1), 0), sem="relaxed")
        else:
            tl.atomic_add(col_sums + col + in_cols, sums, sem="relaxed")


def marginals(source, exponent, jobs, partial, *, config) -> None:
    """Add the partial sums of all ``jobs`` to ``partial`` (float32, zeroed by the caller).

    Args:
        source: where the scores come from; not stored ones.
        exponent: ``u`` and ``v`` of all problems, float32.
        jobs: ``(jobs, JOB_FIELDS)`` int64, see the kernel's first lines.
        partial: slots of row and column sums.
        config: block sizes, warps and stages.
    """
    _marginals_kernel[(jobs.shape[0],)](
        *source.arguments(exponent), exponent, jobs, partial, MODE=config.mode, LABELS=source.labelled, TMA=config.tma,
        RESIDENT=config.resident, DEFER=config.defer, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, WARPS=config.warps, FIELDS=JOB_FIELDS, num_warps=config.warps,
        num_stages=config.stages,
    )  # fmt: skip
