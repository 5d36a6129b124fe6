"""C18: offsets beyond 2^31 elements, in operands and stored scores that are sparse files and take no memory.

What counts is n * d, not n: a cloud of 40 million rows of 64 columns starts behind 2^31 elements.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from otdd_flash.kernels.apply_plan import SHIFT, apply_plan
from otdd_flash.kernels.marginals import JOB_FIELDS, marginals
from otdd_flash.kernels.ordered_sum import ordered_sum
from otdd_flash.kernels.plan_tiles import plan_tiles
from otdd_flash.kernels.scores import scores
from otdd_flash.kernels.softmin import SOFTMIN_FIELDS, softmin
from otdd_flash.kernels.source import ScoreSource
from otdd_flash.kernels.stored_marginals import stored_marginals
from otdd_flash.ops.sweeps import softmin_jobs
from otdd_flash.ops.tiles import Extent, TilePlan
from otdd_flash.ops.tuning import KernelConfig

WIDTH, N, M = 64, 40, 50
FAR = (1 << 31) // WIDTH + 1000  # operand row at which the second cloud starts
FAR_TILE = (1 << 31) // (32 * 64) + 10  # place of the first tile of stored scores
CONFIG = KernelConfig("fp16", 32, 64, 32, 2, 1, defer=True)
DEVICE = torch.device("cpu")


def sparse(path, elements: int, dtype) -> torch.Tensor:
    """A tensor over a file of which only the pages that are written exist."""
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="w+", shape=(elements,)))


@pytest.fixture
def problem(tmp_path):
    """A packed operand whose second cloud lies behind 2^31 elements, exponents, and the dense plan."""
    gen = torch.Generator().manual_seed(0)
    x, y = (0.3 * torch.randn(k, WIDTH, generator=gen).half() for k in (N, M))
    operand = sparse(tmp_path / "operand", (FAR + 256) * WIDTH, np.float16).view(-1, WIDTH)
    operand[:N], operand[FAR : FAR + M] = x, y
    exponent = torch.full((512,), -torch.inf)
    exponent[:N], exponent[256 : 256 + M] = torch.rand(N, generator=gen), torch.rand(M, generator=gen)
    plan = torch.exp2(x.double() @ y.double().T + exponent[:N, None].double() + exponent[256 : 256 + M].double())
    extent = Extent(N, M, row_base=0, col_base=FAR, u=0, v=256, tile=FAR_TILE, symmetric=False, r=0, c=256)
    source = ScoreSource(operand, operand, WIDTH, WIDTH, 0, 1.0)
    return source, exponent, extent, plan


def job_lists(extent):
    plan = TilePlan([extent], CONFIG.block_m, CONFIG.block_n, deterministic=True, slot_bytes=1 << 20)
    return plan.jobs(None, DEVICE), torch.zeros(plan.slots)


def check_sums(partial, jobs, plan):
    out = torch.zeros(512, dtype=torch.float64)
    ordered_sum(partial, jobs.sums, out, block=CONFIG.block_n)
    torch.testing.assert_close(out[:N], plan.sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(out[256 : 256 + M], plan.sum(0), rtol=1e-5, atol=0)


def test_job_lists_are_int64(problem):
    jobs, _ = job_lists(problem[2])
    assert jobs.jobs.dtype == jobs.sums.dtype == torch.int64
    assert int(jobs.jobs[:, 1].max()) * WIDTH > 1 << 31
    assert int(jobs.jobs[:, 11].max()) * 32 * 64 > 1 << 31


@pytest.mark.parametrize("resident", [False, True])
def test_operand_offsets(problem, resident):
    source, exponent, extent, plan = problem
    jobs, partial = job_lists(extent)
    block_k = WIDTH if resident else 32
    config = KernelConfig("fp16", 32, 64, block_k, 2, 1, defer=True, resident=resident)
    marginals(source, exponent, jobs.jobs, partial, config=config)
    check_sums(partial, jobs, plan)


def test_offsets_of_stored_scores(problem, tmp_path):
    source, exponent, extent, plan = problem
    jobs, partial = job_lists(extent)
    tiles = sparse(tmp_path / "tiles", (FAR_TILE + 8) * 32 * 64, np.float32)
    stored = ScoreSource(source.rows, source.cols, WIDTH, WIDTH, 0, 1.0, tiles=tiles)
    scores(stored, jobs.jobs, config=CONFIG, fields=JOB_FIELDS)
    stored_marginals(stored, exponent, jobs.jobs, partial, config=CONFIG)
    check_sums(partial, jobs, plan)


def test_softmin_and_apply_plan(problem):
    source, exponent, extent, plan = problem
    splits, jobs = softmin_jobs([extent], CONFIG, rows=True, fields=SOFTMIN_FIELDS, sizes=(256, 256), stored=CONFIG)
    peak, total = torch.full((splits, 256), -torch.inf), torch.zeros(splits, 256)
    softmin(source, exponent, jobs, peak, total, config=CONFIG)
    sums = (torch.exp2(peak.double()) * total.double()).sum(0)[:N] * torch.exp2(exponent[:N].double())
    torch.testing.assert_close(sums, plan.sum(1), rtol=1e-5, atol=0)
    config = KernelConfig("fp16", 32, 64, 32, 2, 1, block_w=16)
    values = torch.zeros(256, 16, dtype=torch.float16)
    values[:M, 0] = torch.arange(M)
    out, mass = torch.empty(1, 64, 16), torch.empty(1, 64)
    shifted = exponent[:256] + SHIFT
    halves = values, torch.zeros_like(values)
    apply_plan(
        source, (shifted, exponent[256:]), halves, out, mass, rows=(0, N, 2), cols=(FAR, 1, 1), strips=(64, 0),
        exact=True, config=config,
    )  # fmt: skip
    expected = 2.0**SHIFT * torch.stack([plan @ values[:M, 0].double(), plan.sum(1)])
    torch.testing.assert_close(torch.stack([out[0, :N, 0], mass[0, :N]]).double(), expected, rtol=1e-5, atol=0)
    config = KernelConfig("fp16", 32, 64, 32, 2, 1)
    high, low = torch.empty(64, 64, dtype=torch.float16), torch.empty(64, 64, dtype=torch.float16)
    plan_tiles(
        source, (shifted, exponent[256:]), (high, low), at=(0, 0), bases=((0, N), FAR), strips=(64, 0), config=config
    )
    written = (high.double() + low.double())[:N, :M]
    torch.testing.assert_close(written, 2.0**SHIFT * plan, rtol=1e-5, atol=1e-7)
