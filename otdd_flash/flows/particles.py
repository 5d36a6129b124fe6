"""What an objective sees of a flow: the moving data set, on the autograd tape, and how its labels are placed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from otdd_flash.labels import class_samples
from otdd_flash.types import LabeledDataset

Moments = Literal["detached", "attached"]


@dataclass(frozen=True, eq=False)
class Particles:
    """A labelled set whose tensors may require gradients.

    Args:
        data: ``x (n, d)`` on the tape, labels and weights.
        moments: whether the class moments of ``x`` are on the tape too (``attached``) or constants (``detached``);
            either way they are those of the present ``x``.
        class_statistics: ``(c, 2d)`` means and standard deviations of the classes, where these are variables of their
            own and not the moments of ``x``.
        sample_statistics: ``(n, 2d)`` the same for each sample.
        advance: the part of the way to the end, in ``[0, 1]``, that the set has moved since the memory was made, by a
            first-order estimate; 0 where it is the same place or not known.
    """

    data: LabeledDataset
    moments: Moments = "detached"
    class_statistics: Tensor | None = None
    sample_statistics: Tensor | None = None
    advance: float = 0.0


def diagonal_statistics(data: LabeledDataset) -> Tensor:
    """``(c, 2d)`` float64 means and standard deviations of the classes: coordinates of diagonal Gaussians.

    Squared Euclidean distance between two rows is the squared Wasserstein distance of the two Gaussians.
    """
    return torch.stack([torch.cat([sample.mean, sample.variance.sqrt()]) for sample in class_samples(data)])


def computable(data: LabeledDataset) -> LabeledDataset:
    """The data with float32 features where they are of lower precision: a flow adds up many small moves."""
    x = data.x if data.x.dtype in (torch.float32, torch.float64) else data.x.to(torch.float32)
    return replace(data, x=x)


def renumbered(data: LabeledDataset, y: Tensor, names: tuple[str, ...]) -> LabeledDataset:
    """The data with labels ``y`` into ``names``; names without a sample are left out."""
    kept, y = torch.unique(y, return_inverse=True)
    return replace(data, y=y, class_names=tuple(names[i] for i in kept.tolist()))
