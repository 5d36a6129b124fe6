"""Products with the plan of one solved problem, and with its derivative ``P o (L R^T)``, streamed or stored.

First and second derivatives of a divergence need nothing else. ``P V`` and ``P^T U`` come from the operator's
``apply_plan``. A directional derivative of the plan is ``P`` times a matrix of low rank entry by entry, which no
product ``P V`` can give: that is formed block by block in torch on any device, once per direction, while the linear
system of the potentials takes tens of products ``P V``. Where costs may be stored, so may the plan; every product is
then one matrix product and no exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost, Factors
from otdd_flash.ops import Backend, Execution, PlanOperator, PlanProduct, Precision
from otdd_flash.ops.support import SupportOperator
from otdd_flash.sinkhorn.divergence import Divergence
from otdd_flash.types import Potentials

_BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 25}
_BACKENDS: dict[str, Backend] = {"torch": "torch", "triton": "triton"}


class PlanProducts:
    """``P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps)`` of one problem of a solved divergence.

    Args:
        found: the solved divergence.
        problem: the pair of clouds; ``(0, 0)`` and ``(1, 1)`` take the self potentials.
    """

    def __init__(self, found: Divergence, problem: tuple[int, int]) -> None:
        self.cost: DotProductCost = found.cost
        self.problem, self.epsilon = problem, found.epsilon
        self.symmetric = problem[0] == problem[1]
        self.potentials = _potentials(found, problem)
        self.rho = found.rho[problem[0]], found.rho[problem[1]]
        self.slacks = tuple(1.0 if rho is None else 1.0 + found.epsilon / rho for rho in self.rho)
        self.dtype = torch.float64 if found.info.precision == "fp64" else torch.float32
        self._backend, self._precision = _BACKENDS[found.info.backend], found.info.precision
        self._kept = found.operator
        self._plan: Tensor | None = None

    @property
    def a(self) -> Tensor:
        """``(n,)`` weights of the rows."""
        return self.cost.clouds[self.problem[0]].weights

    @property
    def b(self) -> Tensor:
        """``(m,)`` weights of the columns."""
        return self.cost.clouds[self.problem[1]].weights

    @cached_property
    def x(self) -> Tensor:
        """``(n, d)`` float64 centred points of the rows."""
        return self.cost.centred(self.problem[0], torch.float64)

    @cached_property
    def y(self) -> Tensor:
        """``(m, d)`` float64 centred points of the columns."""
        return self.x if self.symmetric else self.cost.centred(self.problem[1], torch.float64)

    def points(self, columns: slice) -> tuple[Tensor, Tensor]:
        """Some columns of the centred points of both sides in the precision of the solve."""
        sides = [self.cost.centred(i, self.dtype, columns) for i in dict.fromkeys(self.problem)]
        return sides[0], sides[-1]

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row and column sums ``(n,), (m,)`` of this very plan."""
        empty = [torch.empty(len(w), 0, dtype=torch.float64, device=w.device) for w in (self.b, self.a)]
        found = self.apply(v=empty[0], u=None if self.symmetric else empty[1])
        assert found.r is not None
        return found.r, found.r if found.c is None else found.c

    @cached_property
    def images(self) -> tuple[Tensor, Tensor]:
        """``P y (n, d)`` and ``P^T x (m, d)``."""
        found = self.apply(v=self.y, u=None if self.symmetric else self.x)
        assert found.pv is not None
        return found.pv, found.pv if found.ptu is None else found.ptu

    @cached_property
    def squares(self) -> Tensor:
        """``(m,)`` column sums ``sum_i P_ij^2 / r_i``: the plan of half the epsilon gives the squares."""
        r, _ = self.marginals
        weighted = torch.where(r > 0, self.a / r, 0.0)[:, None]
        if self._plan is not None:
            safe = torch.where(r > 0, 1.0 / r, 0.0).to(self.dtype)
            return (safe @ self._plan.square()).to(torch.float64)
        operator, at = self._operator
        out = operator.apply_plan(at, *self.potentials, self.epsilon / 2, u=weighted).ptu
        assert out is not None
        return self.b * out[:, 0]

    def store(self) -> None:
        """Keep the plan as an ``(n, m)`` matrix from now on."""
        if self._plan is not None:
            return
        plan = torch.empty(len(self.a), len(self.b), dtype=self.dtype, device=self.a.device)
        for rows, block in self._blocks():
            plan[rows] = block
        self._plan = plan

    def apply(self, *, v: Tensor | None = None, u: Tensor | None = None) -> PlanProduct:
        """``P v`` and ``P^T u`` for ``v (m, w)`` and ``u (n, w')``, and the plan's sums."""
        if self._plan is None:
            operator, at = self._operator
            return operator.apply_plan(at, *self.potentials, self.epsilon, v=v, u=u)
        return PlanProduct(
            None if v is None else self.forward(v),
            None if u is None else self.backward(u),
            None if v is None else self._plan.sum(1, dtype=torch.float64),
            None if u is None else self._plan.sum(0, dtype=torch.float64),
        )

    def forward(self, v: Tensor) -> Tensor:
        """``P v`` for ``v (m, w)``, from the stored plan where there is one."""
        if self._plan is not None:
            return (self._plan @ v.to(self.dtype)).to(v.dtype)
        out = self.apply(v=v).pv
        assert out is not None
        return out

    def backward(self, u: Tensor) -> Tensor:
        """``P^T u`` for ``u (n, w)``, likewise."""
        if self.symmetric:
            return self.forward(u)
        if self._plan is not None:
            return (self._plan.T @ u.to(self.dtype)).to(u.dtype)
        out = self.apply(u=u).ptu
        assert out is not None
        return out

    def weighted(
        self, left: Tensor, right: Tensor, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """``((P o L R^T) v, (P o L R^T)^T u)`` for every one of ``s`` pairs of factors, without an ``n x m`` matrix.

        Args:
            left: ``(s, n, k)`` factors ``L``.
            right: ``(s, m, k)`` factors ``R``.
            v: ``(m, w)``, shared by all pairs.
            u: ``(n, w')``.

        Returns:
            ``(s, n, w)`` and ``(s, m, w')`` float64.
        """
        left, right = left.to(self.dtype), right.to(self.dtype)
        v, u = (None if side is None else side.to(self.dtype) for side in (v, u))
        size, device = left.shape[0], left.device
        out = None if v is None else torch.zeros(size, left.shape[1], v.shape[1], dtype=torch.float64, device=device)
        back = None if u is None else torch.zeros(size, right.shape[1], u.shape[1], dtype=torch.float64, device=device)
        for rows, plan in self._blocks():
            for s in range(size):
                weighted = (left[s, rows] @ right[s].T).mul_(plan)
                if out is not None and v is not None:
                    out[s, rows] = (weighted @ v).to(torch.float64)
                if back is not None and u is not None:
                    back[s] += weighted.T @ u[rows]
        return out, back

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Row ranges and their full rows of the plan."""
        n, m = len(self.a), len(self.b)
        step = max(1, _BLOCK_ELEMENTS.get(self.a.device.type, _BLOCK_ELEMENTS["cuda"]) // m)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self._rows(rows) if self._plan is None else self._plan[rows]

    def _rows(self, rows: slice) -> Tensor:
        alpha, beta, q, k = self._factors
        f, g = self.potentials
        left = (f[rows] - alpha[rows]) / self.epsilon + self.a[rows].log()
        right = (g - beta) / self.epsilon + self.b.log()
        score = (q[rows] @ k.T).div_(self.epsilon)
        return score.add_(left[:, None].to(self.dtype)).add_(right[None, :].to(self.dtype)).exp_()

    @cached_property
    def _factors(self) -> Factors:
        return self.cost.factors(*self.problem, self.dtype)

    @cached_property
    def _operator(self) -> tuple[PlanOperator, int]:
        """An operator that knows the problem, and where: the solver's own where it was kept."""
        if self._kept is not None and self.problem in self._kept.problems:
            return self._kept, self._kept.problems.index(self.problem)
        precision: Precision = self._precision  # type: ignore[assignment]
        how = Execution(self._backend, precision, "streamed")
        return how.operator(self.cost, [self.problem], epsilon=self.epsilon), 0


def on_support(found: Divergence) -> Divergence:
    """A divergence without its points of weight zero; itself where there are none."""
    cost = found.cost.supported
    if cost is found.cost:
        return found

    def kept(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        one, other = (t if rows is None else t[rows] for t, rows in zip((f, g), found.cost.supports, strict=True))
        return one, other

    operator = found.operator.inner if isinstance(found.operator, SupportOperator) else None
    selves = None if found.self_potentials is None else kept(*found.self_potentials)
    return replace(
        found, cost=cost, potentials=Potentials(*kept(*found.potentials)), self_potentials=selves, operator=operator
    )


def _potentials(found: Divergence, problem: tuple[int, int]) -> Potentials:
    """Potentials of one problem of a divergence."""
    if problem[0] != problem[1]:
        return found.potentials
    if found.self_potentials is None:
        raise ValueError("a divergence that is not debiased has no self problems")
    f = found.self_potentials[problem[0]]
    return Potentials(f, f)
