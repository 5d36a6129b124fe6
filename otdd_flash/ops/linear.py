"""Batched small linear systems and exponentials, wherever they live."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from otdd_flash.ops.api import triton_missing

_LOWEST = {torch.float32: -87.0, torch.float64: -708.0}  # exponents of the smallest normal numbers, about


def exp_(exponents: Tensor) -> Tensor:
    """Exponentials in place; those that would be subnormal are zero.

    A CPU takes ten to forty times as long for an exponential that underflows, and most entries of a plan do.
    """
    if exponents.device.type != "cpu":
        return exponents.exp_()
    lowest = _LOWEST[exponents.dtype]
    return torch.threshold_(exponents.clamp_min_(lowest).exp_(), 1.2 * math.exp(lowest), 0.0)


def solve_small(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve ``matrix (B, n, n) x = right (B, n)`` for symmetric positive definite float64 matrices.

    On a GPU by a Triton kernel, which unlike the library solver can be recorded into a CUDA graph; ``n`` must then be a
    power of two. A singular matrix gives infinities, not an error.
    """
    if matrix.device.type == "cuda" and triton_missing() is None:
        from otdd_flash.kernels.small_solve import small_solve

        return small_solve(matrix, right)
    return torch.linalg.solve_ex(matrix, right[..., None]).result[..., 0]
