"""Slots of partial sums to float64 sums, in a fixed order and without atomics.

    out_i += sum_{s < count1} first[s, i] + sum_{t < count2} second[t, i]

A program owns BLOCK outputs of one problem. The rows of a symmetric problem have two sources (row sums of the tiles of
their row, column sums of the tiles above the diagonal) and two destinations (``r`` and ``c``). Streams every slot once.
"""

import triton
import triton.language as tl

SUM_FIELDS = 8


@triton.jit
def _slot_sum(base, stride, count, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, count, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        values = tl.load(
            base + slot.to(tl.int64)[:, None] * stride + tl.arange(0, BLOCK)[None, :],
            mask=(slot < count)[:, None], other=0.0,
        )  # fmt: skip
        total += tl.sum(values.to(tl.float64), 0)
    return total


@triton.jit
def _ordered_sum_kernel(partial, jobs, out, BLOCK: tl.constexpr, CHUNK: tl.constexpr, FIELDS: tl.constexpr):
    job = jobs + tl.program_id(0).to(tl.int64) * FIELDS
    count, other = tl.load(job + 4).to(tl.int32), tl.load(job + 7).to(tl.int32)
    total = _slot_sum(partial + tl.load(job + 2), tl.load(job + 3), count, BLOCK, CHUNK)
    total += _slot_sum(partial + tl.load(job + 5), tl.load(job + 6), other, BLOCK, CHUNK)
    at = tl.arange(0, BLOCK)
    total += tl.load(out + tl.load(job) + at)
    tl.store(out + tl.load(job) + at, total)
    copy = tl.load(job + 1)
    if copy >= 0:
        tl.store(out + copy + at, total)


def ordered_sum(partial, jobs, out, *, block: int) -> None:
    """Add sums of ``partial`` (float32) to ``out`` (float64) as ``jobs (q, SUM_FIELDS)`` int64 say.

    A job is ``(destination, second destination or -1, base, stride, count, base, stride, count)`` for ``block``
    outputs.
    """
    _ordered_sum_kernel[(jobs.shape[0],)](partial, jobs, out, BLOCK=block, CHUNK=8, FIELDS=SUM_FIELDS, num_warps=4)
