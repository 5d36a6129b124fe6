"""Small problems whole, on a GPU: one launch for all costs of a batch, one for every step, one for the gradient.

Costs and gradients of many wide points are left to the library's float64 products where these are fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from otdd_flash.kernels.dense_costs import dense_costs
from otdd_flash.kernels.dense_pull import dense_pull
from otdd_flash.kernels.dense_step import dense_step
from otdd_flash.ops import dense_blocks, tuning
from otdd_flash.ops.base import on_device
from otdd_flash.ops.dense import Step


class FusedDense:
    """Triton implementation of :class:`otdd_flash.ops.dense.DenseProblems`.

    Points of weight zero are rows and no columns: they get the potential that a step gives there, and pull nothing.

    Args:
        x: ``(B, n, d)`` centred float32 points.
        a: ``(B, n)`` float64 weights.
        y: ``(B, m, d)``.
        b: ``(B, m)``.
        debiased: with the self problems.
    """

    def __init__(self, x: Tensor, a: Tensor, y: Tensor, b: Tensor, *, debiased: bool) -> None:
        self._points = torch.cat([x, y], 1).contiguous()
        self._log_weights = torch.cat([a, b], 1).log2_()
        self._n, self._kinds = x.shape[1], 1 + debiased
        batch, size, width = self._points.shape
        self._costs = torch.empty(batch, size, size, device=x.device)
        self._in_blocks = tuning.dense_in_blocks(x.device, batch, size, width)
        with on_device(x.device):
            if self._in_blocks:
                dense_blocks.dense_costs(self._points, self._costs, n=self._n, own=debiased)
            else:
                dense_costs(
                    self._points, self._costs, n=self._n, narrow=width <= tuning.DENSE_NARROW, own=debiased,
                    config=tuning.dense_costs_config(width),
                )  # fmt: skip

    def solve(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
        """See :class:`otdd_flash.ops.dense.DenseProblems`."""
        batch, size = self._log_weights.shape
        before = self._log_weights.new_zeros(batch, self._kinds, size)
        seen = self._log_weights.to(torch.float32)[:, None].repeat(1, self._kinds, 1)
        after, further = torch.empty_like(before), torch.empty_like(seen)
        slopes = [_slope(step.epsilon) for step in steps]
        config = tuning.dense_step_config(size)
        with on_device(before.device):
            for k, (epsilon, damping, kept) in enumerate(steps):
                last = k + 1 == len(steps)
                dense_step(
                    self._costs, self._log_weights, before, after if last else before, seen, further, n=self._n,
                    slope=slopes[k], factor=-(1.0 - kept) * damping * epsilon * math.log(2.0), kept=kept,
                    next_slope=slopes[k if last else k + 1], config=config,
                )  # fmt: skip
                seen, further = further, seen
        self._after, self._seen = after, further
        return before, after

    def pull(self, epsilon: float) -> Tensor:
        """See :class:`otdd_flash.ops.dense.DenseProblems`."""
        out = torch.empty_like(self._points)
        given = self._costs, self._points, self._log_weights, self._after, self._seen, out
        _, size, width = out.shape
        with on_device(out.device):
            if self._in_blocks:
                dense_blocks.dense_pull(*given, n=self._n, slope=_slope(epsilon))
            else:
                config = tuning.dense_pull_config(size, width)
                dense_pull(*given, n=self._n, slope=_slope(epsilon), config=config)
        return out


def _slope(epsilon: float) -> float:
    return 1.0 / (epsilon * math.log(2.0))
