"""Label tables as differentiable functions of the features: class moments on the autograd tape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from otdd_flash.labels.gaussian import polar_factor
from otdd_flash.labels.samples import ClassSample, check_pair, class_samples
from otdd_flash.types import LabeledDataset

ATTACHABLE = ("means", "gaussian_diag", "gaussian")
_KINDS = {"means": "means", "gaussian_diag": "variances", "gaussian": "covariances"}
_BLOCK_ELEMENTS = 1 << 20  # 8 MiB of float64 rows at a time
_TOGETHER = 8  # pairs of covariances in a batch
_LOST = 1e-7  # of the largest deviation: directions below it are absent

Moments = tuple[Tensor, Tensor]  # means (c, d); variances (c, d), covariances (c, d, d) or (c, 0)


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """What :func:`attached_table` has to know of a data set that does not move, float64, without a graph.

    Args:
        means: ``(c', d)``.
        seconds: ``(c', d)`` variances, ``(c', d, d)`` covariances, or ``(c', 0)``.
        bures: for ``gaussian``, roots of the covariances and the Bures distances between them.
    """

    means: Tensor
    seconds: Tensor
    bures: tuple[Tensor, Tensor] | None = None


def attached_table(
    source: LabeledDataset, target: LabeledDataset, method: str, *, target_moments: TargetMoments | None = None
) -> Tensor:
    """``(c + c', c + c')`` squared class-to-class distances with a graph back to both sides' features.

    The values are those of :func:`otdd_flash.labels.label_distances`. A feature that is constant within a class has the
    subgradient 0 in its standard deviation; in the Bures distance the directions that a class lacks have none either.
    ``gaussian`` is differentiable once, the others twice.

    Args:
        source: ``c`` classes.
        target: ``c'`` classes.
        method: ``means``, ``gaussian_diag`` or ``gaussian``.
        target_moments: :func:`class_moments` of a target that does not move.

    Raises:
        ValueError: another method, weights with a graph, or data sets that cannot be compared.
    """
    kind = _kind(method)
    check_pair(source, target)
    moving, spread = _moments(source, kind)
    if target_moments is not None and method == "gaussian":
        means = torch.cat([moving, target_moments.means])
        return _squared_distances(means) + _Bures.apply(spread, target_moments.bures)
    theirs = _moments(target, kind) if target_moments is None else (target_moments.means, target_moments.seconds)
    means, seconds = torch.cat([moving, theirs[0]]), torch.cat([spread, theirs[1]])
    if method == "means":
        return _squared_distances(means)
    if method == "gaussian_diag":
        return _squared_distances(torch.cat([means, _safe_root(seconds)], 1))
    return _squared_distances(means) + _Bures.apply(seconds, None)


def class_moments(data: LabeledDataset, method: str) -> TargetMoments:
    """The moments of a target, taken once for many calls of :func:`attached_table`."""
    means, seconds = _of_classes(class_samples(data), _kind(method))
    if method != "gaussian":
        return TargetMoments(means, seconds)
    roots, _ = _roots(seconds)
    traces = roots.square().sum((1, 2))
    table = traces[:, None] + traces[None, :]
    _subtract_cross_terms(table, roots, len(roots))
    return TargetMoments(means, seconds, (roots, table.fill_diagonal_(0.0)))


def _kind(method: str) -> str:
    """The second moments that a label distance needs."""
    if method not in ATTACHABLE:
        raise ValueError(f"label distance {method!r} has no attached moments: take one of {', '.join(ATTACHABLE)}")
    return _KINDS[method]


def _moments(data: LabeledDataset, kind: str) -> Moments:
    """Means ``(c, d)`` and second moments of the classes, float64, with a graph back to the features."""
    if data.normalised_weights.requires_grad:
        raise ValueError(f"attached moments are functions of the features alone: detach the weights of {data.name!r}")
    return _ClassMoments.apply(data.x, class_samples(data), kind)


def _of_classes(samples: Sequence[ClassSample], kind: str) -> Moments:
    """Means ``(c, d)`` and variances ``(c, d)``, covariances ``(c, d, d)`` or nothing, float64."""
    means = torch.stack([sample.mean for sample in samples])
    if kind == "means":
        return means, means.new_zeros(len(samples), 0)
    if kind == "variances":
        return means, torch.stack([sample.variance for sample in samples])
    return means, torch.stack([_covariance(sample) for sample in samples])


def _covariance(sample: ClassSample) -> Tensor:
    """``(d, d)``, summed over blocks of rows."""
    out = torch.zeros(len(sample.mean), len(sample.mean), dtype=torch.float64, device=sample.mean.device)
    for index, weights in _blocks(sample):
        rows = (sample.x[index].to(torch.float64) - sample.mean) * weights.sqrt()[:, None]
        out += rows.T @ rows
    return out


def _blocks(sample: ClassSample) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a class and their weights, a few at a time: float64 copies stay small."""
    rows = max(1, _BLOCK_ELEMENTS // max(sample.x.shape[1], 1))
    return zip(sample.index.split(rows), sample.weights.split(rows), strict=True)


class _ClassMoments(torch.autograd.Function):
    """:func:`_of_classes` of ``x (n, d)``; nothing of the size of ``x`` is kept or formed but its gradient.

    ``dL/dx_i = w_i (m_c + 2 v_c (x_i - mean_c))`` for gradients ``m_c`` of the means and ``v_c`` of the variances of
    its class; with covariances ``(V_c + V_c^T) (x_i - mean_c)``. Moving a mean moves no second moment.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, samples: Sequence[ClassSample], kind: str) -> Moments:
        ctx.samples, ctx.kind = samples, kind
        ctx.save_for_backward(x)
        return _of_classes(samples, kind)

    @staticmethod
    def backward(ctx: Any, to_means: Tensor, to_seconds: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return _MomentGradient.apply(x, to_means, to_seconds, ctx.samples, ctx.kind), None, None


class _MomentGradient(torch.autograd.Function):
    """The gradient above, linear in the upstream gradients, whose own derivative is taken class by class too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, to_means: Tensor, to_seconds: Tensor, samples: Sequence[ClassSample], kind: str
    ) -> Tensor:
        ctx.samples, ctx.kind = samples, kind
        ctx.save_for_backward(to_seconds)
        out = torch.empty_like(x)
        for c, sample in enumerate(samples):
            for index, weights in _blocks(sample):
                pull = to_means[c].expand(len(index), -1)
                if kind != "means":
                    centred = x[index].to(torch.float64) - sample.mean
                    both = 2 * to_seconds[c] if kind == "variances" else to_seconds[c] + to_seconds[c].T
                    pull = pull + (centred * both if kind == "variances" else centred @ both)
                out[index] = (weights[:, None] * pull).to(out.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.kind == "covariances":
            raise NotImplementedError("attached moments of label_distance='gaussian' are differentiable once")
        (to_seconds,) = ctx.saved_tensors
        out, means, seconds = torch.zeros_like(upstream), [], []
        for c, sample in enumerate(ctx.samples):
            mean, second = torch.zeros_like(sample.mean), torch.zeros_like(sample.mean)
            for index, weights in _blocks(sample):
                rows = upstream[index].to(torch.float64)
                mean += weights @ rows
                second += 2 * (weights @ (rows * (sample.x[index].to(torch.float64) - sample.mean)))
            means.append(mean)
            seconds.append(second)
            if ctx.kind == "variances":
                for index, weights in _blocks(sample):
                    moved = upstream[index].to(torch.float64) - mean
                    out[index] = (2 * weights[:, None] * to_seconds[c] * moved).to(out.dtype)
        to_second = torch.stack(seconds) if ctx.kind == "variances" else torch.zeros_like(to_seconds)
        return out, torch.stack(means), to_second, None, None


class _Bures(torch.autograd.Function):
    """``tr S_i + tr S_j - 2 tr (S_i^1/2 S_j S_i^1/2)^1/2`` of all pairs; ``d/dS_i = I - T_ij`` with the map ``T_ij``.

    With roots ``R_i = S_i^1/2`` and ``R_i R_j = U D V^T`` the trace is ``tr D`` and ``T_ij = R_i^+ U V^T R_j``.
    Covariances that do not move come as their roots and their own table.
    """

    @staticmethod
    def forward(ctx: Any, covariances: Tensor, fixed: tuple[Tensor, Tensor] | None) -> Tensor:
        roots, inverses = _roots(covariances)
        moving = len(roots)
        if fixed is not None:
            roots = torch.cat([roots, fixed[0]])
        ctx.save_for_backward(roots, inverses)
        traces = roots.square().sum((1, 2))
        table = traces[:, None] + traces[None, :]
        _subtract_cross_terms(table, roots, moving)
        if fixed is not None:
            table[moving:, moving:] = fixed[1]
        return table.fill_diagonal_(0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        roots, inverses = ctx.saved_tensors
        moving = len(inverses)
        weight = (upstream + upstream.T).fill_diagonal_(0.0)
        eye = torch.eye(roots.shape[1], dtype=roots.dtype, device=roots.device)
        gradient = weight[:moving].sum(1)[:, None, None] * eye
        for i, others in _pairs(len(roots), moving):
            for j, turn in enumerate(_turns(roots[i] @ roots[others]), others.start):
                for p, q, way in ((i, j, turn), (j, i, turn.T)):
                    if p < moving:
                        transport = inverses[p] @ way @ roots[q]
                        gradient[p] -= weight[i, j] * (transport + transport.T) / 2
        return gradient, None


def _subtract_cross_terms(table: Tensor, roots: Tensor, moving: int) -> None:
    """Take ``2 tr D`` from every pair whose first member is among the first ``moving``."""
    for i, others in _pairs(len(roots), moving):
        products = roots[i] @ roots[others]
        cross = 2 * (_turns(products) * products).sum((1, 2))
        table[i, others] -= cross
        table[others, i] -= cross


def _pairs(count: int, moving: int) -> Iterator[tuple[int, slice]]:
    """All pairs ``i < j`` with ``i < moving``: one ``i`` and a few ``j`` at a time, whose matrices then stay few."""
    for i in range(moving):
        yield from ((i, slice(j, min(j + _TOGETHER, count))) for j in range(i + 1, count, _TOGETHER))


def _turns(products: Tensor) -> Tensor:
    """``U V^T`` of ``U D V^T`` for a batch: by singular vectors, on a GPU by matrix products."""
    if products.device.type != "cpu":
        return polar_factor(products)
    U, _, Vh = torch.linalg.svd(products)
    return U @ Vh


def _roots(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric square roots, and their pseudoinverses."""
    roots, inverses = torch.empty_like(covariances), torch.empty_like(covariances)
    for k, covariance in enumerate(covariances):
        values, vectors = torch.linalg.eigh(covariance)
        deviations = values.clamp_min(0).sqrt()
        present = deviations > _LOST * deviations[-1]
        roots[k] = (vectors * deviations) @ vectors.T
        inverses[k] = (vectors * torch.where(present, 1.0 / deviations, 0.0)) @ vectors.T
    return roots, inverses


def _safe_root(values: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)


def _squared_distances(points: Tensor) -> Tensor:
    return torch.stack([(points - row).square().sum(1) for row in points])
