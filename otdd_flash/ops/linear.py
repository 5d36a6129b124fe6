"""Batched small linear systems, wherever they live."""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.ops.api import triton_missing


def solve_small(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve ``matrix (B, n, n) x = right (B, n)`` for symmetric positive definite float64 matrices.

    On a GPU by a Triton kernel, which unlike the library solver can be recorded into a CUDA graph; ``n`` must then be a
    power of two. A singular matrix gives infinities, not an error.
    """
    if matrix.device.type == "cuda" and triton_missing() is None:
        from otdd_flash.kernels.small_solve import small_solve

        return small_solve(matrix, right)
    return torch.linalg.solve_ex(matrix, right[..., None]).result[..., 0]
