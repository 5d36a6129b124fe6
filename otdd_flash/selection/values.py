"""What each sample of a pool adds to the distance between the pool and a target.

Convention. With ``h = f - f_aa``, the cross potential minus the self potential, ``h_i`` is the derivative of the
debiased divergence ``S(a, b)`` in the weight ``a_i``, up to a constant that depends on nothing but the problem. Moving
mass to sample ``i`` and scaling down all others removes the constant: the *calibrated gradient*

    v_i = d/dt S(a + t (e_i - a_{-i}), b) = (h_i - <a, h>) / (1 - a_i)          a_{-i}: the others, rescaled to mass one

For uniform weights ``v_i = h_i - mean_{j != i} h_j`` (Just et al. 2023, there without the self term). A
positive value means that more of such a sample takes the pool away from the target: mislabelled, noisy, foreign.
Scaling down only the samples of its own class keeps the class masses, and tells a bad sample from one of a class that
is over-represented or hard:

    v_i^class = (h_i - mean_{own class} h) / (1 - a_i / a(own class))           the mean weighted, 0 for all of a class

The same gradient of the divergence without labels (same points, same epsilon) is the *feature part*; what remains of
the total is the *label part*, which is how mislabelled samples are told from odd ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides, settled
from otdd_flash.checks import check_choice, check_count, check_flag
from otdd_flash.distance import DistanceOptions, DistanceResult, dataset_distance
from otdd_flash.selection.records import write_columns
from otdd_flash.selection.sides import prepare
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset

Part = Literal["total", "features", "labels"]
PARTS = ("total", "features", "labels")

# A tenth of the mean cost blurs single samples, a hundredth makes the duals noisy.
DEFAULT_OPTIONS = DistanceOptions(relative_epsilon=0.03)

_ALONE = 1e-10  # of the mass of its group, that others have: with less the mean is the sample itself but for rounding


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class SampleValues:
    """Calibrated gradients of the divergence in the pool's weights, in units of the cost; positive is bad.

    Args:
        gradients: ``(n,)`` float64 by part: ``h``, before calibration.
        pool: the samples, as valued.
        result: the distance whose potentials were used.
    """

    gradients: dict[str, Tensor]
    pool: LabeledDataset = field(repr=False)
    result: DistanceResult = field(repr=False)

    def scores(self, part: Part = "total", *, within_class: bool = False) -> Tensor:
        """``(n,)`` float64 calibrated gradients.

        Args:
            part: ``total``, or its share due to ``features`` or to ``labels``.
            within_class: against the samples of the same class instead of against all others.

        Raises:
            ValueError: a part that was not computed.
        """
        check_choice("part", part, tuple(self.gradients))
        check_flag("within_class", within_class)
        h, a, y = self.gradients[part], self.pool.normalised_weights, self.pool.y
        if not within_class:
            return _calibrate(h, a, torch.zeros_like(y))
        return _calibrate(h, a, y)

    def order(self, part: Part = "total", *, within_class: bool = False) -> Tensor:
        """``(n,)`` rows of the pool, worst first; ties in the order of the pool."""
        return torch.argsort(self.scores(part, within_class=within_class), descending=True, stable=True)

    def mislabelled(self, count: int) -> Tensor:
        """The ``count`` rows of the pool whose label contributes most within its class, worst first."""
        count = check_count("count", count, least=0)
        part: Part = "labels" if "labels" in self.gradients else "total"
        return self.order(part, within_class=True)[:count]

    def by_class(self, part: Part = "total") -> dict[str, float]:
        """Weighted mean score of each class: positive where the pool has too much of it, or of the wrong kind."""
        scores, y = self.scores(part), self.pool.y
        sums = torch.zeros(self.pool.num_classes, dtype=scores.dtype, device=scores.device)
        sums.index_add_(0, y, _shares(self.pool.normalised_weights, y) * scores)
        return dict(zip(self.pool.class_names, sums.tolist(), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """The table of samples, worst first: row, id, class, weight, every part overall and within the class."""
        order = self.order()
        ids = torch.arange(self.pool.n) if self.pool.ids is None else self.pool.ids
        table: dict[str, list[Any]] = {
            "row": order.tolist(),
            "id": ids.to(order.device)[order].tolist(),
            "class": [self.pool.class_names[i] for i in self.pool.y[order].tolist()],
            "weight": self.pool.normalised_weights[order].tolist(),
        }
        for part in self.gradients:
            for within in (False, True):
                name = part + ("_within_class" if within else "")
                table[name] = self.scores(part, within_class=within)[order].tolist()  # type: ignore[arg-type]
        return table

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`columns` as Parquet or JSON lines, by the suffix of ``path``."""
        return write_columns(self.columns(), path)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe summary: the distance with its certificate, class means, quantiles of the scores."""
        levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
        summary = {}
        for part in self.gradients:
            scores = self.scores(part)  # type: ignore[arg-type]
            quantiles = torch.quantile(scores, torch.tensor(levels, dtype=scores.dtype, device=scores.device))
            summary[part] = {
                "quantiles": dict(zip(map(str, levels), quantiles.tolist(), strict=True)),
                "by_class": self.by_class(part),  # type: ignore[arg-type]
            }
        return {"n": self.pool.n, "parts": summary, "distance": self.result.to_dict()}


@plain_torch
def values(
    pool: LabeledDataset,
    target: LabeledDataset,
    *,
    parts: bool = True,
    options: DistanceOptions | None = None,
    **overrides: Any,
) -> SampleValues:
    """Value every sample of ``pool`` by the calibrated gradient of the pool's distance to ``target``.

    Args:
        pool: ``n`` samples.
        target: a trusted sample of what the pool should be.
        parts: split the gradient into a feature and a label part (one more solve, without labels).
        options: of the distance; the default is that of :func:`~otdd_flash.dataset_distance` with a
            ``relative_epsilon`` of 0.03.
        **overrides: single fields of :class:`~otdd_flash.distance.DistanceOptions`.

    Returns:
        The values, sortable overall, by part and within classes.

    Raises:
        ValueError: an unbalanced, biased or conventional problem, which has no such gradient.
        TypeError, NotConvergedError, MemoryError: as :func:`~otdd_flash.dataset_distance`.

    Source: Just et al. (2023), arXiv 2305.00054, the calibrated gradient.
    """
    check_sides(pool=pool, target=target)
    check_flag("parts", parts)
    pool, target, options = prepare(pool, target, settled("values", options, overrides, DEFAULT_OPTIONS))
    result = dataset_distance(pool, target, options=options)
    gradients = {"total": weight_gradient(result)}
    if parts and result.label_distances is not None and result.feature_weight > 0:
        plain = replace(options, label_weight=0.0, epsilon=result.epsilon)
        gradients["features"] = weight_gradient(dataset_distance(pool, target, options=plain))
        gradients["labels"] = gradients["total"] - gradients["features"]
    return SampleValues(gradients, pool, result)


def weight_gradient(result: DistanceResult) -> Tensor:
    """``h = f - f_aa (n,)``: gradient of the debiased divergence in the source's weights, up to a constant."""
    selves = result.divergence.self_potentials
    assert selves is not None
    return result.potentials.f - selves[0]


def _shares(a: Tensor, group: Tensor) -> Tensor:
    """``(n,)`` each sample's part of the mass of its group, which is even in a group without mass."""
    count = int(group.max()) + 1
    mass = torch.zeros(count, dtype=a.dtype, device=a.device).index_add_(0, group, a)[group]
    size = torch.bincount(group, minlength=count)[group]
    return torch.where(mass > 0, a / mass, 1.0 / size)


def _calibrate(h: Tensor, a: Tensor, group: Tensor) -> Tensor:
    """``(h_i - mean of the group) / (1 - share of i in the group)``; zero where a sample is all but its whole group."""
    share = _shares(a, group)
    mean = torch.zeros(int(group.max()) + 1, dtype=a.dtype, device=a.device).index_add_(0, group, share * h)
    rest = 1.0 - share
    return torch.where(rest <= _ALONE, 0.0, (h - mean[group]) / rest)
