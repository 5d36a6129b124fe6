"""Small problems whole: every cost of a batch of pairs of clouds is stored, and a step is a few operations on all.

A :class:`~otdd_flash.ops.base.PlanOperator` serves problems of any size and shape one block at a time; below a few
thousand points that costs more than the arithmetic. Here all pairs of a batch have one shape, ``n`` and ``m`` points,
and with ``debiased`` come with the two self problems of each pair. Potentials are ``(B, K, n + m)`` float64: ``K = 1``
for the cross problem alone, ``[f, g]``; ``K = 2`` with those of the self problems, ``[f_aa, g_bb]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from otdd_flash.ops.base import on_device
from otdd_flash.ops.blocked import FLOAT32_RANGE, SCALES
from otdd_flash.ops.linear import exp_

_CPU_SCORES = 1 << 20  # of a problem: above, blocks that stay in the cache and triangles are faster
_BYTES = 256 << 20  # of stored costs
_LEAST_LOG = {torch.float32: math.log(1e-30), torch.float64: math.log(1e-290)}  # of sums; less has lost digits


Cloud = tuple[Tensor, Tensor]  # points and weights, with a batch dimension


class Step(NamedTuple):
    """Softmins at ``epsilon``, times ``damping``; of the potentials before, the share ``kept`` is kept."""

    epsilon: float
    damping: float
    kept: float


class DenseProblems(Protocol):
    """A batch of pairs of clouds with stored costs ``|x - y|^2 / 2``."""

    def solve(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor] | None:
        """Potentials ``(B, K, n + m)`` before the last step and after it, starting from zero.

        ``None`` where sums were lost: the steps need a running maximum.
        """
        ...

    def pull(self, epsilon: float) -> Tensor:
        """``(B, n + m, d)``: ``sum_j P_ij (z_i - z_j)`` of the cross problem, less that of the self problem.

        ``P`` has the potential after the last step on the side of ``i`` and the one before it on the side of ``j``.
        """
        ...


def dense_problems(
    x: Tensor, a: Tensor, y: Tensor, b: Tensor, *, epsilon: float, debiased: bool, largest: float, positive: bool
) -> DenseProblems | None:
    """The batch with its costs, or ``None`` where it is too large or too far out for them.

    Args:
        x: ``(B, n, d)`` centred points.
        a: ``(B, n)`` float64 weights.
        y: ``(B, m, d)``.
        b: ``(B, m)``.
        epsilon: the smallest regularisation to come, in units of the cost.
        debiased: with the self problems.
        largest: a bound of all costs.
        positive: no weight is zero.
    """
    (batch, n, _), m, device = x.shape, y.shape[1], x.device
    single = x.dtype == torch.float32 and resolved(largest, epsilon)
    if device.type == "cuda" and single and 4 * batch * (n + m) ** 2 <= _BYTES:
        from otdd_flash.ops.api import triton_missing

        if triton_missing() is None:
            from otdd_flash.ops.dense_fused import FusedDense

            with on_device(device):
                return FusedDense(x, a, y, b, debiased=debiased)
    scores = max(n, m) ** 2 if debiased else n * m
    fits = scores <= _CPU_SCORES if device.type == "cpu" else True
    if not positive or not fits or 8 * batch * (3 if debiased else 1) * scores > _BYTES:
        return None
    return TorchDense.build(x, a, y, b, epsilon=epsilon, debiased=debiased)


def resolved(largest: float, epsilon: float) -> bool:
    """Whether costs and costs over epsilon are float32 numbers."""
    low, high = SCALES["fp32"]
    return largest == 0 or (low < largest < high and low < epsilon and largest / epsilon < high)


class _Pairs:
    """Problems of one shape: points, weights and costs of ``G`` pairs.

    Plans are in the points' precision. Costs and exponents may be finer: large ones cancel before they are rounded.
    """

    def __init__(self, left: Cloud, right: Cloud, dtype: torch.dtype) -> None:
        (self.x, a), (self.y, b) = left, right
        self.n = self.x.shape[1]
        self.log_weights = torch.cat([a, b], 1).log_()
        norms = [points.to(torch.float64).square().sum(2).div(2).to(dtype) for points in (self.x, self.y)]
        self.cost = norms[0][:, :, None] + norms[1][:, None, :]
        self.cost.baddbmm_(self.x.to(dtype), self.y.to(dtype).mT, alpha=-1.0)
        self._plan = torch.empty_like(self.cost, dtype=self.x.dtype)
        self._scores = self._plan if self.x.dtype == dtype else torch.empty_like(self.cost)
        self._exponents = torch.empty_like(self.log_weights, dtype=dtype)

    def solve(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor] | None:
        """Potentials ``(G, n + m)`` before and after the last step."""
        before = now = torch.zeros_like(self.log_weights)
        logs = []
        for epsilon, damping, kept in steps:
            plan = self._make_plan(now, epsilon)
            logs.append(torch.cat([plan.sum(2), plan.sum(1)], 1).to(torch.float64).log_())
            before, moved = now, (1.0 - kept) * damping
            now = torch.add(before, self.log_weights - logs[-1], alpha=moved * epsilon)
            if kept + moved != 1.0:
                now.sub_(before, alpha=1.0 - kept - moved)
        lowest, highest = torch.stack(logs).aminmax()
        sound = (lowest >= _LEAST_LOG[self._plan.dtype]) & (highest < torch.inf)  # NaN fails
        return (before, now) if bool(sound) else None

    def pull_left(self, before: Tensor, after: Tensor, epsilon: float) -> Tensor:
        """``(G, n, d)``: ``sum_j P_ij (x_i - y_j)`` for ``f`` after and ``g`` before the last step."""
        plan = self._make_plan(torch.cat([after[:, : self.n], before[:, self.n :]], 1), epsilon)
        return plan.sum(2, keepdim=True) * self.x - plan @ self.y

    def pull_right(self, before: Tensor, after: Tensor, epsilon: float) -> Tensor:
        """``(H, m, d)``: the same for the other side of the first ``H`` pairs, of which the potentials are."""
        plan = self._make_plan(torch.cat([before[:, : self.n], after[:, self.n :]], 1), epsilon)
        count = len(plan)
        return plan.sum(1)[:, :, None] * self.y[:count] - plan.mT @ self.x[:count]

    def _make_plan(self, potentials: Tensor, epsilon: float) -> Tensor:
        """``P_ij`` of ``[f, g] (H, n + m)`` of the first ``H`` pairs; the next call overwrites it."""
        count = len(potentials)
        scores, exponents = self._scores[:count], self._exponents[:count]
        torch.add(self.log_weights[:count], potentials, alpha=1.0 / epsilon, out=exponents)  # rounds once
        torch.add(exponents[:, : self.n, None], self.cost[:count], alpha=-1.0 / epsilon, out=scores)
        return exp_(torch.add(scores, exponents[:, None, self.n :], out=self._plan[:count]))


class TorchDense:
    """:class:`DenseProblems` in torch, for any device; problems of one shape share their operations.

    Args:
        pairs: the cross problems, then with self problems those of the first sides and of the second: in one group
            where the shapes are the same, else in three.
        batch: pairs of clouds.
    """

    def __init__(self, pairs: list[_Pairs], batch: int) -> None:
        self._pairs, self._batch = pairs, batch
        self._found: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def build(cls, x: Tensor, a: Tensor, y: Tensor, b: Tensor, *, epsilon: float, debiased: bool) -> TorchDense | None:
        """Costs in the points' precision, or in float64 where float32 does not resolve costs over epsilon."""
        sides: tuple[Cloud, Cloud] = (x, a), (y, b)
        kinds = [sides] + ([(side, side) for side in sides] if debiased else [])
        if x.shape == y.shape and debiased:
            left, right = ([kind[side] for kind in kinds] for side in range(2))
            kinds = [(_joined(left), _joined(right))]
        for dtype in dict.fromkeys((x.dtype, torch.float64)):
            pairs = [_Pairs(*kind, dtype) for kind in kinds]
            largest = max(float(group.cost.amax()) for group in pairs)
            low, high = SCALES["fp32" if dtype == torch.float32 else "fp64"]
            enough = dtype == torch.float64 or largest <= FLOAT32_RANGE * epsilon
            if largest == 0 or (enough and low < largest < high):
                return cls(pairs, len(x))
        return None

    def solve(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor] | None:
        """See :class:`DenseProblems`."""
        self._found = []
        for group in self._pairs:
            found = group.solve(steps)
            if found is None:
                return None
            self._found.append(found)
        return self._stacked(0), self._stacked(1)

    def pull(self, epsilon: float) -> Tensor:
        """See :class:`DenseProblems`."""
        left: list[Tensor] = []
        for group, found in zip(self._pairs, self._found, strict=True):
            left += group.pull_left(found[0], found[1], epsilon).split(self._batch)
        before, after = (potentials[: self._batch] for potentials in self._found[0])
        right = self._pairs[0].pull_right(before, after, epsilon)
        out = torch.cat([left[0], right], 1)
        return out if len(left) == 1 else out - torch.cat(left[1:], 1)

    def _stacked(self, which: int) -> Tensor:
        """``(B, K, n + m)``, before or after.

        The two potentials of a self problem are one but for rounding, which moves a constant from one to the other.
        """
        kinds = [kind for found in self._found for kind in found[which].split(self._batch)]
        if len(kinds) == 1:
            return kinds[0][:, None]
        halves = [kind.unflatten(1, (2, -1)).mean(1) for kind in kinds[1:]]
        return torch.stack([kinds[0], torch.cat(halves, 1)], 1)


def _joined(clouds: list[Cloud]) -> Cloud:
    return torch.cat([points for points, _ in clouds]), torch.cat([weights for _, weights in clouds])
