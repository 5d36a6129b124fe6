"""What values and selection ask of their two data sets and their options."""

from __future__ import annotations

from dataclasses import replace

from otdd_flash.checks import check_visible
from otdd_flash.distance import DistanceOptions
from otdd_flash.types import LabeledDataset


def prepare(
    pool: LabeledDataset, target: LabeledDataset, options: DistanceOptions
) -> tuple[LabeledDataset, LabeledDataset, DistanceOptions]:
    """Sides as they will be compared (subsampled, on their device) and the options that remain.

    Raises:
        ValueError: options under which the distance has no gradient in the pool's weights.
    """
    check_visible("device", options.device)
    if options.reaches != (None, None) or options.convention is not None or not options.debiased:
        raise ValueError(
            "the pool's weights have a gradient only in the balanced, debiased, converged distance: leave reach, "
            "convention and debiased at their defaults"
        )
    sides = []
    for side in (pool, target):
        if options.max_samples is not None and side.n > options.max_samples:
            from otdd_flash.data import subsample

            side = subsample(side, options.max_samples, seed=options.seed)
        sides.append(side if options.device is None else side.to(options.device))
    return sides[0], sides[1], replace(options, max_samples=None, device=None)
