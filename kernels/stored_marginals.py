"""Row and column sums of the plan from stored scores: four bytes read and one exponential per score.

    P_ij = 2^(slope Z_ij + u_i + v_j)        r_i = sum_j P_ij        c_j = sum_i P_ij

Jobs, slots and the symmetric triangle are those of :mod:`otdd_flash.kernels.marginals`; ``Z`` comes from
:mod:`otdd_flash.kernels.scores` and holds the label term. Tiles are contiguous in memory and read once per pass.
"""

import triton
import triton.language as tl

JOB_FIELDS = 16


@triton.jit
def _stored_marginals_kernel(
    tiles, exponent, jobs, partial, slope, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FIELDS: tl.constexpr
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    u, v = exponent + tl.load(job + 2), exponent + tl.load(job + 3)
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
        stop = row_last
        tile = tile_base + col_block * tile_pitch
        if symmetric:
            stop = tl.minimum(row_last, (col_block + 1) * (BLOCK_N // BLOCK_M))
            tile = tile_base + col_block * (col_block + 1) // 2 * (BLOCK_N // BLOCK_M)
        sums = tl.zeros([BLOCK_N], tl.float32)
        for row_block in range(row_first, stop):
            row = row_block * BLOCK_M
            uu = tl.load(u + row + in_rows)  # [BLOCK_M]
            at = tiles + (tile + row_block) * (BLOCK_M * BLOCK_N) + in_tile
            score = tl.load(at, eviction_policy="evict_first") * slope
            plan = tl.exp2(score + (uu[:, None] + vv[None, :]))
            tl.atomic_add(row_sums + row + in_rows, tl.sum(plan, 1), sem="relaxed")
            sums = tl.where(symmetric & (row >= col), sums, sums + tl.sum(plan, 0))
        tl.atomic_add(col_sums + col + in_cols, sums, sem="relaxed")


def stored_marginals(source, exponent, jobs, partial, *, config) -> None:
    """Add the partial sums of all ``jobs`` to ``partial`` from the stored scores of ``source``."""
    _stored_marginals_kernel[(jobs.shape[0],)](
        source.tiles, exponent, jobs, partial, source.scale, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        FIELDS=JOB_FIELDS, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
