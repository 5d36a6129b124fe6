"""Data sets on their way into problems: placed once, with the statistics of their classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from otdd_flash.checks import check_visible
from otdd_flash.labels.blocks import ClassStatistics
from otdd_flash.problems.options import DistanceOptions
from otdd_flash.types import LabeledDataset


def place(dataset: LabeledDataset, options: DistanceOptions) -> LabeledDataset:
    """A data set as it will be compared: at most ``max_samples`` rows of it, on its device, free of a graph.

    Args:
        dataset: all of it.
        options: say how many rows, drawn by which seed, and where.

    Raises:
        ValueError: a device that is not there.
    """
    check_visible("device", options.device)
    if dataset.x.requires_grad:  # the graph is the business of differentiable_distance
        dataset = replace(dataset, x=dataset.x.detach())
    if options.max_samples is not None and dataset.n > options.max_samples:
        from otdd_flash.data import subsample

        dataset = subsample(dataset, options.max_samples, seed=options.seed)
    return dataset if options.device is None else dataset.to(options.device)


@dataclass(frozen=True, eq=False)
class Side:
    """A placed data set with its class statistics (``None`` for a cost without labels)."""

    dataset: LabeledDataset
    classes: ClassStatistics | None

    @property
    def bytes(self) -> int:
        """Memory held: the features, and the moments that the classes keep."""
        held = self.dataset.x.numel() * self.dataset.x.element_size()
        for sample in () if self.classes is None else self.classes.samples:
            held += sum(t.numel() * t.element_size() for t in vars(sample).values() if isinstance(t, torch.Tensor))
            held -= sample.x.numel() * sample.x.element_size()
        return held
