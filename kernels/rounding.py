"""The certificate's own arithmetic on a GPU: a plan rounded to its marginals, and the sums that its value is made of.

See :mod:`otdd_flash.sinkhorn.certificate` for the method. Vectors are those of :mod:`otdd_flash.kernels.steps`:
float64, rows first, ``n + m`` entries a problem; sums are partial sums of fixed blocks.
"""

import torch
import triton
import triton.language as tl

from otdd_flash.kernels.potentials import two_parts
from otdd_flash.kernels.steps import BLOCK, _both, _residual, _store_both

SUMS = 7  # inner product, masses of the plan, of both sides and of both rests, entropy of the rests
_VECTORS = ["n", "m", "blocks"]


@triton.jit(do_not_specialize=_VECTORS)
def _clip_kernel(f, g, a, b, r, c, out_f, out_g, n, m, eps_hi, eps_lo, BLOCK: tl.constexpr):
    problem = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = _residual(_both(a, b, problem, t, n, m), _both(r, c, problem, t, n, m), t < 0)
    step = tl.minimum(step, 0.0)
    moved = _both(f, g, problem, t, n, m) + (step * eps_hi + step * eps_lo)
    _store_both(out_f, out_g, problem, t, n, m, moved, t < n + m)


@triton.jit(do_not_specialize=_VECTORS)
def _rest_kernel(f, g, a, b, r, c, left_a, left_b, parts, n, m, blocks, SUMS: tl.constexpr, BLOCK: tl.constexpr):
    problem = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = t < n
    weights, sums = _both(a, b, problem, t, n, m), _both(r, c, problem, t, n, m)
    left = tl.maximum(weights - sums, 0.0)
    _store_both(left_a, left_b, problem, t, n, m, left, t < n + m)
    spread = tl.where(left > 0, left * tl.log(tl.where(left > 0, left / weights, 1.0)), 0.0)
    out = parts + (problem * blocks + tl.program_id(0)) * SUMS
    tl.store(out, tl.sum(sums * _both(f, g, problem, t, n, m), 0))
    tl.store(out + 1, tl.sum(tl.where(rows, sums, 0.0), 0))
    tl.store(out + 2, tl.sum(tl.where(rows, weights, 0.0), 0))
    tl.store(out + 3, tl.sum(tl.where(rows, 0.0, weights), 0))
    tl.store(out + 4, tl.sum(tl.where(rows, left, 0.0), 0))
    tl.store(out + 5, tl.sum(tl.where(rows, 0.0, left), 0))
    tl.store(out + 6, tl.sum(spread, 0))


def clipped(potentials, weights, sums, epsilon):
    """``f + eps min(log(a/r), 0)`` and the same of the columns, for ``B`` problems: ``(B, n), (B, m)`` each."""
    (batch, n), m = weights[0].shape, weights[1].shape[1]
    out = torch.empty_like(weights[0]), torch.empty_like(weights[1])
    _clip_kernel[triton.cdiv(n + m, BLOCK), batch](
        *potentials, *weights, *sums, *out, n, m, *two_parts(epsilon), BLOCK=BLOCK
    )
    return out


def rests(potentials, weights, sums):
    """What the sums lack of the weights, ``(B, n), (B, m)``, and the ``(B, SUMS)`` sums that the value is made of."""
    (batch, n), m = weights[0].shape, weights[1].shape[1]
    left, blocks = (torch.empty_like(weights[0]), torch.empty_like(weights[1])), triton.cdiv(n + m, BLOCK)
    parts = weights[0].new_empty(batch, blocks, SUMS)
    _rest_kernel[blocks, batch](*potentials, *weights, *sums, *left, parts, n, m, blocks, SUMS=SUMS, BLOCK=BLOCK)
    return left, parts.sum(1)
