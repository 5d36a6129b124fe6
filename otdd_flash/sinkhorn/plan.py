"""The transport plan of a solved problem, as an operator that is never a matrix unless asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops import Backend, Execution, PlanOperator, PlanProduct, Precision
from otdd_flash.sinkhorn.absent import c_transform, rows_against
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import Potentials


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class TransportPlan:
    """``P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps)`` between clouds ``i`` and ``j`` of a cost, streamed.

    Args:
        cost: clouds and ground cost.
        problem: the pair of clouds.
        potentials: ``f (n,), g (m,)`` in the clouds' order.
        epsilon: in units of the cost.
        backend: as in :func:`otdd_flash.ops.make_operator`.
        precision: as there.
    """

    cost: DotProductCost
    problem: tuple[int, int]
    potentials: Potentials
    epsilon: float
    backend: Backend = "auto"
    precision: Precision = "auto"

    @property
    def shape(self) -> tuple[int, int]:
        """``(n, m)``."""
        i, j = self.problem
        return self.cost.clouds[i].n, self.cost.clouds[j].n

    def apply(self, v: Tensor) -> Tensor:
        """``P v`` for ``v (m,)`` or ``(m, w)``, float64, no ``n x m`` matrix."""
        out = self._product(v=self._columns(v, self.shape[1], "v")).pv
        assert out is not None
        return out if v.dim() == 2 else out[:, 0]

    def apply_transposed(self, u: Tensor) -> Tensor:
        """``P^T u`` for ``u (n,)`` or ``(n, w)``, float64."""
        out = self._product(u=self._columns(u, self.shape[0], "u")).ptu
        assert out is not None
        return out if u.dim() == 2 else out[:, 0]

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row and column sums ``(n,), (m,)`` of the plan."""
        n, m = self.shape
        empty = torch.empty(max(n, m), 0, dtype=torch.float64, device=self.cost.device)
        found = self._product(v=empty[:m], u=empty[:n])
        assert found.r is not None
        assert found.c is not None
        return found.r, found.c

    def map(self, y: Tensor | None = None) -> Tensor:
        """Barycentric projection ``(P y)_i / (P 1)_i`` of each source point: ``(n, d)``.

        A source point of weight zero goes where its potential, the c-transform, would send mass put there.

        Args:
            y: ``(m, w)`` values at the target points; default the target points themselves.
        """
        values = self.cost.clouds[self.problem[1]].points if y is None else y
        values = self._columns(values, self.shape[1], "y")
        found = self._product(v=values)
        assert found.pv is not None
        assert found.r is not None
        image = found.pv / found.r[:, None]
        lost = (found.r == 0).nonzero()[:, 0]
        return image.index_copy(0, lost, self._image_of(lost, values)) if len(lost) else image

    def class_coupling(self, source_labels: Tensor, target_labels: Tensor) -> Tensor:
        """``(c, c')`` mass sent from each source class to each target class; rows sum to the class weights.

        Args:
            source_labels: ``(n,)`` class ids from 0, integers.
            target_labels: ``(m,)`` likewise.
        """
        one_hot_x = self._one_hot(source_labels, self.shape[0], "source_labels")
        one_hot_y = self._one_hot(target_labels, self.shape[1], "target_labels")
        return one_hot_x.to(torch.float64).T @ self.apply(one_hot_y)

    def transfer_labels(self, target_labels: Tensor) -> Tensor:
        """``(n, c')`` label distribution that each source point receives through the plan; rows sum to one."""
        return self.map(self._one_hot(target_labels, self.shape[1], "target_labels"))

    def dense(self) -> Tensor:
        """The plan as an ``(n, m)`` float64 matrix.

        Raises:
            ValueError: more than ``2^27`` entries (1 GiB).
        """
        n, m = self.shape
        if n * m > 1 << 27:
            raise ValueError(f"a dense plan of {n} x {m} takes {n * m * 8 / 2**30:.1f} GiB; use apply() or map()")
        return self.apply(torch.eye(m, dtype=torch.float64, device=self.cost.device))

    def _product(self, *, v: Tensor | None = None, u: Tensor | None = None) -> PlanProduct:
        """The plan, or its transpose, times float64 columns."""
        v, u = (None if side is None else side.to(torch.float64) for side in (v, u))
        return self._operator.apply_plan(0, *self.potentials, self.epsilon, v=v, u=u)

    def _image_of(self, rows: Tensor, values: Tensor) -> Tensor:
        """The images of source points without mass: their rows of the plan, each scaled to mass one."""
        operator = rows_against(self.cost, self.problem, rows, self.epsilon)
        f = c_transform(operator, self.potentials.g, self.epsilon)
        found = operator.apply_plan(0, f, self.potentials.g, self.epsilon, v=values.to(torch.float64))
        assert found.pv is not None
        assert found.r is not None
        return found.pv / found.r[:, None]

    @cached_property
    def _operator(self) -> PlanOperator:
        how = Execution(self.backend, self.precision, "streamed")
        return how.operator(self.cost, [self.problem], epsilon=self.epsilon)

    def _columns(self, values: Tensor, length: int, name: str) -> Tensor:
        """``values`` as real columns of one row a point; integers as float64, which holds them up to ``2^53``."""
        self._check_rows(values, length, name)
        if values.is_complex():
            raise ValueError(f"{name} must be real, got {values.dtype}: apply the plan to .real and .imag apart")
        values = values if values.is_floating_point() else values.to(torch.float64)
        return values if values.dim() == 2 else values[:, None]

    def _one_hot(self, labels: Tensor, length: int, name: str) -> Tensor:
        """``(length, classes)`` float32 indicators of class ids."""
        self._check_rows(labels, length, name)
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(f"{name} must be ({length},) integers, got {tuple(labels.shape)} of {labels.dtype}")
        if int(labels.min()) < 0:
            raise ValueError(f"{name} must be class ids from 0, got {int(labels.min())}")
        return torch.nn.functional.one_hot(labels.to(torch.int64)).to(torch.float32)

    def _check_rows(self, values: Tensor, length: int, name: str) -> None:
        """Refuse what is no tensor with a row for each point, on the plan's device."""
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(values).__name__}: give torch.as_tensor(...)")
        if values.layout != torch.strided or values.is_quantized:
            raise TypeError(f"{name} must be a dense tensor of plain numbers, got {values.layout} of {values.dtype}")
        if values.dim() not in (1, 2) or values.shape[0] != length:
            raise ValueError(f"{name} must have {length} rows, got shape {tuple(values.shape)}")
        if values.device != self.cost.device:
            raise ValueError(f"{name} is on {values.device}, the plan on {self.cost.device}: move one of them")
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} holds NaN or infinity")
