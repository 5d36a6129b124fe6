"""Stored scores: every tile of a job list written once, so that later passes are memory sweeps.

    Z_ij = scale S_ij + table_scale table_ij,        C_ij = alpha_i + alpha_j - Z_ij

Tiles are contiguous BLOCK_M x BLOCK_N float32 blocks, column block by column block; a symmetric problem stores the
blocks up to its diagonal only. Streams the operand, writes four bytes per score.
"""

import triton
import triton.language as tl

from otdd_flash.kernels.primitives import add_labels, score_tile


@triton.jit(do_not_specialize=["classes"])
def _scores_kernel(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale, jobs,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    row_base, col_base = tl.load(job), tl.load(job + 1)
    row_end = tl.load(job + 4)
    row_first, row_last = tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)
    col_first, col_last = tl.load(job + 7).to(tl.int32), tl.load(job + 8).to(tl.int32)
    tile_base, tile_pitch = tl.load(job + 11), tl.load(job + 12)
    symmetric = tl.load(job + 13) != 0
    in_tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for col_block in range(col_first, col_last):
        col = col_block * BLOCK_N
        stop = row_last
        tile = tile_base + col_block * tile_pitch
        if symmetric:
            stop = tl.minimum(row_last, (col_block + 1) * (BLOCK_N // BLOCK_M))
            tile = tile_base + col_block * (col_block + 1) // 2 * (BLOCK_N // BLOCK_M)
        for row_block in range(row_first, stop):
            row = row_block * BLOCK_M
            dots = score_tile(
                rows, cols, row_base + row, col_base + col, width, main, half,
                MODE, TMA, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            score = dots.to(tl.float32) * scale
            if LABELS:
                score = add_labels(
                    score, labels, table, row_base + row, col_base + col, row_end, classes, table_scale,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
            tl.store(tiles + (tile + row_block) * (BLOCK_M * BLOCK_N) + in_tile, score)


def scores(source, jobs, *, config, fields: int) -> None:
    """Fill ``source.tiles`` for all ``jobs`` of :func:`otdd_flash.kernels.marginals.marginals`.

    ``source.scale`` is the cost per unit of the dot product and ``source.table_scale`` is -1.
    """
    _scores_kernel[(jobs.shape[0],)](
        *source.arguments(source.tiles), jobs, MODE=config.mode, LABELS=source.labels is not None, TMA=config.tma,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, FIELDS=fields, num_warps=config.warps,
        num_stages=config.stages,
    )  # fmt: skip
