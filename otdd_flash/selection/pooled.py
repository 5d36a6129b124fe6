"""Two samples as one: what a check's statistic is a function of."""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.labels import label_distances
from otdd_flash.selection.gate import CheckOptions
from otdd_flash.types import LabeledDataset


def pool(reference: LabeledDataset, batch: LabeledDataset) -> LabeledDataset:
    """Both sides as one set, classes matched by name; every sample keeps its relative weight."""
    names = tuple(sorted({*reference.class_names, *batch.class_names}))
    place = {name: i for i, name in enumerate(names)}
    y = [torch.tensor([place[n] for n in s.class_names], device=s.x.device)[s.y] for s in (reference, batch)]
    total = reference.n + batch.n
    weights = torch.cat([s.normalised_weights * s.n / total for s in (reference, batch)])
    dtype = torch.promote_types(reference.x.dtype, batch.x.dtype)
    x = torch.cat([s.x.to(dtype) for s in (reference, batch)])
    return LabeledDataset(x=x, y=torch.cat(y), class_names=names, weights=weights, name="pooled")


def pooled_cost(pooled: LabeledDataset, features: Tensor, options: CheckOptions) -> Tensor:
    """``(N, N)`` cost from weighted squared feature distances, with the distances between the pooled classes."""
    if not options.sees_labels:
        return features
    table = label_distances(pooled, pooled, method=options.label_distance).source_source
    return features + options.label_weight * table.to(features)[pooled.y][:, pooled.y]


def relative_epsilon(mean_cost: float, options: CheckOptions) -> float:
    """The fraction of the mean cost that the options ask for."""
    return options.relative_epsilon * mean_cost if mean_cost > 0 else 1.0


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``(n, m)`` float64 squared distances of centred points, never negative."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * (x @ y.T)).clamp_min(0.0)
