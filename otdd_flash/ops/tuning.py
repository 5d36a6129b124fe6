"""Which tile shape a kernel runs with: a small table instead of a search at the first call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class KernelConfig:
    """One compilation of a kernel.

    Args:
        mode: operand precision (``int8``, ``fp16``, ``fp16x3``, ``tf32``, ``fp32``).
        block_m: rows of a tile.
        block_n: columns of a tile; a multiple of ``block_m``.
        block_k: operand columns per step; the operand's width is a multiple of it.
        warps: warps per program.
        stages: depth of the software pipeline.
        tma: load operands with the bulk copy engine (sm_90 and later) instead of pointers.
        block_w: columns of the right-hand side per program (``apply_plan`` only).
    """

    mode: str
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    tma: bool = False
    block_w: int = 0


def architecture(device: torch.device) -> int:
    """Compute capability as ``90``; ``0`` for the interpreter."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


_INTERPRETED = {"block_m": 32, "block_n": 64, "block_k": 32, "warps": 4, "stages": 1}

_STREAMED = {  # block_m, block_n, block_k, warps, stages
    "int8": (128, 128, 64, 4, 3),
    "fp16": (128, 128, 64, 4, 3),
    "fp16x3": (128, 128, 32, 8, 3),
    "tf32": (128, 128, 32, 4, 3),
    "fp32": (64, 64, 16, 4, 2),
}


def width_multiple(mode: str) -> int:
    """Operand widths are padded to a multiple of this, so every configuration of the mode divides them."""
    return 32 if mode == "fp32" else 64


def streamed_config(mode: str, width: int, arch: int) -> KernelConfig:
    """Configuration of ``marginals``, ``softmin`` and ``scores`` over operands."""
    if arch == 0:
        return KernelConfig(mode, **_INTERPRETED)
    return KernelConfig(mode, *_STREAMED[mode])


def cached_config(mode: str, arch: int) -> KernelConfig:
    """Configuration of ``marginals`` over stored scores; the same tiles are written by ``scores``."""
    if arch == 0:
        return KernelConfig(mode, **_INTERPRETED)
    return KernelConfig(mode, 128, 128, 32, 8, 3)


def apply_config(mode: str, columns: int, arch: int) -> KernelConfig:
    """Configuration of ``apply_plan`` for a right-hand side of ``columns`` columns."""
    block_w = 16 if columns <= 16 else 64
    if arch == 0:
        return KernelConfig(mode, **_INTERPRETED, block_w=min(block_w, 32))
    return KernelConfig(mode, 64, 64, 16 if mode == "fp32" else 32, 4, 2, block_w=block_w)


def fill_config(config: KernelConfig, mode: str, arch: int) -> KernelConfig:
    """How to write tiles of the shape of ``config`` (one pass, so simple)."""
    if arch == 0:
        return config
    return replace(config, mode=mode, block_k=16 if mode == "fp32" else 32, stages=2)


_CACHING_PAYS_FROM = {"int8": 416, "fp16": 256, "fp16x3": 96, "tf32": 96, "fp32": 32}


def caching_pays(mode: str, width: int) -> bool:
    """Whether reading four bytes per score is faster than recomputing a dot product of ``width`` terms."""
    return width >= _CACHING_PAYS_FROM[mode]
