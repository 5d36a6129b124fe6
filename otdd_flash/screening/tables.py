"""Screening distances of all pairs of data sets in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from otdd_flash.arguments import check_datasets
from otdd_flash.checks import check_choice, check_count
from otdd_flash.screening.classes import moment_distances
from otdd_flash.screening.cut import Method
from otdd_flash.screening.sliced import Slices
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


@plain_torch
def screening_matrix(
    datasets: Sequence[LabeledDataset], *, method: Method = "sliced", quantiles: int = 256, **settings: Any
) -> Tensor:
    """``(k, k)`` float64 squared screening distances of all pairs.

    Args:
        datasets: ``k`` sets of one width.
        method: ``sliced`` (each set is projected once) or ``moments``.
        quantiles: of the sliced summaries.
        **settings: of :meth:`Slices.draw` or :func:`moment_distances`.
    """
    datasets = check_datasets("datasets", datasets)
    check_choice("method", method, get_args(Method))
    if method == "moments":
        return moment_distances(datasets, **settings)
    quantiles = check_count("quantiles", quantiles)
    slices = Slices.draw(datasets, **settings)
    return mean_squared_differences(torch.stack([slices.summary(data, quantiles).flatten() for data in datasets]))


def mean_squared_differences(sketches: Tensor) -> Tensor:
    """``(k, k)`` mean squared differences of the rows of ``sketches (k, s)``, never negative, zero on the diagonal."""
    flat = sketches - sketches.mean(0)
    square = flat.square().sum(1)
    out = (square[:, None] + square - 2 * flat @ flat.T).clamp_min(0.0) / flat.shape[1]
    return ((out + out.T) / 2).fill_diagonal_(0.0)
