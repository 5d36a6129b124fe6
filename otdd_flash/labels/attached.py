"""Label tables as differentiable functions of the features: class moments on the autograd tape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from otdd_flash.labels.gaussian import polar_factor
from otdd_flash.labels.samples import check_pair
from otdd_flash.types import LabeledDataset

ATTACHABLE = ("means", "gaussian_diag", "gaussian")


def attached_table(source: LabeledDataset, target: LabeledDataset, method: str) -> Tensor:
    """``(c + c', c + c')`` squared class-to-class distances with a graph back to both sides' features.

    The values are those of :func:`otdd_flash.labels.label_distances`. A feature that is constant within a class has the
    subgradient 0 in its standard deviation; in the Bures distance the directions that a class lacks have none either.
    ``gaussian`` is differentiable once, the others twice.

    Args:
        source: ``c`` classes.
        target: ``c'`` classes.
        method: ``means``, ``gaussian_diag`` or ``gaussian``.

    Raises:
        ValueError: another method, or data sets that cannot be compared.
    """
    if method not in ATTACHABLE:
        raise ValueError(f"label distance {method!r} has no attached moments: take one of {', '.join(ATTACHABLE)}")
    check_pair(source, target)
    parts = [_Moments(side) for side in (source, target)]
    means = torch.cat([part.means for part in parts])
    if method == "means":
        return _squared_distances(means)
    if method == "gaussian_diag":
        deviations = _safe_root(torch.cat([part.variances() for part in parts]))
        return _squared_distances(torch.cat([means, deviations], 1))
    covariances = torch.cat([part.covariances() for part in parts])
    return _squared_distances(means) + _Bures.apply(covariances)


class _Moments:
    """Weighted means, variances and covariances of the classes of one data set."""

    def __init__(self, data: LabeledDataset) -> None:
        self.data = data
        mass = torch.zeros(data.num_classes, dtype=torch.float64, device=data.x.device)
        mass = mass.index_add(0, data.y, data.normalised_weights)
        self.weights = data.normalised_weights / mass[data.y]
        self.means = self._sums(data.x.to(torch.float64))
        self.centred = data.x.to(torch.float64) - self.means[data.y]

    def variances(self) -> Tensor:
        """``(c, d)``."""
        return self._sums(self.centred.square())

    def covariances(self) -> Tensor:
        """``(c, d, d)``."""
        scaled = self.centred * self.weights.sqrt()[:, None]
        rows = [scaled[self.data.y == c] for c in range(self.data.num_classes)]
        return torch.stack([part.T @ part for part in rows])

    def _sums(self, values: Tensor) -> Tensor:
        out = values.new_zeros(self.data.num_classes, values.shape[1])
        return out.index_add(0, self.data.y, self.weights[:, None] * values)


class _Bures(torch.autograd.Function):
    """``tr S_i + tr S_j - 2 tr (S_i^1/2 S_j S_i^1/2)^1/2`` of all pairs; ``d/dS_i = I - T_ij`` with the map ``T_ij``.

    With roots ``R_i = S_i^1/2`` and ``R_i R_j = U D V^T`` the trace is ``tr D`` and ``T_ij = R_i^+ U V^T R_j``.
    """

    @staticmethod
    def forward(ctx: Any, covariances: Tensor) -> Tensor:
        roots = torch.stack([_root(S) for S in covariances])
        ctx.save_for_backward(roots)
        traces = covariances.diagonal(dim1=1, dim2=2).sum(1)
        table = traces[:, None] + traces[None, :]
        for i in range(len(roots)):
            products = roots[i] @ roots
            table[i] -= 2 * (_turns(products) * products).sum((1, 2))
        return table.fill_diagonal_(0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (roots,) = ctx.saved_tensors
        inverses = torch.linalg.pinv(roots, hermitian=True, rtol=1e-7)
        weight = (upstream + upstream.T).fill_diagonal_(0.0)
        eye = torch.eye(roots.shape[1], dtype=roots.dtype, device=roots.device)
        gradient = weight.sum(1)[:, None, None] * eye
        for i in range(len(roots)):
            for j, turn in enumerate(_turns(roots[i] @ roots[i + 1 :]), i + 1):
                for p, q, way in ((i, j, turn), (j, i, turn.T)):
                    transport = inverses[p] @ way @ roots[q]
                    gradient[p] -= weight[i, j] * (transport + transport.T) / 2
        return gradient


def _turns(products: Tensor) -> Tensor:
    """``U V^T`` of ``U D V^T`` for a batch: by singular vectors, on a GPU by matrix products."""
    if products.device.type != "cpu":
        return polar_factor(products)
    U, _, Vh = torch.linalg.svd(products)
    return U @ Vh


def _root(S: Tensor) -> Tensor:
    """Symmetric square root."""
    values, vectors = torch.linalg.eigh(S)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def _safe_root(values: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)


def _squared_distances(points: Tensor) -> Tensor:
    return torch.stack([(points - row).square().sum(1) for row in points])
