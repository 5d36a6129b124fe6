"""What one data set brings to label tables with other sets, and a table between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.labels.samples import ClassSample


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """The classes of one data set with what they bring to a table with any other set.

    Args:
        samples: ``c`` classes; their moments are computed on first use and kept.
        own: ``(c, c)`` float64 squared distances among them, on the host.
        selves: self terms ``OT_eps(l, l)`` of the classes with mass, ``sinkhorn`` with debiasing only.
        error: stated absolute error of the entries.
        converged: every class problem met its tolerance.
    """

    samples: tuple[ClassSample, ...]
    own: Tensor
    selves: Tensor | None = None
    error: float = 0.0
    converged: bool = True

    def tensors(self) -> dict[str, Tensor]:
        """What can be kept and given as ``known``."""
        held = {"own": self.own, "selves": self.selves, "error": torch.tensor(self.error, dtype=torch.float64),
                "converged": torch.tensor(self.converged)}  # fmt: skip
        return {name: tensor for name, tensor in held.items() if tensor is not None}


class CrossTable(NamedTuple):
    """Squared distances ``(c, c')`` between the classes of two sets, on the host, and how far they can be trusted."""

    table: Tensor
    error: float
    converged: bool


StatisticsPair = tuple[ClassStatistics, ClassStatistics]


def symmetric_table(values: Tensor, c: int) -> Tensor:
    """``(c, c)`` symmetric table with a zero diagonal, from its entries above the diagonal, row by row."""
    table = torch.zeros(c, c, dtype=torch.float64)
    rows, columns = torch.triu_indices(c, c, 1)
    table[rows, columns] = table[columns, rows] = values
    return table
