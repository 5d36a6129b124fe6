"""Many small positive definite systems ``A x = b``, one program each, by Gauss-Jordan elimination in registers.

No host synchronisation and no workspace, so the call can be part of a CUDA graph, where library solvers cannot. Streams
``SIZE^2 + SIZE`` float64 numbers a system.
"""

import torch
import triton
import triton.language as tl

from otdd_flash.kernels.primitives import gauss_jordan


@triton.jit
def _small_solve_kernel(matrix, right, out, SIZE: tl.constexpr):
    system = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    a = tl.load(matrix + system * SIZE * SIZE + i[:, None] * SIZE + i[None, :])  # [SIZE, SIZE]
    b = tl.load(right + system * SIZE + i)  # [SIZE]
    tl.store(out + system * SIZE + i, gauss_jordan(a, b, SIZE))


def small_solve(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solutions ``(B, n)`` of ``matrix (B, n, n)`` and ``right (B, n)``, float64, ``n`` a power of two."""
    out = torch.empty_like(right)
    _small_solve_kernel[(len(right),)](matrix.contiguous(), right.contiguous(), out, SIZE=right.shape[1], num_warps=1)
    return out
