"""Refine the table of kernel configurations for the GPU at hand: time neighbours of its choice, keep the best.

A search climbs: from the table's configuration it tries one change at a time (tile rows, tile columns, warps, pipeline
stages), moves to the best and goes on until nothing is better or the time is up. A candidate whose sums differ from
the table's is thrown out, whatever its speed. Nothing is searched unless asked for; see :mod:`~otdd_flash.ops.choices`
for where the result is kept and when it is used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import choices, tuning
from otdd_flash.ops.tuning import KernelConfig

PROBLEMS = [(0, 1), (0, 0), (1, 1)]
_AGREEMENT = 1e-4  # relative, of row sums with the table's: rounding of another order of summation is far below
_GAIN = 0.98  # of the best time so far that a candidate must stay under to take its place
_SMALLEST, _LARGEST = 32 * 64, 128 * 256


@dataclass(frozen=True)
class Trial:
    """One candidate: its time in milliseconds, or why it has none."""

    config: KernelConfig
    ms: float | None
    refused: str | None = None


@dataclass(frozen=True)
class Refinement:
    """Outcome of one search; ``chosen`` is the table's configuration where nothing was better."""

    mode: str
    features: int
    table: Trial
    chosen: Trial
    trials: tuple[Trial, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "mode": self.mode, "features": self.features, "table_ms": self.table.ms, "chosen_ms": self.chosen.ms,
            "chosen": asdict(self.chosen.config), "trials": len(self.trials),
            "refused": sum(trial.refused is not None for trial in self.trials),
        }  # fmt: skip


def refine(mode: str, *, n: int, features: int, seconds: float, device: torch.device, seed: int = 0) -> Refinement:
    """Search for a faster configuration of the fused pass and keep it for this GPU and Triton version.

    Args:
        mode: operand precision.
        n: points of each cloud to time a debiased iteration on.
        features: width; the choice serves all widths of its bucket (:func:`otdd_flash.ops.choices.bucket`).
        seconds: no new candidate is begun after this (one compilation takes a few seconds).
        device: a CUDA device.
        seed: of the clouds.

    Returns:
        What was tried and chosen.
    """
    bench = _bench(mode, n, features, device, seed)
    start = tuning.table_config(mode, features, tuning.architecture(device))
    found = climb(start, bench, seconds)
    choices.save(device, mode, features, found.chosen.config, ms=found.chosen.ms, table_ms=found.table.ms)
    return replace(found, mode=mode, features=features)


def climb(start: KernelConfig, bench: Callable[[KernelConfig], Trial], seconds: float) -> Refinement:
    """Hill climbing over :func:`neighbours` from ``start``.

    Raises:
        RuntimeError: the start itself does not run.
    """
    deadline = time.monotonic() + seconds
    table = best = bench(start)
    if table.ms is None:
        raise RuntimeError(f"the table's own configuration does not run: {table.refused}")
    seen = {start: table}
    while True:
        before = best
        for config in neighbours(before.config):
            if config in seen or time.monotonic() > deadline:
                continue
            seen[config] = trial = bench(config)
            if trial.ms is not None and best.ms is not None and trial.ms < _GAIN * best.ms:
                best = trial
        if best is before or time.monotonic() > deadline:
            return Refinement(start.mode, 0, table, best, tuple(seen.values()))


def neighbours(config: KernelConfig) -> Iterator[KernelConfig]:
    """Configurations one change away that the kernel can be compiled for in principle."""
    for field, factors in (("block_n", (2, 0.5)), ("block_m", (2, 0.5)), ("warps", (2, 0.5))):
        for factor in factors:
            changed: dict[str, Any] = {field: int(getattr(config, field) * factor)}
            yield from _valid(replace(config, **changed))
    yield from _valid(replace(config, block_m=config.block_m * 2, warps=config.warps * 2))
    yield from _valid(replace(config, block_n=config.block_n * 2, warps=config.warps * 2))
    for stages in (config.stages + 1, config.stages - 1):
        yield from _valid(replace(config, stages=stages))


def _valid(config: KernelConfig) -> Iterator[KernelConfig]:
    """``config`` itself where the kernel's shapes allow it."""
    fits = (
        config.block_m >= 32
        and 64 <= config.block_n <= 256
        and config.block_n % config.block_m == 0
        and _SMALLEST <= config.block_m * config.block_n <= _LARGEST
        and config.warps in (2, 4, 8)
        and 1 <= config.stages <= 6
        and (not config.defer or config.block_m % (16 * config.warps) == 0)
    )
    if fits:
        yield config


def _bench(mode: str, n: int, features: int, device: torch.device, seed: int) -> Callable[[KernelConfig], Trial]:
    """A function that times a debiased iteration of a configuration on fixed clouds and checks its sums."""
    from otdd_flash.ops.fused import FusedOperator
    from otdd_flash.ops.packing import pack

    generator = torch.Generator(device).manual_seed(seed)
    weights = torch.full((n,), 1 / n, dtype=torch.float64, device=device)
    points = [torch.randint(0, 256, (n, features), generator=generator, device=device) / 255 for _ in range(2)]
    cost = DotProductCost.build([PointCloud(p, weights) for p in points])
    epsilon, packed = 0.05 * cost.mean(0, 1), pack(cost, mode)
    expected: list[Tensor] = []

    def bench(config: KernelConfig) -> Trial:
        try:
            operator = FusedOperator(cost, PROBLEMS, packed=packed, capacity=0, deterministic=True, config=config)
            f = torch.full_like(operator.a, cost.mean(0, 1) / 2)
            g = torch.full_like(operator.b, cost.mean(0, 1) / 2)
            r, _ = operator.marginals(f, g, epsilon)
            expected.append(r)
            off = float((r - expected[0]).norm() / expected[0].norm())
            if not off <= _AGREEMENT:
                return Trial(config, None, f"its sums are off by {off:.1e}")
            return Trial(config, _milliseconds(lambda: operator.marginals(f, g, epsilon), device))
        except _refusals() as error:
            return Trial(config, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        finally:
            del expected[1:]

    return bench


def _refusals() -> tuple[type[Exception], ...]:
    """What Triton raises for a configuration that cannot be compiled or launched."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    return RuntimeError, CompilationError, OutOfResources


def _milliseconds(run: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Median wall time between device synchronisations, after one warm call."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])
