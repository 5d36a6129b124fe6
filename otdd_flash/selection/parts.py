"""What a check looks at: four statistics of every split of a pooled sample, and one exact p-value of all of them.

``distance``     the debiased divergence for ``C = w_x |x - x'|^2 + w_y W[l, l']``. Its class distances ``W`` are those
                 of the pooled sample: where two classes exchange their names, both become the same mixture, and
                 ``W`` between them vanishes.
``classes``      the mean over classes of the divergence between either side's samples *of the class*, by name. It sees
                 exchanged names, and nothing of how frequent classes are.
``frequencies``  the chi-squared distance between the class frequencies of both sides.
``neighbors``    the difference of the sides' mean surprise: how much a sample's label is unlike those of its nearest
                 neighbors in the pooled sample. A divergence sees a share ``r`` of wrong labels as ``r^2``, this as
                 ``r``.

All are functions of the pooled sample and of the split alone. Each is put on the scale of its own distribution over the
splits (0 at its mean, 1 at its 95 % quantile), and the largest is *the* statistic: it is exchangeable like its parts,
so that its permutation p-value is exact, with nothing to correct for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from otdd_flash.selection.gate import CheckOptions
from otdd_flash.selection.permutation import Statistics, split_divergences, split_weights
from otdd_flash.selection.pooled import pooled_cost, relative_epsilon, squared_distances
from otdd_flash.types import LabeledDataset

NEIGHBORS = 10
_COARSER = (
    3  # epsilon within classes: of their few samples the coarse features tell more (12 against 7 of 14 exchanges)
)
_EQUAL = 1e-10  # of a statistic's unit: the last digits of equal splits may differ


@dataclass(frozen=True, eq=False)
class SplitStatistics:
    """Statistics of all splits of a pooled sample, the first of which is the given one.

    Args:
        parts: ``(1 + B,)`` values by name.
        units: what is large for each, in its own units.
        distance: the divergences with their certificate.
        first: the first of them once more, solved as far as it takes to know it; the same iterations for all splits
            are what makes the p-value exact.
        epsilon: of these, in units of the cost.
    """

    parts: dict[str, Tensor]
    units: dict[str, float]
    distance: Statistics
    first: Statistics
    epsilon: float


def split_statistics(
    pooled: LabeledDataset, n: int, options: CheckOptions, *, permutations: int, seed: int
) -> SplitStatistics:
    """All parts of the split after the first ``n`` rows and of random ones.

    Args:
        pooled: both samples, the reference first.
        n: rows of the reference.
        options: of the check; without a label distance the divergence of the features is the only part.
        permutations: random splits besides the given one.
        seed: of the splits.
    """
    x = pooled.x.to(torch.float64)
    x = x - x.mean(0)
    features = options.feature_weight * squared_distances(x, x).fill_diagonal_(0.0)
    weights = pooled.normalised_weights
    a, b = split_weights(weights, n, permutations, seed)
    cost = pooled_cost(pooled, features, options)
    epsilon = relative_epsilon(float(weights @ cost @ weights), options)
    distance = split_divergences(cost, a, b, epsilon, tol=options.tol, max_iterations=options.max_iterations)
    first = _refined(cost, a[:, :1], b[:, :1], epsilon, distance, options)
    parts, units = {"distance": distance.values}, {"distance": epsilon}
    if options.sees_labels:
        classes = one_hot(pooled.y, pooled.num_classes).to(torch.float64)
        parts["classes"], units["classes"] = _class_divergences(pooled, features, a, b, options)
        shares = (classes.T @ weights)[:, None]
        parts["frequencies"] = ((classes.T @ a - classes.T @ b).square() / shares).sum(0)
        surprise = neighbor_surprise(features, classes, weights)
        parts["neighbors"] = (surprise @ a - surprise @ b).abs()
        units |= {"frequencies": 1.0, "neighbors": 1.0}
    return SplitStatistics(parts, units, distance, first, epsilon)


def _refined(
    cost: Tensor, a: Tensor, b: Tensor, epsilon: float, found: Statistics, options: CheckOptions
) -> Statistics:
    """The given split with a smaller tolerance, where its value is not known well enough yet."""
    for tol in (options.tol / 10, options.tol / 100):
        if found.error <= options.accuracy * max(abs(found.value), epsilon):
            break
        found = split_divergences(cost, a, b, epsilon, tol=tol, max_iterations=options.max_iterations)
    return found


def _class_divergences(
    pooled: LabeledDataset, features: Tensor, a: Tensor, b: Tensor, options: CheckOptions
) -> tuple[Tensor, float]:
    """``(1 + B,)`` mean divergences within a class, by the class's share of the pooled sample, and their epsilon.

    A class that a split leaves to one side alone has no divergence there and is left out of that split's mean.
    """
    weights = pooled.normalised_weights
    rows = [(pooled.y == k).nonzero()[:, 0] for k in range(pooled.num_classes)]
    shares = [float(weights[index].sum()) for index in rows]
    spread = sum(float(weights[index] @ features[index][:, index] @ weights[index]) for index in rows)
    epsilon = _COARSER * relative_epsilon(spread / sum(share**2 for share in shares), options)
    total, covered = torch.zeros_like(a[0]), torch.zeros_like(a[0])
    for index, share in zip(rows, shares, strict=True):
        left, right = a[index], b[index]
        both = ((left.sum(0) > 0) & (right.sum(0) > 0)).nonzero()[:, 0]
        if not len(both):
            continue
        left, right = (side[:, both] / side[:, both].sum(0) for side in (left, right))
        found = split_divergences(
            features[index][:, index], left, right, epsilon, tol=options.tol, max_iterations=options.max_iterations
        )
        total[both] += share * found.values
        covered[both] += share
    return torch.where(covered > 0, total / covered, 0.0), epsilon


def neighbor_surprise(features: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """``(N,)`` minus the logarithm of the share of a sample's nearest neighbors that have its class.

    Whatever is as near as the last neighbor counts as well: among equal samples the order of the rows must not decide.

    Args:
        features: ``(N, N)`` squared distances.
        classes: ``(N, c)`` indicators.
        weights: ``(N,)`` positive.
    """
    others = features.clone().fill_diagonal_(torch.inf)
    k = min(NEIGHBORS, len(features) - 1)
    reach = others.kthvalue(k, dim=1).values
    near = (others <= (reach * (1 + _EQUAL) + _EQUAL * features.mean())[:, None]).to(weights) * weights
    share = ((near @ classes) * classes).sum(1) / near.sum(1)
    return -(share + 1 / NEIGHBORS).log()


def p_values(parts: dict[str, Tensor], units: dict[str, float]) -> tuple[float, dict[str, float]]:
    """The exact p-value of the largest standardised part, and each part's own; the first split is the observed one."""
    standard, alone = [], {}
    for name, values in parts.items():
        # the quantile of a few large values among equal ones is below their mean
        scale = max(float(torch.quantile(values, 0.95) - values.mean()), float(values.std()))
        moves = scale > _EQUAL * max(units[name], float(values.abs().max()))
        standard.append((values - values.mean()) / scale if moves else torch.zeros_like(values))
        alone[name] = _share_reached(standard[-1])
    return _share_reached(torch.stack(standard).amax(0)), alone


def _share_reached(values: Tensor) -> float:
    """``(1 + #{permuted >= observed}) / (1 + B)``."""
    return int((values >= values[0] - 1e-9).sum()) / len(values)
