"""Triangular factors of covariances, for GPUs: one batched Cholesky decomposition, no eigenproblem a class."""

from __future__ import annotations

import torch
from torch import Tensor

_SHIFT = 8 * torch.finfo(torch.float64).eps  # of the largest variance, a feature: what a Cholesky factor needs to exist


def triangles(covariance: Tensor, varies: Tensor) -> list[Tensor]:
    """Factors ``(r, d)`` of covariances whose diagonals are raised by :func:`shift`; triangles of the varying columns.

    Args:
        covariance: ``(C, d, d)`` float64, zero where a feature does not vary.
        varies: ``(C, d)`` which features do; ``r`` of a covariance is their number.
    """
    count, width = varies.shape
    ranks = varies.sum(1)
    sizes = ranks.tolist()
    size = max(*sizes, 1)
    order = torch.argsort(~varies, dim=1, stable=True)[:, :size]  # varying features first
    inner = covariance.gather(1, order[:, :, None].expand(-1, -1, width)).gather(2, order[:, None].expand(-1, size, -1))
    diagonal = inner.diagonal(dim1=1, dim2=2)
    diagonal += _SHIFT * ranks[:, None] * diagonal.amax(1, keepdim=True)
    diagonal += (torch.arange(size, device=ranks.device) >= ranks[:, None]).to(diagonal)  # padding: a unit block
    upper, failed = torch.linalg.cholesky_ex(inner, upper=True)
    for k in failed.nonzero()[:, 0].tolist():
        upper[k] = _by_eigenvalues(inner[k])
    out = covariance.new_zeros(count, size, width)
    out.scatter_(2, order[:, None].expand(-1, size, -1), upper)
    return [factor[:rank] for factor, rank in zip(out, sizes, strict=True)]


def solve_triangle(factor: Tensor, right: Tensor) -> Tensor:
    """``F^+ B`` for a factor ``(r, d)`` made by :func:`triangles` and ``B (r, k)``."""
    columns = factor.any(0).nonzero()[:, 0]
    out = right.new_zeros(factor.shape[1], right.shape[1])
    out[columns] = torch.linalg.solve_triangular(factor[:, columns], right, upper=True)
    return out


def shift(factor: Tensor) -> Tensor:
    """By how much the variance of each feature has been raised."""
    return _SHIFT * factor.shape[0] * factor.square().sum(0).max()


def _by_eigenvalues(matrix: Tensor) -> Tensor:
    """A triangle of a matrix that rounding has left less than positive definite."""
    values, vectors = torch.linalg.eigh(matrix)
    least = _SHIFT * len(matrix) * matrix.diagonal().amax()
    return torch.linalg.qr((vectors * values.clamp_min(least).sqrt()).T, mode="r").R
