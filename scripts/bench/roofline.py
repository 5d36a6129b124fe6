"""What this card can do at most, measured, and how near a pass comes to it.

A pass over ``n x m`` scores of ``d`` features costs at least the largest of: its products at the rate of a large plain
matrix product of that type, its exponentials at 16 a clock and multiprocessor, its stored scores at the copy rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from registry import timed

_SWEEPS = {"int8": 1, "fp16": 1, "fp16x3": 3, "tf32": 1, "fp32": 1}
_EXPONENTIALS = 16  # a clock and multiprocessor, sm_80 to sm_90


@dataclass(frozen=True)
class Work:
    """A debiased iteration over ``n + m`` points: the cross problem and half of each self problem."""

    n: int
    m: int
    width: int
    mode: str
    stored: bool

    @property
    def scores(self) -> float:
        """Scores computed or read: ``n m + (n^2 + m^2) / 2``."""
        return self.n * self.m + (self.n**2 + self.m**2) / 2


def ceilings(size: int = 8192) -> dict[str, float]:
    """Operations a second of a plain product in each type, bytes a second of a copy, exponentials a second."""
    found: dict[str, float] = {}
    operations = 2.0 * size**3
    half = [torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2)]
    found["fp16"] = found["fp16x3"] = 1e3 * operations / timed(lambda: half[0] @ half[1], repeats=20)[0]["ms"]
    bytes_ = [torch.randint(-100, 100, (size, size), device="cuda", dtype=torch.int8) for _ in range(2)]
    found["int8"] = 1e3 * operations / timed(lambda: torch._int_mm(bytes_[0], bytes_[1].T), repeats=20)[0]["ms"]
    single = [torch.randn(size, size, device="cuda") for _ in range(2)]
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, flag in (("tf32", True), ("fp32", False)):
            torch.backends.cuda.matmul.allow_tf32 = flag
            found[name] = 1e3 * operations / timed(lambda: single[0] @ single[1], repeats=10)[0]["ms"]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    source = torch.empty(1 << 28, device="cuda").normal_()
    target = torch.empty_like(source)
    found["copy"] = 1e3 * 8.0 * source.numel() / timed(lambda: target.copy_(source), repeats=10)[0]["ms"]
    properties = torch.cuda.get_device_properties(0)
    clock = getattr(properties, "clock_rate", 0) * 1e3  # kHz; absent in old torch
    found["exp"] = _EXPONENTIALS * clock * properties.multi_processor_count
    return found


def share(work: Work, ms: float, ceiling: dict[str, float]) -> float:
    """The floor of ``work`` as a fraction of the measured time."""
    floors = [work.scores / ceiling["exp"]] if ceiling["exp"] else []
    if work.stored:
        floors.append(4.0 * work.scores / ceiling["copy"])
    else:
        floors.append(2.0 * _SWEEPS[work.mode] * work.width * work.scores / ceiling[work.mode])
    return 1e3 * max(floors) / ms
