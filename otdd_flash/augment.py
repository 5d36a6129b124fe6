"""Features and labels of data sets as one ground cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.labels import LabelDistances, check_pair
from otdd_flash.types import LabeledDataset


def augment(
    source: LabeledDataset,
    target: LabeledDataset,
    labels: LabelDistances | None = None,
    *,
    feature_weight: float = 1.0,
    label_weight: float = 1.0,
) -> DotProductCost:
    """The cost ``C_ij = w_x |x_i - y_j|^2 + w_y W[l_i, l'_j]`` over the clouds (source, target).

    Source and target classes are stacked in one table, target labels counted on from the source's.

    Args:
        source: first data set.
        target: second data set.
        labels: class-to-class distances; ``None`` for a cost of features alone.
        feature_weight: ``w_x``; 0 compares labels only.
        label_weight: ``w_y``; 0 leaves the labels out.

    Returns:
        A cost over two clouds, ready for the solver.

    Raises:
        ValueError: widths, devices or class counts that do not fit, weights that are negative or both zero.

    Source: Alvarez-Melis and Fusi (2020), equation 4.
    """
    check_pair(source, target)
    if labels is None:
        return joint_cost([source, target], feature_weight=feature_weight, label_weight=label_weight)
    shape = (source.num_classes, target.num_classes)
    if tuple(labels.source_target.shape) != shape:
        raise ValueError(
            f"label distances are for {tuple(labels.source_target.shape)} classes of source and target, but the data "
            f"sets {source.name!r} and {target.name!r} have {shape}"
        )
    blocks = {(0, 0): labels.source_source, (0, 1): labels.source_target, (1, 1): labels.target_target}
    return joint_cost([source, target], blocks, feature_weight=feature_weight, label_weight=label_weight)


def joint_cost(
    datasets: Sequence[LabeledDataset],
    blocks: Mapping[tuple[int, int], Tensor] | None = None,
    *,
    feature_weight: float = 1.0,
    label_weight: float = 1.0,
    center: Tensor | None = None,
) -> DotProductCost:
    """The cost over the clouds of many data sets, their classes stacked in one table.

    Args:
        datasets: ``k`` data sets of one width and device.
        blocks: ``(c_i, c_j)`` class distances by pair of positions, for either order of which one is enough; pairs
            without a block must not be asked for. ``None`` for a cost of features alone.
        feature_weight: factor of the squared feature distance.
        label_weight: factor of the blocks.
        center: ``(d,)`` subtracted from every point; ``None`` for the mean of the sets.
    """
    for name, weight in (("feature_weight", feature_weight), ("label_weight", label_weight)):
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"{name} must be non-negative and finite, got {weight}")
    if feature_weight == 0 and (blocks is None or label_weight == 0):
        reason = "label_weight is 0 too" if blocks is not None else "there are no label distances"
        raise ValueError(f"feature_weight is 0 and {reason}: the cost would be zero everywhere")
    if blocks is None or label_weight == 0:
        clouds = [PointCloud(data.x, data.normalised_weights) for data in datasets]
        return DotProductCost.build(clouds, feature_weight=feature_weight, center=center)
    starts = [0, *itertools.accumulate(data.num_classes for data in datasets)]
    clouds = [
        PointCloud(data.x, data.normalised_weights, data.y + start)
        for data, start in zip(datasets, starts, strict=False)
    ]
    table = torch.zeros(starts[-1], starts[-1], dtype=torch.float64)
    for (i, j), block in blocks.items():
        rows, columns = (slice(starts[k], starts[k + 1]) for k in (i, j))
        table[rows, columns] = label_weight * block.cpu()
        if i != j:
            table[columns, rows] = table[rows, columns].T
    table = table.to(clouds[0].points.device)
    return DotProductCost.build(clouds, feature_weight=feature_weight, table=table, center=center)
