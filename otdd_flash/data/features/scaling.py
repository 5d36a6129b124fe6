"""Scaling of features: standardisation and unit length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

ScalingName = Literal["none", "standardize", "l2"]


@plain_torch_methods
@dataclass(frozen=True)
class Standardizer:
    """``(x - mean) / std`` column by column.

    Args:
        mean: ``(d,)`` float64.
        std: ``(d,)`` float64, positive; one for constant columns.
        constant: number of columns without spread, which are only centred.
        fitted_on: what the constants come from.
    """

    mean: Tensor
    std: Tensor
    constant: int = 0
    fitted_on: str = "given"

    @classmethod
    def fit(cls, datasets: Sequence[LabeledDataset], side: str) -> Standardizer:
        """Weighted mean and population deviation of the columns, over all data sets with equal mass each."""
        moments = []
        for dataset in datasets:
            x, weights = dataset.x.detach().double(), dataset.normalised_weights
            mean = weights @ x
            moments.append((mean, weights @ (x - mean).square()))
        mean = torch.stack([m for m, _ in moments]).mean(0)
        variance = torch.stack([v + (m - mean).square() for m, v in moments]).mean(0)
        flat = variance <= torch.finfo(torch.float32).eps ** 2 * mean.square()
        names = " and ".join(repr(dataset.name) for dataset in datasets)
        std = torch.where(flat, torch.ones_like(variance), variance.sqrt())
        return cls(mean.cpu(), std.cpu(), int(flat.sum()), f"{side} {names}")

    @classmethod
    def given(cls, mean: object, std: object, dataset: LabeledDataset) -> Standardizer:
        """Constants of the user: one number, one a channel of the pictures, or one a column.

        Raises:
            ValueError: another length, or deviations that are not positive.
        """
        mean_columns, std_columns = (_columns(value, dataset, name) for name, value in (("mean", mean), ("std", std)))
        if not (std_columns > 0).all():
            raise ValueError(f"std must be positive, the least is {std_columns.min().item()}")
        return cls(mean_columns, std_columns)

    def __call__(self, dataset: LabeledDataset) -> LabeledDataset:
        """The data set with scaled features."""
        if dataset.d != len(self.mean):
            raise ValueError(f"standardize has constants for {len(self.mean)} features, {dataset.name} has {dataset.d}")
        device = dataset.x.device
        x = (dataset.x.double() - self.mean.to(device)) / self.std.to(device)
        note = f"standardized with constants {'given' if self.fitted_on == 'given' else f'fitted on {self.fitted_on}'}"
        return replace(dataset, x=x.to(dataset.x.dtype), levels=None, notes=(*dataset.notes, note))


def unit_rows(dataset: LabeledDataset) -> tuple[LabeledDataset, int]:
    """Rows of length one, so that ``||x - y||^2 = 2 - 2 cos(x, y)``; and the number of zero rows, which stay zero."""
    norms = torch.linalg.vector_norm(dataset.x, dim=1, keepdim=True)
    zero = int((norms == 0).sum())
    notes = ["rows scaled to unit length (cosine cost)"]
    if zero:
        notes.append(f"{zero} zero rows have no direction and stayed zero")
    x = dataset.x / torch.where(norms == 0, torch.ones_like(norms), norms)
    return replace(dataset, x=x, levels=None, notes=(*dataset.notes, *notes)), zero


def _columns(value: object, dataset: LabeledDataset, name: str) -> Tensor:
    """A constant a column."""
    given = torch.as_tensor(value, dtype=torch.float64).flatten().cpu()
    shape = dataset.image_shape
    channels = 1 if shape is None or len(shape) == 2 else shape[0]
    if len(given) not in (1, channels, dataset.d):
        raise ValueError(
            f"{name} has {len(given)} values; give one, one a channel ({channels}) or one a feature ({dataset.d})"
        )
    return given.repeat_interleave(dataset.d // len(given))
