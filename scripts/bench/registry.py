"""The benchmark's cases: what is measured, on which device, and how a measurement is written down.

A case returns rows. A row says which ``problem`` was solved by which ``solver`` and how long it took (``ms``, with the
20 % and 80 % quantiles); rows of one problem are comparable, because they were made from the same inputs in one run.
``gate`` says whether the numbers behind the time were checked and right: where it is False, no time is reported.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What a run was asked for.

    Args:
        data: folder of the real data sets, or ``None`` for where the library looks.
        repeats: timed calls of a measurement.
        small: tiny sizes, to see that everything runs; the times mean nothing.
    """

    data: Path | None = None
    repeats: int = 5
    small: bool = False

    def size(self, n: int, tiny: int = 300) -> int:
        """``n``, or a tiny size under ``small``."""
        return tiny if self.small else n


@dataclass(frozen=True)
class Case:
    """One case: ``device`` is ``cpu`` or ``gpu``, ``data`` whether it needs the real data sets."""

    name: str
    device: str
    data: bool
    run: Callable[[Settings], list[Row]]
    summary: str


CASES: dict[str, Case] = {}


def case(device: str, *, data: bool = False) -> Callable[[Callable[[Settings], list[Row]]], Callable]:
    """Register a function under its name; its docstring's first line is the summary."""

    def register(run: Callable[[Settings], list[Row]]) -> Callable[[Settings], list[Row]]:
        CASES[run.__name__] = Case(run.__name__, device, data, run, (run.__doc__ or "").splitlines()[0])
        return run

    return register


def timed(run: Callable[[], Any], *, repeats: int = 5, warm: int = 1) -> tuple[Row, Any]:
    """Median and 20/80 quantiles in milliseconds of whole calls, peak memory, and the last result."""
    gpu = torch.cuda.is_available()
    synchronize = torch.cuda.synchronize if gpu else (lambda: None)
    for _ in range(warm):
        result = run()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(max(repeats, 2)):
        synchronize()
        start = time.perf_counter()
        result = run()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    quantiles = statistics.quantiles(times, n=5)
    row: Row = {"ms": statistics.median(times), "q20": quantiles[0], "q80": quantiles[-1], "repeats": len(times)}
    if gpu:
        row["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return row, result


def row(problem: str, solver: str, timing: Row, *, gate: bool, **more: Any) -> Row:
    """One row; a red gate keeps what was checked and drops the time."""
    kept = timing if gate else {}
    return {"problem": problem, "solver": solver, "gate": bool(gate), **kept, **more}


def machine() -> Row:
    """Where a run took place."""
    packages = ("torch", "triton", "flash-sinkhorn", "geomloss", "POT", "ott-jax", "jax")
    found: Row = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {package: version for package in packages if (version := _version(package))},
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found.update(gpu=properties.name, multiprocessors=properties.multi_processor_count, cuda=torch.version.cuda)
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
