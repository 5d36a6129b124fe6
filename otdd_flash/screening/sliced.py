"""Sliced distances between labelled data sets: linear in samples, and one sketch a set for all pairs.

Sliced OTDD (Nguyen et al. 2025). A labelled sample ``(x, y)`` is projected to a number that carries its class as the
moments of the class along the same direction (the paper's data point projection):

    DP(x, y) = psi_0 <theta, x> + sum_{i=1..k} psi_i M_{lambda_i}(y)
    M_lambda(y) = E[ <theta, x'>^lambda / lambda! | class y ]     theta, psi uniform on spheres
                                                                    lambda_i zero-truncated Poisson of rate i

and ``s-OTDD^2 = E W_2^2`` of the projections. With the draws shared by all sets, a set is summed up once by the
quantiles of its projections, and the distance of two sets is a mean squared difference of their summaries: ``k`` sets
cost ``k`` sorts, not ``k^2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.arguments import check_datasets, check_sides
from otdd_flash.checks import check_count, check_number, check_tensor, check_type, shown
from otdd_flash.cost import weighted_mean
from otdd_flash.labels import class_samples
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset

_ROWS = 1 << 14


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class Slices:
    """The random projections, shared by all sets that are to be compared.

    Args:
        directions: ``(L, d)`` unit vectors ``theta``.
        mixing: ``(L, 1 + k)`` unit vectors ``psi``.
        orders: ``(L, k)`` moment orders ``lambda``.
        center: ``(d,)`` subtracted from the features.
        scale: the features are divided by it: high moments need numbers around one.
    """

    directions: Tensor
    mixing: Tensor
    orders: Tensor
    center: Tensor
    scale: float

    @classmethod
    def draw(
        cls, datasets: Sequence[LabeledDataset], *, projections: int = 500, moments: int = 5, seed: int = 0
    ) -> Slices:
        """Projections for ``datasets`` and their like, whose common centre and deviation set the scale.

        Args:
            datasets: sets of one width; a few representative ones are enough.
            projections: ``L``.
            moments: ``k`` label moments; 0 compares features alone.
            seed: of the draw.

        Raises:
            ValueError: no set, sets of different width, counts that are not positive.
        """
        datasets = check_datasets("datasets", datasets)
        check_widths(datasets)
        center = torch.stack([weighted_mean(data.x, data.normalised_weights) for data in datasets]).mean(0)
        spread = torch.stack([_mean_square(data, center) for data in datasets]).mean()
        return cls.around(center, float(spread), projections=projections, moments=moments, seed=seed)

    @classmethod
    def around(
        cls, center: Tensor, spread: float, *, projections: int = 500, moments: int = 5, seed: int = 0
    ) -> Slices:
        """Projections for sets around ``center (d,)`` whose mean squared distance from it is ``spread``."""
        check_tensor("center", center, shapes=[(None,)])
        if not len(center) or not bool(torch.isfinite(center).all()):
            raise ValueError(f"center must hold finite numbers, one a feature, got {shown(center)}")
        spread = check_number("spread", spread, closed=True)
        projections, moments = check_count("projections", projections), check_count("moments", moments, least=0)
        seed = check_count("seed", seed, least=0)
        d, device = len(center), center.device
        generator = torch.Generator().manual_seed(seed)
        directions = torch.randn(projections, d, generator=generator, dtype=torch.float64)
        mixing = torch.randn(projections, 1 + moments, generator=generator, dtype=torch.float64)
        rates = torch.arange(1, moments + 1, dtype=torch.float64).expand(projections, moments)
        orders = _truncated_poisson(rates, generator)
        return cls(
            directions=(directions / directions.norm(dim=1, keepdim=True)).to(device),
            mixing=(mixing / mixing.norm(dim=1, keepdim=True)).to(device),
            orders=orders.to(device),
            center=center,
            scale=(spread / d) ** 0.5 or 1.0,
        )

    def project(self, dataset: LabeledDataset) -> Tensor:
        """``(n, L)`` float64 projections ``DP`` of the samples, in units of the features."""
        check_sides(dataset=dataset)
        if dataset.d != self.directions.shape[1]:
            raise ValueError(f"{dataset.name!r} has {dataset.d} features, the slices {self.directions.shape[1]}")
        line = torch.cat(
            [
                ((rows.to(torch.float64) - self.center) / self.scale) @ self.directions.T
                for rows in dataset.x.split(_ROWS)
            ]
        )
        out = line * self.mixing[:, 0]
        if self.orders.shape[1]:
            out += self._class_part(line, dataset)[dataset.y]
        if not bool(torch.isfinite(out).all()):
            raise ValueError(
                f"dataset {dataset.name!r} lies too far from what the slices were drawn for: draw them anew"
            )
        return self.scale * out

    def _class_part(self, line: Tensor, dataset: LabeledDataset) -> Tensor:
        """``(c, L)`` what every class adds: ``sum_i psi_i E[line^lambda_i / lambda_i!]``, orders one after another."""
        shares = torch.zeros(dataset.num_classes, dataset.n, dtype=line.dtype, device=line.device)
        for number, sample in enumerate(class_samples(dataset)):
            shares[number, sample.index] = sample.weights
        out = torch.zeros(dataset.num_classes, line.shape[1], dtype=line.dtype, device=line.device)
        power = torch.ones_like(line)
        for order in range(1, int(self.orders.max()) + 1):
            power *= line / order
            factor = (self.mixing[:, 1:] * (self.orders == order)).sum(1)
            wanted = factor.nonzero()[:, 0]
            if len(wanted):
                out[:, wanted] += factor[wanted] * (shares @ power[:, wanted])
        return out

    def summary(self, dataset: LabeledDataset, quantiles: int = 256) -> Tensor:
        """``(L, Q)`` quantile functions of the projections at the midpoints of ``Q`` equal steps."""
        quantiles = check_count("quantiles", quantiles)
        values, order = self.project(dataset).T.contiguous().sort(1)
        halves = 2 * torch.arange(quantiles, device=values.device) + 1  # levels in units of 1 / (2 Q)
        if dataset.weights is None:
            # the first row whose cumulated mass reaches the level, in exact integers
            return values[:, (halves * dataset.n + 2 * quantiles - 1) // (2 * quantiles) - 1]
        mass, levels = dataset.normalised_weights[order].cumsum(1), halves.to(values.dtype) / (2 * quantiles)
        place = torch.searchsorted(mass, levels.expand(len(mass), -1).contiguous())
        return values.gather(1, place.clamp_max(dataset.n - 1))


@plain_torch
def sliced_distance(
    source: LabeledDataset,
    target: LabeledDataset,
    *,
    slices: Slices | None = None,
    projections: int = 500,
    moments: int = 5,
    quantiles: int = 256,
    seed: int = 0,
) -> float:
    """Squared sliced OTDD between two data sets; linear in samples and features.

    Args:
        source: first set.
        target: second set, of the same width.
        slices: projections to share between calls, without which numbers of different pairs do not compare.
        projections: ``L``, where no slices are given.
        moments: label moments, where no slices are given.
        quantiles: points at which quantile functions are compared.
        seed: of the draw.

    Source: Nguyen et al. (2025), arXiv 2501.18901.
    """
    check_sides(source=source, target=target)
    check_type("slices", slices, Slices, "give Slices.draw(datasets)", optional=True)
    slices = slices or Slices.draw([source, target], projections=projections, moments=moments, seed=seed)
    a, b = (slices.summary(side, quantiles) for side in (source, target))
    return float((a - b).square().mean())


def check_widths(datasets: Sequence[LabeledDataset]) -> None:
    """Refuse sets whose features have not one width."""
    widths = [(data.name, data.d) for data in datasets]
    if len({d for _, d in widths}) != 1:
        raise ValueError(f"screening needs sets of one width, got {widths or 'none'}")


def _truncated_poisson(rates: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson draws conditioned on being at least one.

    The first arrival time of the process falls into [0, 1] with a truncated exponential law; the rest is Poisson of
    what is left of the rate.
    """
    uniform = torch.rand(rates.shape, generator=generator, dtype=rates.dtype)
    first = -torch.log1p(uniform * torch.expm1(-rates))
    return 1 + torch.poisson((rates - first).clamp_min(0.0), generator=generator)


def _mean_square(dataset: LabeledDataset, center: Tensor) -> Tensor:
    """Weighted mean squared distance from ``center``."""
    parts = zip(dataset.x.split(_ROWS), dataset.normalised_weights.split(_ROWS), strict=True)
    return torch.stack([w @ (x.to(torch.float64) - center).square().sum(1) for x, w in parts]).sum()
