"""Device functions that every kernel shares: operand loads, the score tile in each mode, the label term of a tile.

    S_ij = <z_i, z_j>            i in BLOCK_M rows, j in BLOCK_N columns of one packed operand

Both sides come from the same row-major operand: ``width`` columns padded to the K step, spare rows at the end, so no
load is masked; what lies outside a cloud is switched off by potentials of ``-inf``. ``fp16x3`` keeps the low halves
``half`` rows below the high ones and runs three sweeps of the K loop over the first ``main`` columns, ``lo hi + hi lo +
hi hi``: the small terms first, because the tensor core truncates a running sum. A short rest of the features stands
behind ``main`` as ``[lo, hi, hi]`` in the high rows and ``[hi, lo, hi]`` in the low ones: one step for all three terms.
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(source, row, k, width, TMA: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """``(ROWS, BLOCK_K)`` block of the operand from row ``row`` (int64) and column ``k``."""
    if TMA:
        return source.load([row.to(tl.int32), k])
    else:
        at = (row + tl.arange(0, ROWS)).to(tl.int64)[:, None] * width + tl.arange(0, BLOCK_K)[None, :]
        return tl.load(source + at + k)


@triton.jit
def count_steps(width, main, MODE: tl.constexpr, BLOCK_K: tl.constexpr):
    """K steps of a tile."""
    if MODE == "fp16x3":
        return (2 * main + width) // BLOCK_K
    else:
        return tl.cdiv(width, BLOCK_K)


@triton.jit
def split_step(step, main, half, MODE: tl.constexpr, BLOCK_K: tl.constexpr):
    """First operand column of K step ``step``, and the row shifts to the halves that it multiplies."""
    if MODE == "fp16x3":
        k = step * BLOCK_K
        sweep = (k >= main).to(tl.int32) + (k >= 2 * main).to(tl.int32)
        rest = k >= 3 * main
        return k - sweep * main, tl.where(sweep == 0, half, 0), tl.where((sweep == 1) | rest, half, 0)
    else:
        return step * BLOCK_K, 0, 0


@triton.jit
def multiply(x, y, acc, MODE: tl.constexpr):
    """``acc + x y`` at the precision of the mode."""
    if MODE == "int8":
        return tl.dot(x, y, acc, out_dtype=tl.int32)
    elif MODE == "fp32":
        return tl.dot(x, y, acc, input_precision="ieee")
    elif MODE == "tf32":
        return tl.dot(x, y, acc, input_precision="tf32")
    else:
        return tl.dot(x, y, acc)


@triton.jit
def zero_tile(MODE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Empty accumulator of a score tile; int32 for ``int8``."""
    if MODE == "int8":
        return tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    else:
        return tl.zeros([BLOCK_M, BLOCK_N], tl.float32)


@triton.jit
def score_tile(
    rows, cols, row, col, width, main, half,
    MODE: tl.constexpr, TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``(BLOCK_M, BLOCK_N)`` dot products of operand rows from ``row`` and from ``col``."""
    acc = zero_tile(MODE, BLOCK_M, BLOCK_N)
    for step in range(0, count_steps(width, main, MODE, BLOCK_K)):
        k, row_shift, col_shift = split_step(step, main, half, MODE, BLOCK_K)
        x = load_rows(rows, row + row_shift, k, width, TMA, BLOCK_M, BLOCK_K)
        y = load_rows(cols, col + col_shift, k, width, TMA, BLOCK_N, BLOCK_K)
        acc = multiply(x, y.T, acc, MODE)
    return acc


@triton.jit
def class_range(labels, row, end, BLOCK_M: tl.constexpr):
    """First and last class of the rows of a tile; rows are sorted by class up to ``end``."""
    return tl.load(labels + row), tl.load(labels + tl.minimum(row + BLOCK_M, end) - 1)


@triton.jit
def class_column(labels, table, label, col, classes, table_scale, BLOCK_N: tl.constexpr):
    """``table_scale * table[label, l_j]`` for the columns of a tile."""
    return tl.load(table + label * classes + tl.load(labels + col + tl.arange(0, BLOCK_N))) * table_scale


@triton.jit
def add_further_classes(
    score, labels, table, row, col, first, last, classes, table_scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Correct a tile that has the table row of class ``first`` for its rows of later classes."""
    row_label = tl.load(labels + row + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    base = class_column(labels, table, first, col, classes, table_scale, BLOCK_N)  # [BLOCK_N]
    for label in range(first + 1, last + 1):
        change = class_column(labels, table, label, col, classes, table_scale, BLOCK_N) - base
        score += tl.where(row_label[:, None] == label, change[None, :], 0.0)
    return score


@triton.jit
def add_labels(
    score, labels, table, row, col, end, classes, table_scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """``score_ij + table_scale * table[l_i, l_j]``: one table row per tile, corrected where the tile spans classes."""
    first, last = class_range(labels, row, end, BLOCK_M)
    score += class_column(labels, table, first, col, classes, table_scale, BLOCK_N)[None, :]
    return add_further_classes(score, labels, table, row, col, first, last, classes, table_scale, BLOCK_M, BLOCK_N)


@triton.jit
def stored_tile(tiles, row, col, pitch, kind, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STORED: tl.constexpr):
    """``(BLOCK_M, BLOCK_N)`` stored scores from row ``row`` and column ``col`` of a problem.

    ``kind`` 0 is the problem as stored, 1 its transpose, 2 a symmetric problem. Storage is one row-major strip of
    ``STORED`` columns per column block, ``pitch`` rows high; a symmetric problem keeps strips down to the diagonal.
    """
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    row_strip, col_strip = row // STORED, col // STORED
    if (kind == 0) | ((kind == 2) & (row_strip <= col_strip)):
        start = tl.where(kind == 2, col_strip * (col_strip + 1) // 2 * STORED, col_strip * pitch) * STORED
        score = tl.load(tiles + start + (row + i)[:, None] * STORED + (col % STORED + j)[None, :])
    else:
        start = tl.where(kind == 2, row_strip * (row_strip + 1) // 2 * STORED, row_strip * pitch) * STORED
        score = tl.trans(tl.load(tiles + start + (col + j)[:, None] * STORED + (row % STORED + i)[None, :]))
    return score


@triton.jit
def base_two_score(
    rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale,
    row_base, col_base, row_end, row, col, pitch, kind,
    MODE: tl.constexpr, LABELS: tl.constexpr, TMA: tl.constexpr, STORED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``(BLOCK_M, BLOCK_N)`` values ``scale S_ij + table_scale table_ij``, from the operand or from stored scores."""
    if STORED:
        return stored_tile(tiles, row, col, pitch, kind, BLOCK_M, BLOCK_N, STORED) * scale
    else:
        dots = score_tile(
            rows, cols, row_base + row, col_base + col, width, main, half, MODE, TMA, BLOCK_M, BLOCK_N, BLOCK_K
        )  # fmt: skip
        score = dots.to(tl.float32) * scale
        if LABELS:
            score = add_labels(
                score, labels, table, row_base + row, col_base + col, row_end, classes, table_scale, BLOCK_M, BLOCK_N
            )  # fmt: skip
        return score


@triton.jit
def split_half(plan):
    """Two float16 pieces of a plan, which together hold 22 bits of an entry in ``[2^-14, 2^16)``."""
    high = plan.to(tl.float16)
    return high, (plan - high.to(tl.float32)).to(tl.float16)


@triton.jit
def gauss_jordan(matrix, right, SIZE: tl.constexpr):
    """Solution of ``matrix x = right`` in registers; no pivoting: the matrices come with a ridge.

    for every k:  row_k /= A_kk;  row_i -= A_ik row_k  (i != k)
    """
    i = tl.arange(0, SIZE)
    for k in tl.static_range(SIZE):
        row = tl.sum(tl.where(i[:, None] == k, matrix, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == k, matrix, 0.0), 1)
        pivot = tl.sum(tl.where(i == k, column, 0.0), 0)
        factor = tl.where(i == k, 0.0, column / pivot)
        matrix -= factor[:, None] * row[None, :]
        right -= factor * tl.sum(tl.where(i == k, right, 0.0), 0)
    return right / tl.sum(tl.where(i[:, None] == i[None, :], matrix, 0.0), 1)
