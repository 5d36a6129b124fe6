"""Points of weight zero: they are part of the clouds, and of nothing that is computed."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops.base import PlanOperator, PlanProduct


class SupportOperator:
    """:class:`~otdd_flash.ops.base.PlanOperator` of the points with weight, in the order of all points.

    Its layout holds the points with weight alone. What is packed leaves the others out; what is unpacked is zero there.

    Args:
        cost: all points.
        inner: operator of ``cost.supported``.
    """

    def __init__(self, cost: DotProductCost, inner: PlanOperator) -> None:
        self.cost, self.inner = cost, inner
        self.problems, self.info, self.a, self.b = inner.problems, inner.info, inner.a, inner.b

    def marginals(self, f: Tensor, g: Tensor, epsilon: float, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Row and column sums; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        return self.inner.marginals(f, g, epsilon, active)

    def softmin(self, potential: Tensor, epsilon: float, *, side: Literal["rows", "columns"]) -> Tensor:
        """Safe half step; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        return self.inner.softmin(potential, epsilon, side=side)

    def apply_plan(
        self, problem: int, f: Tensor, g: Tensor, epsilon: float, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> PlanProduct:
        """``P v`` and ``P^T u``, zero at points without weight."""
        rows, columns = self.problems[problem]
        f, u = self._gathered(f, rows), None if u is None else self._gathered(u, rows)
        g, v = self._gathered(g, columns), None if v is None else self._gathered(v, columns)
        found = self.inner.apply_plan(problem, f, g, epsilon, v=v, u=u)
        sides = (rows, columns, rows, columns)
        return PlanProduct(
            *(None if part is None else self._spread(part, i) for part, i in zip(found, sides, strict=True))
        )

    def pack_rows(self, values: Tensor, problem: int) -> Tensor:
        """To the row layout."""
        return self.inner.pack_rows(self._gathered(values, self.problems[problem][0]), problem)

    def unpack_rows(self, values: Tensor, problem: int) -> Tensor:
        """From the row layout."""
        return self._spread(self.inner.unpack_rows(values, problem), self.problems[problem][0])

    def pack_columns(self, values: Tensor, problem: int) -> Tensor:
        """To the column layout."""
        return self.inner.pack_columns(self._gathered(values, self.problems[problem][1]), problem)

    def unpack_columns(self, values: Tensor, problem: int) -> Tensor:
        """From the column layout."""
        return self._spread(self.inner.unpack_columns(values, problem), self.problems[problem][1])

    def _gathered(self, values: Tensor, cloud: int) -> Tensor:
        """The entries of the points with weight."""
        support = self.cost.supports[cloud]
        return values if support is None else values[support]

    def _spread(self, values: Tensor, cloud: int) -> Tensor:
        """Entries of the points with weight among those of all points."""
        support = self.cost.supports[cloud]
        return values if support is None else spread(values, support, self.cost.clouds[cloud].n)


def spread(values: Tensor, rows: Tensor, n: int) -> Tensor:
    """``(n, ...)`` with ``values`` at ``rows``, zero elsewhere."""
    return values.new_zeros(n, *values.shape[1:]).index_copy_(0, rows, values)
