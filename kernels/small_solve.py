"""Many small positive definite systems ``A x = b``, one program each, by Gauss-Jordan elimination in registers.

    for every k:  row_k /= A_kk;  row_i -= A_ik row_k  (i != k)

No pivoting: the matrices come with a ridge. No host synchronisation and no workspace, so the call can be part of a CUDA
graph, where library solvers cannot. Streams ``SIZE^2 + SIZE`` float64 numbers a system.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _small_solve_kernel(matrix, right, out, SIZE: tl.constexpr):
    system = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    a = tl.load(matrix + system * SIZE * SIZE + i[:, None] * SIZE + i[None, :])  # [SIZE, SIZE]
    b = tl.load(right + system * SIZE + i)  # [SIZE]
    for k in tl.static_range(SIZE):
        row = tl.sum(tl.where(i[:, None] == k, a, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == k, a, 0.0), 1)
        value = tl.sum(tl.where(i == k, b, 0.0), 0)
        pivot = tl.sum(tl.where(i == k, column, 0.0), 0)
        factor = tl.where(i == k, 0.0, column / pivot)
        a -= factor[:, None] * row[None, :]
        b -= factor * value
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], a, 0.0), 1)
    tl.store(out + system * SIZE + i, b / diagonal)


def small_solve(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solutions ``(B, n)`` of ``matrix (B, n, n)`` and ``right (B, n)``, float64, ``n`` a power of two."""
    out = torch.empty_like(right)
    _small_solve_kernel[(len(right),)](matrix.contiguous(), right.contiguous(), out, SIZE=right.shape[1], num_warps=1)
    return out
