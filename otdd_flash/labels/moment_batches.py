"""Moments of many classes in few launches, for GPUs: what :class:`ClassSample` computes on its own, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from otdd_flash.labels.samples import ClassSample
from otdd_flash.labels.triangles import triangles

_BATCH_ELEMENTS = 1 << 24  # 128 MiB of float64 rows at a time


def prepare(classes: Sequence[ClassSample], method: str) -> None:
    """Moments of all classes in few launches on a GPU; on a CPU each class computes its own on first use."""
    if classes and classes[0].x.device.type != "cpu":
        fill_moments(classes, method)


def fill_moments(classes: Sequence[ClassSample], method: str) -> None:
    """Compute what ``method`` needs of all classes that have not got it, and keep it in them.

    A class too large for a batch computes its own on first use.

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
    if covariances:
        samples, matrices, masks = zip(*covariances, strict=True)
        keep(samples, "factor", triangles(torch.stack(matrices), torch.stack(masks)))


def keep(classes: Sequence[ClassSample], name: str, values: Sequence[Tensor] | Tensor) -> None:
    """Put a value of each class where its cached property looks for it."""
    for sample, value in zip(classes, values, strict=True):
        vars(sample)[name] = value


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
