"""The dataset distance as a tensor with a graph back to features, and to class moments where they are attached."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides, settled
from otdd_flash.checks import check_choice, check_visible
from otdd_flash.distance import DistanceOptions, DistanceResult, dataset_distance
from otdd_flash.labels.attached import ATTACHABLE, attached_table
from otdd_flash.sinkhorn.autograd import DifferentiableDivergence, DivergenceInputs
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

Moments = Literal["attached", "detached"]


@dataclass(frozen=True, eq=False)
class DifferentiableDistance:
    """A dataset distance with a graph.

    Args:
        value: float64 tensor of no dimension: ``result.value``.
        root: its square root, with gradient 0 where the value is zero within rounding.
        result: the full result with its certificate.
    """

    value: Tensor
    root: Tensor
    result: DistanceResult = field(repr=False)


@plain_torch
def differentiable_distance(
    source: LabeledDataset,
    target: LabeledDataset,
    *,
    moments: Moments = "attached",
    options: DistanceOptions | None = None,
    **overrides: Any,
) -> DifferentiableDistance:
    """:func:`otdd_flash.dataset_distance` of data sets whose features require gradients.

    The gradient with ``attached`` moments is that of the number itself at a constant epsilon: moving a sample also
    moves the mean and covariance of its class. ``detached`` holds the label table constant. A relative epsilon is taken
    at the present features and then held constant.

    Args:
        source: ``n`` samples; ``x`` may require gradients.
        target: ``m`` samples.
        moments: ``attached`` (label distances ``means``, ``gaussian_diag``, ``gaussian``) or ``detached`` (any).
        options: as for :func:`otdd_flash.dataset_distance`; ``tol`` bounds the error of the gradient too.
        **overrides: fields of the options.

    Raises:
        ValueError: attached moments of another label distance, a convention of another tool, or ``max_samples``, which
            would hide which rows have gradients.

    >>> import otdd_flash as otdd, torch
    >>> x = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    >>> moved = otdd.differentiable_distance(
    ...     otdd.from_arrays(x, [0]), otdd.from_arrays(torch.ones(1, 2).double(), [0]), epsilon=0.1, moments="detached"
    ... )
    >>> moved.value.backward()
    >>> x.grad.tolist()
    [[-2.0, -2.0]]
    """
    check_choice("moments", moments, get_args(Moments))
    check_sides(source=source, target=target)
    options = settled("differentiable_distance", options, overrides, DistanceOptions())
    check_visible("device", options.device)
    sides = [source, target]
    sides = sides if options.device is None else [side.to(options.device) for side in sides]
    _refuse(options, moments)
    constants = [replace(side, x=side.x.detach()) for side in sides]
    result = dataset_distance(*constants, options=options)
    a, b = (side.normalised_weights for side in sides)
    weight = torch.tensor(result.feature_weight, dtype=torch.float64, device=sides[0].x.device)
    inputs = DivergenceInputs(sides[0].x, sides[1].x, a, b, weight, _table(sides, result, moments))
    value = inputs.attach(result.divergence)
    return DifferentiableDistance(value, DifferentiableDivergence(value, result.divergence).root, result)


def _table(sides: list[LabeledDataset], result: DistanceResult, moments: Moments) -> Tensor | None:
    """The label table of the cost, on the tape where moments are attached."""
    if result.label_distances is None or moments == "detached":
        return None
    return result.label_weight * attached_table(sides[0], sides[1], result.label_method)


def _refuse(options: DistanceOptions, moments: Moments) -> None:
    """What a derivative would be silently wrong for."""
    if options.max_samples is not None:
        raise ValueError("max_samples draws rows inside: subsample the data sets first (otdd_flash.data.subsample)")
    if options.convention is not None:
        raise ValueError("the number of another tool's convention is not converged and has no gradient of its own")
    labelled = options.label_weight != 0 and options.label_distance is not None
    if (
        labelled
        and moments == "attached"
        and not (isinstance(options.label_distance, str) and options.label_distance in ATTACHABLE)
    ):
        raise ValueError(
            f"label_distance={options.label_distance!r} has no attached moments: take one of {', '.join(ATTACHABLE)}, "
            "or moments='detached' to hold the label distances constant"
        )
