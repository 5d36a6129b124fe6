"""Options with every epsilon settled: what all problems of a task share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from otdd_flash.labels import LabelSinkhorn
from otdd_flash.problems.options import DistanceOptions


@dataclass(frozen=True)
class Settings:
    """Options with every epsilon settled.

    Args:
        options: as given.
        epsilon: of all transport problems, in units of the cost.
        label_epsilon: of all class-to-class problems; ``None`` where there are none.
        reference_cost: what ``relative_epsilon`` was a fraction of; ``None`` for an absolute epsilon.
    """

    options: DistanceOptions
    epsilon: float
    label_epsilon: float | None = None
    reference_cost: float | None = None

    @property
    def labelled(self) -> bool:
        """Whether the cost has a label part."""
        return self.options.labelled

    def label_sinkhorn(self, device: torch.device) -> LabelSinkhorn | None:
        """Solver of the class-to-class problems, where the method needs one."""
        if self.options.label_distance != "sinkhorn" or not self.labelled:
            return None
        return self.options.label_sinkhorn(device, self.label_epsilon)
