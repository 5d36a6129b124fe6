"""How costs and plan move along directions of the inputs: the right-hand sides of the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.sinkhorn.products import PlanProducts


class Fields(NamedTuple):
    """One entry for each input; gradients, directions (with a leading dimension ``s`` of several) or flags."""

    x: Tensor | None = None  # (n, d)
    y: Tensor | None = None  # (m, d)
    a: Tensor | None = None  # (n,)
    b: Tensor | None = None  # (m,)
    table: Tensor | None = None  # (C, C)
    weight: Tensor | None = None  # ()


class ClassColumns:
    """Class columns of one problem: one-hot rows of the classes that are there, and sums back into the table."""

    def __init__(self, p: PlanProducts) -> None:
        rows, columns = (p.cost.clouds[i].labels for i in p.problem)
        if p.cost.table is None or rows is None or columns is None:
            raise ValueError("the cost has no label table to differentiate")
        self.rows, self.classes = rows, p.cost.table.shape[0]
        self.present, position = torch.unique(columns, return_inverse=True)
        self.one_hot = torch.nn.functional.one_hot(position, len(self.present)).to(torch.float64)

    def scatter(self, mass: Tensor) -> Tensor:
        """``(s, n, present)`` masses summed to ``(s, C, C)``."""
        out = mass.new_zeros(mass.shape[0], self.classes, self.classes)
        part = mass.new_zeros(mass.shape[0], self.classes, len(self.present)).index_add_(1, self.rows, mass)
        out[:, :, self.present] = part
        return out


class Motion:
    """``C'_ij = left_i + right_j + <low_i, high_j>`` along ``s`` directions of one problem."""

    def __init__(self, p: PlanProducts, along: Fields) -> None:
        self.p, self.along = p, along
        size = next(len(entry) for entry in along if entry is not None)
        w, n, m = p.cost.feature_weight, len(p.a), len(p.b)
        self.left, self.right = p.x.new_zeros(size, n), p.x.new_zeros(size, m)
        toward = p.x.new_zeros(size, *p.x.shape)  # the factor that meets y
        if along.x is not None:
            self.left += 2 * w * (along.x * p.x).sum(2)
            toward -= 2 * w * along.x
        if along.weight is not None:
            self.left += along.weight[:, None] * p.x.square().sum(1)
            self.right += along.weight[:, None] * p.y.square().sum(1)
            toward -= 2 * along.weight[:, None, None] * p.x
        self.toward = toward
        self.away = None if along.y is None else along.y  # meets -2 w x
        if along.y is not None:
            self.right += 2 * w * (along.y * p.y).sum(2)
        self.labels = None if along.table is None else ClassColumns(p)
        self.by_class = None
        if along.table is not None and self.labels is not None:
            self.by_class = along.table[:, self.labels.rows][:, :, self.labels.present]

    def right_hand_sides(self) -> tuple[Tensor, Tensor | None]:
        """``(P o C') 1 - eps P (b'/b)``, and for the columns unless the problem is symmetric."""
        p, w = self.p, self.p.cost.feature_weight
        (r, c), (py, ptx) = p.marginals, p.images
        rows = self.left * r + batched(p.forward, self._less_mass(self.right, self.along.b, p.b))
        rows += (self.toward * py).sum(2)
        if self.away is not None:
            rows -= 2 * w * (p.x * batched(p.forward, self.away)).sum(2)
        if self.by_class is not None and self.labels is not None:
            rows += (self.by_class * p.forward(self.labels.one_hot)).sum(2)
        if p.symmetric:
            return rows, None
        columns = self.right * c + batched(p.backward, self._less_mass(self.left, self.along.a, p.a))
        columns += (p.y * batched(p.backward, self.toward)).sum(2)
        if self.away is not None:
            columns -= 2 * w * (self.away * ptx).sum(2)
        if self.by_class is not None and self.labels is not None:
            columns += (self.labels.one_hot * batched(p.backward, self.by_class)).sum(2)
        return rows, columns

    def plan_factors(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """``L (s, n, k), R (s, m, k)`` with ``P' = P o (L R^T)``."""
        p, eps, w = self.p, self.p.epsilon, self.p.cost.feature_weight
        size = f.shape[0]
        rows = (f - self._less_mass(self.left, self.along.a, p.a)) / eps
        columns = (g - self._less_mass(self.right, self.along.b, p.b)) / eps
        low = [rows[..., None], torch.ones_like(rows)[..., None], self.toward / -eps]
        high = [torch.ones_like(columns)[..., None], columns[..., None], p.y.expand(size, -1, -1)]
        if self.away is not None:
            low.append((2 * w / eps * p.x).expand(size, -1, -1))
            high.append(self.away)
        if self.by_class is not None and self.labels is not None:
            low.append(self.by_class / -eps)
            high.append(self.labels.one_hot.expand(size, -1, -1))
        return torch.cat(low, 2), torch.cat(high, 2)

    def _less_mass(self, cost: Tensor, change: Tensor | None, weights: Tensor) -> Tensor:
        """``cost - eps a'/a``, zero change where there is no weight."""
        if change is None:
            return cost
        return cost - self.p.epsilon * torch.where(weights > 0, change / torch.where(weights > 0, weights, 1.0), 0.0)


def batched(product: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A product with ``(rows, w)`` applied to ``(s, rows)`` or ``(s, rows, w)`` in one go."""
    if values.dim() == 2:
        return product(values.T).T
    size, rows, width = values.shape
    out = product(values.transpose(0, 1).reshape(rows, size * width))
    return out.reshape(-1, size, width).transpose(0, 1)
