"""Two samples as one: what a check's statistic is a function of."""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.labels import label_distances
from otdd_flash.selection.gate import CheckOptions
from otdd_flash.selection.permutation import Statistics, split_divergences, split_weights
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
    """``(N, N)`` cost of the pooled sample from its squared feature distances."""
    cost = options.feature_weight * features
    if options.label_distance is None or options.label_weight == 0:
        return cost
    table = label_distances(pooled, pooled, method=options.label_distance).source_source
    return cost + options.label_weight * table.to(cost)[pooled.y][:, pooled.y]


def split_statistics(
    pooled: LabeledDataset, cost: Tensor, n: int, permutations: int, options: CheckOptions
) -> tuple[Statistics, float]:
    """The statistic of the given split, the first ``n`` against the rest, and of random ones; and its epsilon."""
    weights = pooled.normalised_weights
    mean = float(weights @ cost @ weights)
    epsilon = options.relative_epsilon * mean if mean > 0 else 1.0
    a, b = split_weights(weights, n, permutations, options.seed)
    return split_divergences(cost, a, b, epsilon, tol=options.tol), epsilon


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``(n, m)`` float64 squared distances of centred points, never negative."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * (x @ y.T)).clamp_min(0.0)
