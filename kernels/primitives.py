"""Device functions that every kernel shares: the score tile in each operand mode, and the label term of a tile.

    S_ij = <z_i, z_j>            i in BLOCK_M rows, j in BLOCK_N columns of one packed operand

Both sides come from the same row-major operand ``(rows, width)``: ``width`` is padded to a multiple of ``BLOCK_K`` and
the operand is padded by spare rows, so no load is masked; what lies outside a cloud is switched off by potentials of
``-inf``. ``fp16x3`` keeps high and low halves of every value and drops only the product of the two low halves.
"""

import triton
import triton.language as tl


@triton.jit
def score_tile(
    rows_hi, rows_lo, cols_hi, cols_lo, row, col, width,
    MODE: tl.constexpr, TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``(BLOCK_M, BLOCK_N)`` dot products of operand rows from ``row`` and from ``col``; int32 for ``int8``."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if MODE == "int8" else tl.float32)
    step = tl.arange(0, BLOCK_K)
    x_at = (row + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None] * width + step[None, :]  # [BLOCK_M, BLOCK_K]
    y_at = (col + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :] * width + step[:, None]  # [BLOCK_K, BLOCK_N]
    for k in range(0, width, BLOCK_K):
        if TMA:
            x = rows_hi.load([row.to(tl.int32), k])
            y = cols_hi.load([col.to(tl.int32), k]).T
        else:
            x = tl.load(rows_hi + x_at + k)
            y = tl.load(cols_hi + y_at + k)
        if MODE == "fp16x3":
            if TMA:
                x_lo = rows_lo.load([row.to(tl.int32), k])
                y_lo = cols_lo.load([col.to(tl.int32), k]).T
            else:
                x_lo = tl.load(rows_lo + x_at + k)
                y_lo = tl.load(cols_lo + y_at + k)
            acc = tl.dot(x_lo, y, acc)
            acc = tl.dot(x, y_lo, acc)
        if MODE == "int8":
            acc = tl.dot(x, y, acc, out_dtype=tl.int32)
        elif MODE == "fp32":
            acc = tl.dot(x, y, acc, input_precision="ieee")
        elif MODE == "tf32":
            acc = tl.dot(x, y, acc, input_precision="tf32")
        else:
            acc = tl.dot(x, y, acc)
    return acc


@triton.jit
def add_labels(
    score, labels, table, row, col, end, classes, table_scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """``score_ij + table_scale * table[l_i, l_j]`` where rows are sorted by class up to ``end``.

    A tile of one row class costs one table entry per column; a tile that spans several adds the difference to its
    first class for the rows of each further class.
    """
    row_label = tl.load(labels + row + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    col_label = tl.load(labels + col + tl.arange(0, BLOCK_N))  # [BLOCK_N]
    first = tl.load(labels + row)
    last = tl.load(labels + tl.minimum(row + BLOCK_M, end) - 1)
    base = tl.load(table + first * classes + col_label) * table_scale  # [BLOCK_N]
    score += base[None, :]
    for label in range(first + 1, last + 1):
        change = tl.load(table + label * classes + col_label) * table_scale - base
        score += tl.where(row_label[:, None] == label, change[None, :], 0.0)
    return score
