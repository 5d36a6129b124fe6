"""Squared 2-Wasserstein distances between classes seen as points or Gaussians, from their first two moments.

``means``          ``|mu - mu'|^2``
``gaussian_diag``  ``|mu - mu'|^2 + |s - s'|^2`` with standard deviations ``s`` of each feature
``gaussian``       ``|mu - mu'|^2 + tr S + tr S' - 2 tr (S^1/2 S' S^1/2)^1/2`` (Bures)

With ``S = F^T F`` the last trace is the nuclear norm of ``F F'^T``: no matrix square root is taken, nothing can turn
imaginary, rank-deficient covariances are no special case, and a class of ``n_c < d`` samples enters as its centred
rows, ``||Z Z'^T||_nuclear / sqrt(n n')``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from otdd_flash.labels.samples import ClassSample

_BATCH_BYTES = 1 << 27
_QUINTIC_STEPS, _CUBIC_STEPS = 15, 6
_FAST_FLOAT64 = {(8, 0), (9, 0), (10, 0)}


def means_table(classes: Sequence[ClassSample]) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` squared distances of class means, and the certificate."""
    means = torch.stack([sample.mean for sample in classes])
    return _squared_distances(means), {"error": _rounding(means.square().sum(1), means.shape[1])}


def gaussian_diag_table(classes: Sequence[ClassSample]) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` squared Wasserstein distances of Gaussians with diagonal covariances, and the certificate."""
    moments = torch.stack([torch.cat([sample.mean, sample.variance.sqrt()]) for sample in classes])
    return _squared_distances(moments), {"error": _rounding(moments.square().sum(1), moments.shape[1])}


def gaussian_table(classes: Sequence[ClassSample]) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` squared Wasserstein distances of Gaussians with full covariances, and the certificate.

    Source: Dowson and Landau (1982); Alvarez-Melis and Fusi (2020), equation 7.
    """
    means = torch.stack([sample.mean for sample in classes])
    factors = [sample.factor for sample in classes]
    traces = torch.stack([factor.square().sum() for factor in factors])
    table = _squared_distances(means) + traces[:, None] + traces[None, :] - 2 * nuclear_norms(factors)
    ranks = [factor.shape[0] for factor in factors]
    error = _rounding(means.square().sum(1) + traces, means.shape[1] + max(ranks))
    if table.device.type != "cpu":
        unit = torch.finfo(_product_dtype(table.device)).eps
        error += 2 * max(ranks) * max(unit, 1e-8) * float(traces.max())
    return table.fill_diagonal_(0.0), {"error": error, "ranks": ranks}


def nuclear_norms(factors: Sequence[Tensor], wanted: Sequence[bool] | None = None) -> Tensor:
    """``(c, c)`` nuclear norms of ``F_i F_j^T``, in batches of pairs of like rank.

    Args:
        factors: ``c`` matrices ``(r_i, d)``, float64.
        wanted: of which factors all pairs are wanted; the entries of other pairs are zero. Default all.

    Returns:
        Symmetric ``(c, c)`` float64 table; the diagonal is ``tr F_i F_i^T``.
    """
    table = torch.diag(torch.stack([factor.square().sum() for factor in factors]))
    for i, others, products in pair_batches(factors, wanted or [True] * len(factors)):
        norms = _nuclear_norm(products)
        table[i, others] = norms
        table[others, i] = norms
    return table


def pair_batches(factors: Sequence[Tensor], wanted: Sequence[bool]) -> Iterator[tuple[int, list[int], Tensor]]:
    """All pairs with a wanted member once, as ``i``, some ``j`` and the products ``F_i F_j^T`` of these.

    Products ``(B, r_i, r)`` are padded with zero columns, which add no singular value; ``r_i`` is the least rank.
    """
    order = sorted(range(len(factors)), key=lambda i: factors[i].shape[0])
    for position, i in enumerate(order):
        others = [j for j in order[position + 1 :] if wanted[i] or wanted[j]]
        for chunk in _chunks(others, factors):
            stack = pad_sequence([factors[j] for j in chunk], batch_first=True)
            yield i, chunk, factors[i] @ stack.mT


def _nuclear_norm(matrices: Tensor) -> Tensor:
    """Sum of singular values of each matrix ``(B, p, q)``, ``p <= q``."""
    if matrices.shape[1] == 0:
        return matrices.new_zeros(matrices.shape[0])
    if matrices.device.type == "cpu":
        return torch.linalg.svdvals(matrices).sum(1)
    return _polar_nuclear_norm(matrices.to(_product_dtype(matrices.device))).to(matrices.dtype)


def _polar_nuclear_norm(matrices: Tensor) -> Tensor:
    """``|M|_* = <U, M>`` with the polar factor ``U``, for GPUs."""
    return (polar_factor(matrices) * matrices).sum((1, 2))


def polar_factor(matrices: Tensor) -> Tensor:
    """The orthogonal factor ``U`` of ``M = U (M^T M)^1/2`` by Newton-Schulz: matrix products only.

    Odd polynomials drive every singular value towards one. The quintic triples small ones a step and leaves all in
    about ``[0.7, 1.2]``; the cubic then converges quadratically. A value below ``1e-8`` of the Frobenius norm may end
    below one: in ``<U, M>`` it is then counted too low, by no more than itself.
    """
    norms = torch.linalg.matrix_norm(matrices).clamp_min(torch.finfo(matrices.dtype).tiny)
    x = matrices / norms[:, None, None]
    for _ in range(_QUINTIC_STEPS):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    for _ in range(_CUBIC_STEPS):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


def _product_dtype(device: torch.device) -> torch.dtype:
    """Float64 where the GPU multiplies such matrices at full rate, else float32."""
    return torch.float64 if torch.cuda.get_device_capability(device) in _FAST_FLOAT64 else torch.float32


def _chunks(indices: list[int], factors: Sequence[Tensor]) -> list[list[int]]:
    """``indices``, sorted by rank, cut so that each padded stack stays within the byte budget."""
    chunks: list[list[int]] = []
    for j in indices:
        rank, width = factors[j].shape
        if chunks and (len(chunks[-1]) + 1) * rank * width * 8 <= _BATCH_BYTES:
            chunks[-1].append(j)
        else:
            chunks.append([j])
    return chunks


def _squared_distances(points: Tensor) -> Tensor:
    """``(c, c)`` squared distances taken from differences: never negative, zero on equal points."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def _rounding(scale: Tensor, terms: int) -> float:
    """Bound of the absolute rounding error of sums of ``terms`` products of size ``scale``, in units of the cost."""
    return float(torch.finfo(torch.float64).eps * terms * 2 * scale.max())
