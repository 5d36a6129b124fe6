"""What a solver may ask of a cost: the interface that both backends implement.

An operator holds a batch of ``B`` problems in padded layout: potentials and weights are ``(B, N)`` and ``(B, M)``
float64 tensors in the operator's own row order, with weight zero (and marginal zero) at padding. ``pack_rows`` and
``unpack_rows`` translate from and to the order of the clouds. One potential convention everywhere:

    P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost

Backend = Literal["auto", "torch", "triton"]
Precision = Literal["auto", "fp64", "fp32", "tf32", "fp16", "fp16x3", "int8"]
Memory = Literal["auto", "streamed", "cached"]
# Of an operand of each precision, as a fraction: how far costs may be off. Exponents and sums are float32 at least.
UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "fp16x3": 2.0**-21,
    "int8": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
}
Problem = tuple[int, int]


def exponent_roundoff(precision: str) -> float:
    """Unit roundoff of exponents and of the sums over them."""
    return UNIT_ROUNDOFF["fp64" if precision == "fp64" else "fp32"]


def marginal_resolution(precision: str, ratio: Tensor) -> Tensor:
    """L1 error that rounding leaves in marginals, as a fraction of the mass.

    An exponent is of the size of the mean cost over epsilon, plus that of a logarithm of a weight; it is rounded to
    nearest, and the errors of different rows and columns have no common sign.

    Args:
        precision: of the operands.
        ratio: mean cost over epsilon.
    """
    return exponent_roundoff(precision) / 4 * (ratio + 16)


def on_device(device: torch.device) -> AbstractContextManager:
    """Make a GPU the current one for the while: Triton launches on the current one, wherever its arguments are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass(frozen=True)
class OperatorInfo:
    """What was actually chosen, for the result's record.

    Args:
        backend: ``torch`` or ``triton``.
        precision: of the operands.
        memory: ``streamed``, ``cached``, or ``part-cached`` where ``auto`` was asked for.
        bytes: held by the operator.
    """

    backend: str
    precision: str
    memory: str
    bytes: int


class PlanProduct(NamedTuple):
    """What :meth:`PlanOperator.apply_plan` was asked for; the rest is ``None``."""

    pv: Tensor | None  # (n, w) P v
    ptu: Tensor | None  # (m, w') P^T u
    r: Tensor | None  # (n,) float64 row sums of the same plan, with pv
    c: Tensor | None  # (m,) float64 column sums, with ptu


class PlanOperator(Protocol):
    """A batch of problems ``(i, j)`` over one :class:`DotProductCost`; problem ``(i, i)`` is symmetric."""

    cost: DotProductCost
    problems: tuple[Problem, ...]
    a: Tensor  # (B, N) float64
    b: Tensor  # (B, M) float64
    info: OperatorInfo

    def marginals(self, f: Tensor, g: Tensor, epsilon: float, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Row and column sums ``(B, N), (B, M)`` float64 of the plan of ``f, g``, from one product per score.

        A symmetric problem reads ``f`` only (``g = f``) and returns ``c = r``. Rows of problems where the host tensor
        ``active (B,)`` is False are left undefined. No running maximum: the potentials are the shift, so a sum may
        come out zero or infinite when they are far from the solution; :meth:`softmin` then restarts them safely.
        """
        ...

    def softmin(self, potential: Tensor, epsilon: float, *, side: Literal["rows", "columns"]) -> Tensor:
        """Safe half step, with running maximum.

        ``side="rows"``: ``f_i = -eps log sum_j b_j exp((g_j - C_ij)/eps)`` from ``potential = g (B, M)``;
        ``side="columns"``: ``g_j`` from ``potential = f (B, N)``. Zero at padding.
        """
        ...

    def apply_plan(
        self, problem: int, f: Tensor, g: Tensor, epsilon: float, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> PlanProduct:
        """``P v`` and ``P^T u`` of one problem, and the plan's sums; all in the clouds' order.

        Args:
            problem: position in ``problems``; a symmetric one reads ``f`` only.
            f: ``(n,)`` potential of the rows, near a solution (no running maximum).
            g: ``(m,)`` potential of the columns.
            epsilon: in units of the cost.
            v: ``(m, w)`` float32 or float64; the product has its dtype.
            u: ``(n, w')``, likewise.
        """
        ...

    def pack_rows(self, values: Tensor, problem: int) -> Tensor:
        """``(n,)`` in the cloud's order to the operator's row layout ``(N,)`` of ``problem``, zero at padding."""
        ...

    def unpack_rows(self, values: Tensor, problem: int) -> Tensor:
        """The row layout ``(N,)`` of ``problem`` to the cloud's order ``(n,)``."""
        ...

    def pack_columns(self, values: Tensor, problem: int) -> Tensor:
        """``(m,)`` in the cloud's order to the operator's column layout ``(M,)``."""
        ...

    def unpack_columns(self, values: Tensor, problem: int) -> Tensor:
        """The column layout ``(M,)`` to the cloud's order ``(m,)``."""
        ...
