"""Sets summed up one at a time, so that thousands can be screened without being in memory together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels import class_samples
from otdd_flash.problems import DistanceOptions
from otdd_flash.screening.classes import class_masses, class_transport
from otdd_flash.screening.cut import Screen
from otdd_flash.screening.sliced import Slices
from otdd_flash.screening.tables import mean_squared_differences
from otdd_flash.types import LabeledDataset

Sketch = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Screener:
    """Makes sketches of data sets and compares them; float64, sketches on the host.

    Args:
        screen: method and sizes.
        center: ``(d,)`` float64 that the features are seen from.
        spread: mean squared distance of the features from it.
        weights: ``w_x, w_y`` of the distance that is approximated; without a label part labels are not looked at.
        seed: of the projections.
    """

    screen: Screen
    center: Tensor
    spread: float
    weights: tuple[float, float]
    seed: int = 0

    @classmethod
    def of(cls, screen: Screen, options: DistanceOptions, center: Tensor, spread: float) -> Screener:
        """The screener of distances under ``options``."""
        weights = (options.feature_weight, options.label_weight if options.labelled else 0.0)
        return cls(screen, center, spread, weights, options.seed)

    @property
    def key(self) -> list[Any]:
        """What a sketch depends on besides the data, JSON-safe."""
        seen = hashlib.blake2b(self.center.cpu().numpy().tobytes(), digest_size=16).hexdigest()
        labelled = self.weights[1] > 0
        if self.screen.method == "moments":
            return ["moments"]
        return ["sliced", self.screen.projections, self.screen.quantiles, seen, self.spread, labelled, self.seed]

    def sketch(self, dataset: LabeledDataset) -> Sketch:
        """What is kept of a set.

        Raises:
            ValueError: a set of another width.
        """
        if dataset.d != len(self.center):
            raise ValueError(
                f"screening compares sets of one width: {dataset.name!r} has {dataset.d} features, the others "
                f"{len(self.center)}"
            )
        if self.screen.method == "sliced":
            summary = self._slices(str(dataset.x.device)).summary(dataset, self.screen.quantiles)
            return {"quantiles": summary.flatten().cpu()}
        samples = class_samples(dataset)
        moments = [torch.cat([sample.mean, sample.variance.sqrt()]) for sample in samples]
        return {"moments": torch.stack(moments).cpu(), "masses": class_masses(dataset).cpu()}

    def distances(self, sketches: Sequence[Sketch]) -> Tensor:
        """``(k, k)`` squared screening distances."""
        if self.screen.method == "sliced":
            return mean_squared_differences(torch.stack([sketch["quantiles"] for sketch in sketches]))
        points = torch.cat([sketch["moments"] for sketch in sketches])
        table = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
        return class_transport(sum(self.weights) * table, [sketch["masses"] for sketch in sketches])

    def distance(self, first: Sketch, second: Sketch) -> float:
        """Squared screening distance of two sets."""
        return float(self.distances([first, second])[0, 1])

    @cached_property
    def _by_device(self) -> dict[str, Slices]:
        return {}

    def _slices(self, device: str) -> Slices:
        if device not in self._by_device:
            self._by_device[device] = Slices.around(
                self.center.to(device), self.spread, projections=self.screen.projections,
                moments=5 if self.weights[1] > 0 else 0, seed=self.seed,
            )  # fmt: skip
        return self._by_device[device]
