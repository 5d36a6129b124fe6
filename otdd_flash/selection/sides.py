"""What values and selection ask of their two data sets and their options."""

from __future__ import annotations

from dataclasses import replace

from otdd_flash.problems import DistanceOptions, place
from otdd_flash.types import LabeledDataset


def prepare(
    pool: LabeledDataset, target: LabeledDataset, options: DistanceOptions
) -> tuple[LabeledDataset, LabeledDataset, DistanceOptions]:
    """Sides as they will be compared (subsampled, on their device) and the options that remain.

    Raises:
        ValueError: options under which the distance has no gradient in the pool's weights.
    """
    if options.reaches != (None, None) or options.convention is not None or not options.debiased:
        raise ValueError(
            "the pool's weights have a gradient only in the balanced, debiased, converged distance: leave reach, "
            "convention and debiased at their defaults"
        )
    return place(pool, options), place(target, options), replace(options, max_samples=None, device=None)
