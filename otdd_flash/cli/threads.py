"""How the command shares the processors of a machine; to be set before torch is loaded, which reads it once."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")


def share_processors() -> None:
    """Let idle OpenMP threads sleep instead of spin, and start no more of them than a container's quota allows.

    Settings of the environment win: ``OMP_WAIT_POLICY``, ``OMP_NUM_THREADS``. Nothing is done where torch is loaded.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    quota = cpu_quota()
    if quota is not None and quota < _processors():
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def cpu_quota(v2: Path = _V2, v1: Path = _V1, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors that the tightest control group of this process may use; ``None`` without a limit.

    Args:
        v2: where the unified hierarchy is mounted.
        v1: where the cpu controller of the older ones is mounted.
        own: the list of this process's groups.
    """
    quotas = [quota for folder in _folders(v2, v1, own) for quota in _quotas(folder)]
    return min(quotas, default=None)


def _folders(v2: Path, v1: Path, own: Path) -> Iterator[Path]:
    """The groups of this process, up to the root; within a container the root alone may be visible."""
    yield from (v2, v1)
    lines = own.read_text().splitlines() if own.is_file() else []
    for line in lines:
        number, controllers, place = line.split(":", 2)
        mounted = v2 if number == "0" else v1 if "cpu" in controllers.split(",") else None
        group = Path(place.lstrip("/"))
        if mounted is not None:
            yield from (mounted / part for part in (group, *group.parents))


def _quotas(folder: Path) -> Iterator[float]:
    """The quota that ``folder`` states, if any, as a number of processors."""
    for read in (_unified, _older):
        try:
            quota, period = read(folder)
        except (OSError, ValueError):  # no such file, or "max" for no limit
            continue
        if quota > 0 and period > 0:
            yield quota / period


def _unified(folder: Path) -> tuple[int, int]:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota), int(period)


def _older(folder: Path) -> tuple[int, int]:
    return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())


def _processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
