"""Features and labels of two data sets as one ground cost."""

from __future__ import annotations

import math

import torch

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
    for name, weight in (("feature_weight", feature_weight), ("label_weight", label_weight)):
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"{name} must be non-negative and finite, got {weight}")
    labelled = labels is not None and label_weight > 0
    if feature_weight == 0 and not labelled:
        reason = "label_weight is 0 too" if labels is not None else "there are no label distances"
        raise ValueError(f"feature_weight is 0 and {reason}: the cost would be zero everywhere")
    if labels is None or not labelled:
        clouds = [PointCloud(data.x, data.normalised_weights) for data in (source, target)]
        return DotProductCost.build(clouds, feature_weight=feature_weight)
    shape = (source.num_classes, target.num_classes)
    if tuple(labels.source_target.shape) != shape:
        raise ValueError(
            f"label distances are for {tuple(labels.source_target.shape)} classes of source and target, but the data "
            f"sets {source.name!r} and {target.name!r} have {shape}"
        )
    clouds = [
        PointCloud(source.x, source.normalised_weights, source.y),
        PointCloud(target.x, target.normalised_weights, target.y + source.num_classes),
    ]
    table = (label_weight * labels.joint()).to(source.x.device, torch.float64)
    return DotProductCost.build(clouds, feature_weight=feature_weight, table=table)
