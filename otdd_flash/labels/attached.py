"""Label tables as differentiable functions of the features: class moments on the autograd tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from otdd_flash.labels.bures import BuresTable, FixedClasses
from otdd_flash.labels.moment_batches import prepare
from otdd_flash.labels.samples import ClassSample, check_pair, class_samples
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

ATTACHABLE = ("means", "gaussian_diag", "gaussian")

Moments = tuple[Tensor, Tensor]  # means (c, d); variances (c, d) or (c, 0)


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """What :func:`attached_table` has to know of a data set that does not move, float64, without a graph.

    Args:
        means: ``(c', d)``.
        variances: ``(c', d)``, or ``(c', 0)`` where they are not needed.
        bures: for ``gaussian``, factors of the covariances and the Bures distances between them.
    """

    means: Tensor
    variances: Tensor
    bures: FixedClasses | None = None


def attached_table(
    source: LabeledDataset, target: LabeledDataset, method: str, *, target_moments: TargetMoments | None = None
) -> Tensor:
    """``(c + c', c + c')`` squared class-to-class distances with a graph back to both sides' features.

    The values are those of :func:`otdd_flash.labels.label_distances`. A feature that is constant within a class has the
    subgradient 0 in its standard deviation. ``gaussian`` is differentiable once, the others twice; see
    :mod:`otdd_flash.labels.bures`.

    Args:
        source: ``c`` classes.
        target: ``c'`` classes.
        method: ``means``, ``gaussian_diag`` or ``gaussian``.
        target_moments: :func:`class_moments` of a target that does not move.

    Raises:
        ValueError: another method, weights with a graph, or data sets that cannot be compared.
    """
    if method not in ATTACHABLE:
        raise ValueError(f"label distance {method!r} has no attached moments: take one of {', '.join(ATTACHABLE)}")
    check_pair(source, target)
    ours = _samples(source)
    theirs = [] if target_moments is not None else _samples(target)
    prepare([*ours, *theirs], method)
    moments = [_ClassMoments.apply(source.x, ours, method == "gaussian_diag")]
    if target_moments is None:
        moments.append(_ClassMoments.apply(target.x, theirs, method == "gaussian_diag"))
    else:
        moments.append((target_moments.means, target_moments.variances))
    means, variances = (torch.cat(parts) for parts in zip(*moments, strict=True))
    if method == "gaussian_diag":
        return _squared_distances(torch.cat([means, _safe_root(variances)], 1))
    table = _squared_distances(means)
    if method == "means":
        return table
    other, fixed = (target.x, None) if target_moments is None else (None, target_moments.bures)
    return table + BuresTable.apply(source.x, other, (ours, theirs), fixed)


def class_moments(data: LabeledDataset, method: str) -> TargetMoments:
    """The moments of a target, taken once for many calls of :func:`attached_table`."""
    samples = class_samples(data)
    prepare(samples, method)
    means, variances = _of_classes(samples, with_variances=method == "gaussian_diag")
    return TargetMoments(means, variances, FixedClasses.of(samples) if method == "gaussian" else None)


def _samples(data: LabeledDataset) -> list[ClassSample]:
    """The classes of a set whose features alone may have a graph."""
    if data.normalised_weights.requires_grad:
        raise ValueError(f"attached moments are functions of the features alone: detach the weights of {data.name!r}")
    return class_samples(data)


def _of_classes(samples: Sequence[ClassSample], *, with_variances: bool) -> Moments:
    """Means ``(c, d)``, and variances ``(c, d)`` or nothing ``(c, 0)``, float64."""
    means = torch.stack([sample.mean for sample in samples])
    if not with_variances:
        return means, means.new_zeros(len(samples), 0)
    return means, torch.stack([sample.variance for sample in samples])


class _ClassMoments(torch.autograd.Function):
    """:func:`_of_classes` of ``x (n, d)``; nothing of the size of ``x`` is kept or formed but its gradient.

    ``dL/dx_i = w_i (m_c + 2 v_c (x_i - mean_c))`` for gradients ``m_c`` of the means and ``v_c`` of the variances of
    its class. Moving a mean moves no variance.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, samples: Sequence[ClassSample], with_variances: bool) -> Moments:
        ctx.samples, ctx.with_variances = samples, with_variances
        ctx.save_for_backward(x)
        return _of_classes(samples, with_variances=with_variances)

    @staticmethod
    @plain_torch
    def backward(ctx: Any, to_means: Tensor, to_variances: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return _MomentGradient.apply(x, to_means, to_variances, ctx.samples, ctx.with_variances), None, None


class _MomentGradient(torch.autograd.Function):
    """The gradient above, linear in the upstream gradients, whose own derivative is taken class by class too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, to_means: Tensor, to_variances: Tensor, samples: Sequence[ClassSample],
        with_variances: bool,
    ) -> Tensor:  # fmt: skip
        ctx.samples, ctx.with_variances = samples, with_variances
        ctx.save_for_backward(to_variances)
        out = torch.empty_like(x)
        for c, sample in enumerate(samples):
            for index, weights in sample.pieces():
                pull = to_means[c].expand(len(index), -1)
                if with_variances:
                    pull = pull + 2 * to_variances[c] * (x[index].to(torch.float64) - sample.mean)
                out[index] = (weights[:, None] * pull).to(out.dtype)
        return out

    @staticmethod
    @plain_torch
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (to_variances,) = ctx.saved_tensors
        out, means, seconds = torch.zeros_like(upstream), [], []
        for c, sample in enumerate(ctx.samples):
            mean, second = torch.zeros_like(sample.mean), torch.zeros_like(sample.mean)
            for index, weights in sample.pieces():
                rows = upstream[index].to(torch.float64)
                mean += weights @ rows
                second += 2 * (weights @ (rows * (sample.x[index].to(torch.float64) - sample.mean)))
            means.append(mean)
            seconds.append(second)
            if ctx.with_variances:
                for index, weights in sample.pieces():
                    moved = upstream[index].to(torch.float64) - mean
                    out[index] = (2 * weights[:, None] * to_variances[c] * moved).to(out.dtype)
        to_second = torch.stack(seconds) if ctx.with_variances else torch.zeros_like(to_variances)
        return out, torch.stack(means), to_second, None, None


def _safe_root(values: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)


def _squared_distances(points: Tensor) -> Tensor:
    return torch.stack([(points - row).square().sum(1) for row in points])
