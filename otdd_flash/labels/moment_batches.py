"""Moments of many classes in few launches, for GPUs: what :class:`ClassSample` computes on its own, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from otdd_flash.labels.samples import ClassSample

_BATCH_ELEMENTS = 1 << 24  # 128 MiB of float64 rows at a time
_SHIFT = 8 * torch.finfo(torch.float64).eps  # of the largest variance, a feature: what a Cholesky factor needs to exist


def fill_moments(classes: Sequence[ClassSample], method: str) -> None:
    """Compute what ``method`` needs of all classes that have not got it, and keep it in them.

    Factors of classes of more samples than varying features are triangles: Cholesky factors of the covariance with its
    diagonal raised by :func:`shift`. A class too large for a batch, or without such a factor, computes its own.

    Args:
        classes: of one feature width and device.
        method: ``means``, ``gaussian_diag`` or ``gaussian``.
    """
    name = {"means": "mean", "gaussian_diag": "variance", "gaussian": "factor"}[method]
    todo = [sample for sample in classes if type(sample) is ClassSample and name not in vars(sample)]
    covariances: list[tuple[ClassSample, Tensor, Tensor]] = []
    for batch in _batches({id(sample): sample for sample in todo}.values()):
        rows = pad_sequence([sample.points.to(torch.float64) for sample in batch], batch_first=True)
        weights = pad_sequence([sample.weights for sample in batch], batch_first=True)
        means = (weights[:, None] @ rows)[:, 0]
        keep(batch, "mean", means)
        if method == "means":
            continue
        present = torch.arange(rows.shape[1], device=rows.device) < _sizes(batch)[:, None]
        varies = ((rows != rows[:, :1]) & present[:, :, None]).any(1)
        centred = rows.sub_(means[:, None]).mul_(weights.sqrt()[:, :, None]).mul_(varies[:, None])
        if method == "gaussian_diag":
            keep(batch, "variance", centred.square().sum(1))
            continue
        many = (_sizes(batch) > varies.sum(1)).tolist()
        few, lots = ([k for k, lot in enumerate(many) if lot == wanted] for wanted in (False, True))
        keep([batch[k] for k in few], "factor", [centred[k, : batch[k].n].clone() for k in few])
        chosen = centred[lots]
        covariances += zip([batch[k] for k in lots], chosen.mT @ chosen, varies[lots], strict=True)
    _keep_triangles(covariances)


def keep(classes: Sequence[ClassSample], name: str, values: Sequence[Tensor] | Tensor) -> None:
    """Put a value of each class where its cached property looks for it."""
    for sample, value in zip(classes, values, strict=True):
        vars(sample)[name] = value


def shift(factor: Tensor) -> Tensor:
    """By how much the variance of each feature may have been raised."""
    return _SHIFT * factor.shape[0] * factor.square().sum(0).max()


def _keep_triangles(found: Sequence[tuple[ClassSample, Tensor, Tensor]]) -> None:
    """Cholesky factors of covariances ``(d, d)``, restricted to the features that vary, in one batch."""
    if not found:
        return
    samples, matrices, masks = zip(*found, strict=True)
    covariance, varies = torch.stack(matrices), torch.stack(masks)
    counts = varies.sum(1)
    ranks = counts.tolist()
    size, width = max(*ranks, 1), varies.shape[1]
    order = torch.argsort(~varies, dim=1, stable=True)[:, :size]  # varying features first
    inner = covariance.gather(1, order[:, :, None].expand(-1, -1, width)).gather(2, order[:, None].expand(-1, size, -1))
    diagonal = inner.diagonal(dim1=1, dim2=2)
    diagonal += _SHIFT * counts[:, None] * diagonal.amax(1, keepdim=True)
    diagonal += (torch.arange(size, device=counts.device) >= counts[:, None]).to(diagonal)  # padding: a unit block
    triangles, failed = torch.linalg.cholesky_ex(inner, upper=True)
    factors = covariance.new_zeros(len(samples), size, width)
    factors.scatter_(2, order[:, None].expand(-1, size, -1), triangles)
    for sample, factor, rank, bad in zip(samples, factors, ranks, failed.tolist(), strict=True):
        if not bad:
            vars(sample)["factor"] = factor[:rank]


def _sizes(batch: Sequence[ClassSample]) -> Tensor:
    return torch.tensor([sample.n for sample in batch], device=batch[0].x.device)


def _batches(classes: Iterable[ClassSample]) -> Iterator[list[ClassSample]]:
    """Classes of like size whose padded rows stay within the budget; those beyond it alone are left out."""
    batch: list[ClassSample] = []
    for sample in sorted(classes, key=lambda sample: -sample.n):
        width = sample.x.shape[1]
        if sample.n * width > _BATCH_ELEMENTS:
            continue
        if batch and (len(batch) + 1) * batch[0].n * width > _BATCH_ELEMENTS:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch
