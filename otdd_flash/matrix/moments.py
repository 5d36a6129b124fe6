"""First moments of each data set, and the one epsilon of a matrix taken from them.

Self terms ``OT_eps(a, a)`` can be shared by all pairs of a set only where all pairs have one epsilon. A relative
epsilon is therefore a fraction of one reference cost, the mean over all pairs of sets of

    w_x E|x - y|^2 + w_y E|v_l - v_l'|^2,      v_l = (mean, standard deviations) of class l

which needs no pair to be looked at: for the label distances ``means`` and ``gaussian_diag`` (and without labels) it is
exactly the mean cost, for ``gaussian`` and ``sinkhorn`` the label part is a lower bound of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.labels import class_samples
from otdd_flash.problems import DistanceOptions
from otdd_flash.types import LabeledDataset


@dataclass(frozen=True, eq=False)
class Moments:
    """What the reference costs need to know of one data set; float64, on the host.

    Args:
        mean: ``(d,)`` mean of the features.
        spread: ``E|x - mean|^2``.
        label_mean: ``(2 d,)`` mean over samples of ``v_l``.
        label_spread: ``E|v_l - label_mean|^2``, means and deviations apart, ``(2,)``.
        centre: ``(d,)`` unweighted mean of the class means.
        between: sum over classes of ``|class mean - centre|^2``.
        within: sum over classes of the trace of their covariance.
        classes: number of classes.
    """

    mean: Tensor
    spread: Tensor
    label_mean: Tensor
    label_spread: Tensor
    centre: Tensor
    between: Tensor
    within: Tensor
    classes: Tensor

    @classmethod
    def of(cls, dataset: LabeledDataset) -> Moments:
        """From the class samples of a data set, in one sweep each for means and variances."""
        samples = class_samples(dataset)
        means = torch.stack([sample.mean for sample in samples])
        variances = torch.stack([sample.variance for sample in samples])
        mass = torch.zeros(len(samples), dtype=torch.float64, device=dataset.x.device)
        mass.index_add_(0, dataset.y, dataset.normalised_weights)
        deviations = variances.sqrt()
        mean, deviation, spread = mass @ means, mass @ deviations, variances.sum(1)
        apart = torch.stack([mass @ (v - m).square().sum(1) for v, m in ((means, mean), (deviations, deviation))])
        present = mass > 0
        means, variances = means[present], variances[present]
        centre = means.mean(0)
        values = (
            mean, apart[0] + mass @ spread, torch.cat([mean, deviation]), apart, centre,
            (means - centre).square().sum(), variances.sum(), present.sum().to(torch.float64),
        )  # fmt: skip
        return cls(*(value.cpu() for value in values))

    def tensors(self) -> dict[str, Tensor]:
        """For the store."""
        return dict(vars(self))


def reference_cost(pairs: Iterable[tuple[Moments, Moments]], options: DistanceOptions) -> float:
    """Mean over those pairs of sets that have equal width of the cost above; 0 where there is none."""
    total, count = 0.0, 0
    for x, y in pairs:
        if len(x.mean) != len(y.mean):
            continue
        total += options.feature_weight * float(x.spread + y.spread + (x.mean - y.mean).square().sum())
        if options.labelled:
            apart = (x.label_mean - y.label_mean).square().reshape(2, -1).sum(1) + x.label_spread + y.label_spread
            total += options.label_weight * float(apart[0] if options.label_distance == "means" else apart.sum())
        count += 1
    return total / count if count else 0.0


def reference_class_cost(moments: Sequence[Moments]) -> float:
    """Mean squared distance between samples of two different classes, over the classes of all sets of equal width."""
    groups: dict[int, list[Moments]] = defaultdict(list)
    for item in moments:
        groups[len(item.mean)].append(item)
    total, weight = 0.0, 0.0
    for group in groups.values():
        counts = torch.stack([item.classes for item in group])
        c = float(counts.sum())
        if c < 2:
            continue
        centres = torch.stack([item.centre for item in group])
        about = (centres - counts @ centres / c).square().sum(1) @ counts
        between = float(about + torch.stack([item.between for item in group]).sum())
        within = float(torch.stack([item.within for item in group]).sum()) / c
        total, weight = total + c * (2 * between / (c - 1) + 2 * within), weight + c
    return total / weight if weight else 0.0
