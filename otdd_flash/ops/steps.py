"""The solver's vector arithmetic on a GPU, for the Triton backend; see :mod:`otdd_flash.kernels.steps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from otdd_flash.ops.base import PlanOperator

if TYPE_CHECKING:
    from otdd_flash.kernels.steps import History, Vectors


def vectors_of(operator: PlanOperator, cross: Tensor) -> Vectors | None:
    """Kernels for the vectors of a batch, or ``None`` where tensor operations do as well.

    Args:
        operator: the batch.
        cross: ``(B,)`` bool on the host, False for a symmetric problem.
    """
    if operator.info.backend != "triton" or operator.a.device.type != "cuda":
        return None
    from otdd_flash.kernels.steps import Vectors

    return Vectors(operator.a, operator.b, (~cross).to(operator.a.device, torch.int32))


def history_of(vectors: Vectors, memory: int, turn: float) -> History:
    """An empty history of accelerated steps."""
    from otdd_flash.kernels.steps import History

    return History(vectors, memory, turn)
