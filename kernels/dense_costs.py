"""Half squared distances of all pairs of a few thousand points, float32.

    C_ij = |z_i - z_j|^2 / 2        z = [x; y] of one pair of clouds, i, j < n + m

A program owns one tile. Of a few features (NARROW) it sums squared differences; of more it takes three TF32 products,
which have float32's digits, and adds the norms from the same sweep. Writes each cost once; without OWN the tiles within
one of the two clouds are left out.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "m", "width"])
def _dense_costs_kernel(
    points, costs, n, m, width, NARROW: tl.constexpr, OWN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    size = n + m
    batch = tl.program_id(2).to(tl.int64)
    row, col = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    within = (row + BLOCK_M <= n) & (col + BLOCK_N <= n) | (row >= n) & (col >= n)
    if OWN or not within:
        rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
        x = points + (batch * size + rows.to(tl.int64)) * width  # [BLOCK_M]
        y = points + (batch * size + cols.to(tl.int64)) * width  # [BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if NARROW:
            for k in range(0, width):
                left, right = tl.load(x + k, mask=rows < size), tl.load(y + k, mask=cols < size)
                difference = left[:, None] - right[None, :]
                acc += difference * difference
            cost = acc * 0.5
        else:
            norm_x, norm_y = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_N], tl.float32)
            for start in range(0, width, BLOCK_K):
                k = start + tl.arange(0, BLOCK_K)
                there = k[None, :] < width
                left = tl.load(x[:, None] + k[None, :], mask=(rows[:, None] < size) & there, other=0.0)
                right = tl.load(y[:, None] + k[None, :], mask=(cols[:, None] < size) & there, other=0.0)
                norm_x += tl.sum(left * left, 1)
                norm_y += tl.sum(right * right, 1)
                acc = tl.dot(left, right.T, acc, input_precision="tf32x3")
            cost = (norm_x[:, None] + norm_y[None, :]) * 0.5 - acc
        at = costs + (batch * size + rows.to(tl.int64)[:, None]) * size + cols[None, :]
        tl.store(at, cost, mask=(rows[:, None] < size) & (cols[None, :] < size))


def dense_costs(points, costs, *, n: int, narrow: bool, own: bool, config) -> None:
    """Write ``costs (B, n + m, n + m)`` of ``points (B, n + m, d)``, both contiguous float32."""
    batch, size, width = points.shape
    grid = triton.cdiv(size, config.block_m), triton.cdiv(size, config.block_n), batch
    _dense_costs_kernel[grid](
        points, costs, n, size - n, width, NARROW=narrow, OWN=own, BLOCK_M=config.block_m,
        BLOCK_N=config.block_n, BLOCK_K=config.block_k, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
