"""Potentials to base-2 exponents, one float32 per point, in one launch for all problems and both sides.

    u_i = (f_i - alpha_i) log2(e) / eps + log2 a_i

computed in float64 and rounded once, so that ``P_ij = 2^(scale S_ij + u_i + v_j)`` needs no further constants. A point
of weight zero (and all padding) gets ``-inf``. Streams three float64 vectors, writes one float32 vector.
"""

import struct

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["size_f", "size"])
def _exponents_kernel(f, g, alpha, log_weight, out, size_f, size, slope_hi, slope_lo, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    left = tl.load(f + at, mask=at < size_f, other=0.0)
    right = tl.load(g + (at - size_f), mask=inside & (at >= size_f), other=0.0)
    shift = tl.load(alpha + at, mask=inside, other=0.0)
    weight = tl.load(log_weight + at, mask=inside, other=0.0)
    moved = left + right - shift  # float64; a scalar argument travels as float32, so the slope comes in two
    value = moved * slope_hi + moved * slope_lo + weight
    value = tl.where(weight == -float("inf"), -float("inf"), value)  # whatever the potential is there
    tl.store(out + at, value.to(tl.float32), mask=inside)


def exponents(f: torch.Tensor, g: torch.Tensor, alpha: torch.Tensor, log_weight: torch.Tensor, slope: float,
              out: torch.Tensor) -> None:  # fmt: skip
    """Write the exponents of ``[f.ravel(), g.ravel()]`` into ``out`` (float32); ``slope = log2(e) / eps``."""
    size = out.numel()
    _exponents_kernel[(triton.cdiv(size, 512),)](
        f, g, alpha, log_weight, out, f.numel(), size, *two_parts(slope), BLOCK=512
    )


def two_parts(value: float) -> tuple[float, float]:
    """A float64 as float32 and what is left: scalar arguments of a kernel travel as float32."""
    high = struct.unpack("f", struct.pack("f", value))[0]
    return high, value - high
