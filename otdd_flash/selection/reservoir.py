"""A bounded uniform sample of a stream of labelled rows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from otdd_flash.types import LabeledDataset


@dataclass
class Reservoir:
    """A uniform sample of ``size`` rows of a stream: those of the smallest random priority, drawn row by row."""

    size: int
    seed: str
    seen: int = 0
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)  # order, x, class, weight
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._priorities = torch.empty(0, dtype=torch.float64)

    def add(self, batch: LabeledDataset) -> None:
        """Take the rows of a batch."""
        for name in batch.class_names:
            self.names.setdefault(name, len(self.names))
        classes = torch.tensor([self.names[name] for name in batch.class_names], device=batch.x.device)[batch.y]
        order = torch.arange(self.seen, self.seen + batch.n)
        self.seen += batch.n
        # relative weights: a batch of weights is on the scale of its own rows
        weights = batch.normalised_weights * batch.n
        self.rows.append((order, batch.x.detach(), classes, weights))
        drawn = [self._random.random() for _ in range(batch.n)]
        self._priorities = torch.cat([self._priorities, torch.tensor(drawn, dtype=torch.float64)])
        if len(self._priorities) > self.size:
            self._keep()

    def _keep(self) -> None:
        kept = torch.argsort(self._priorities)[: self.size].sort().values
        self._priorities = self._priorities[kept]
        stacked = [torch.cat(column) for column in zip(*self.rows, strict=True)]
        self.rows = [tuple(column[kept.to(column.device)] for column in stacked)]  # type: ignore[list-item]

    def dataset(self, name: str) -> LabeledDataset:
        """The rows kept, in the order in which they came."""
        order, x, classes, weights = (torch.cat(column) for column in zip(*self.rows, strict=True))
        present, y = torch.unique(classes, return_inverse=True)
        names = list(self.names)
        return LabeledDataset(
            x=x, y=y, class_names=tuple(names[i] for i in present.tolist()), weights=weights / weights.sum(),
            ids=order.to(x.device), name=name,
        )  # fmt: skip
