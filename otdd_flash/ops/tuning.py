"""Which tile shape a kernel runs with: a small table instead of a search at the first call.

The choices for sm_90 were measured on an H200 (docs/performance.md says what was tried). The key is the mode, whether
the operand fits one K step, and the architecture; sizes enter through the job lists, so the number of compilations of
a process is bounded. ``otdd bench tune=true`` may refine it for one GPU (:mod:`otdd_flash.ops.choices`).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class KernelConfig:
    """One compilation of a kernel.

    Args:
        mode: operand precision (``int8``, ``fp16``, ``fp16x3``, ``tf32``, ``fp32``).
        block_m: rows of a tile.
        block_n: columns of a tile; a multiple of ``block_m``.
        block_k: operand columns per step.
        warps: warps per program.
        stages: depth of the software pipeline.
        tma: load operands with the bulk copy engine (sm_90 and later) instead of pointers.
        defer: keep column sums per accumulator lane (``marginals``, wgmma layout only).
        resident: the operand is one K step wide; its column side stays in shared memory (``marginals`` only).
        stored: width of the strips of stored scores that are read instead of operands, 0 for none.
        block_w: columns of the right-hand side per program (``apply_plan`` only).
    """

    mode: str
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    tma: bool = False
    defer: bool = False
    resident: bool = False
    stored: int = 0
    block_w: int = 0


def architecture(device: torch.device) -> int:
    """Compute capability as ``90``; ``0`` for the interpreter."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def fast_float64(device: torch.device) -> bool:
    """Whether a GPU multiplies float64 matrices as fast as float32 ones, or faster: the data-center ones do."""
    return architecture(device) in _FAST_FLOAT64


_FAST_FLOAT64 = {80, 90, 100}  # architectures
_DENSE_WIDE = 1 << 30  # multiply-adds of costs: kernels take 0.7 ms for them and for the gradient on an H200
DENSE_NARROW = 8  # features up to which costs of small problems are sums of squared differences
WIDTH_MULTIPLE = 64  # operand widths are padded to this; every K step of a pointer configuration divides it

_HOPPER = {  # mode: block_m, block_n, block_k, warps, stages
    "int8": (128, 128, 128, 4, 3),
    "fp16": (128, 256, 64, 8, 4),
    "fp16x3": (128, 256, 64, 8, 4),
    "tf32": (128, 256, 32, 8, 4),
}
_HOPPER_NARROW = {**_HOPPER, "fp16": (128, 128, 64, 4, 3)}  # up to 256 features two programs share a multiprocessor
_HOPPER_WIDE_STEP = {"int8": (64, 128, 128, 4, 3)}
_HOPPER_ONE_STEP = {
    "int8": (64, 128, 64, 4, 3),
    "fp16": (64, 128, 64, 4, 3),
    "fp16x3": (128, 128, 64, 4, 2),
}
_AMPERE = {
    "int8": (128, 64, 64, 4, 3),
    "fp16": (64, 128, 64, 4, 3),
    "fp16x3": (64, 128, 32, 4, 3),
    "tf32": (64, 128, 32, 4, 3),
}
_FLOAT32 = (64, 64, 16, 4, 2)  # no matrix unit: plain multiply-adds
_STORED = (64, 128, 32, 4, 1)
WIDEST_IN_KERNEL = 128  # columns of a right-hand side for which ``apply_plan`` computes every score once
_CACHING_PAYS_FROM = {"int8": 416, "fp16": 256, "fp16x3": 96, "tf32": 96, "fp32": 32}


def table_config(mode: str, features: int, arch: int) -> KernelConfig:
    """The table's configuration of ``marginals`` over operands of ``features`` columns."""
    one_step = features <= WIDTH_MULTIPLE
    if arch == 0:
        block_k = WIDTH_MULTIPLE if one_step else 32
        return KernelConfig(mode, 32, 64, block_k, 2, 1, defer=mode != "fp32", resident=one_step)
    if mode == "fp32":
        return KernelConfig(mode, *_FLOAT32)
    if not _has_tma(arch):
        return KernelConfig(mode, *_AMPERE[mode], resident=one_step and _AMPERE[mode][2] == WIDTH_MULTIPLE)
    if one_step and mode in _HOPPER_ONE_STEP:
        return KernelConfig(mode, *_HOPPER_ONE_STEP[mode], tma=True, defer=True, resident=True)
    if features <= 2 * WIDTH_MULTIPLE and mode in _HOPPER_WIDE_STEP:
        return KernelConfig(mode, *_HOPPER_WIDE_STEP[mode], tma=True, defer=True, resident=True)
    return KernelConfig(mode, *(_HOPPER if features > 256 else _HOPPER_NARROW)[mode], tma=True, defer=True)


def softmin_config(mode: str, arch: int, *, stored: int = 0) -> KernelConfig:
    """Configuration of ``softmin``, from operands or from strips of ``stored`` columns."""
    if arch == 0:
        return KernelConfig(mode, 32, 64, 32, 2, 1, stored=stored)
    if stored:
        return KernelConfig(mode, 64, 128, 32, 4, 1, stored=stored)
    if mode == "fp32":
        return KernelConfig(mode, *_FLOAT32)
    tma = _has_tma(arch)
    return KernelConfig(mode, 128 if tma else 64, 128, 32 if mode == "tf32" else 64, 4, 3, tma=tma)


def stored_config(mode: str, arch: int) -> KernelConfig:
    """Configuration of ``stored_marginals``; ``scores`` writes tiles of this shape."""
    if arch == 0:
        return KernelConfig(mode, 32, 64, 32, 2, 1)
    return KernelConfig(mode, *_STORED)


def fill_config(config: KernelConfig, arch: int) -> KernelConfig:
    """How ``scores`` writes the tiles of ``config``."""
    if arch == 0:
        return config
    if config.mode == "fp32":
        return replace(config, block_k=16, warps=8, stages=2)
    return replace(config, stages=3, tma=_has_tma(arch))


def apply_config(mode: str, columns: int, arch: int, *, stored: int = 0, exact: bool = True) -> KernelConfig:
    """Configuration of ``apply_plan`` for a right-hand side of ``columns`` columns, in one float16 piece or two."""
    block_w = 16 if columns <= 16 else 64 if columns <= 64 else 128
    if arch == 0:
        return KernelConfig(mode, 32, 64, 32, 2, 1, stored=stored, block_w=min(block_w, 32))
    if stored:
        shape = (128, 64, 32, 8, 1) if block_w == 128 else (64, 64, 32, 4, 2)
        return KernelConfig(mode, *shape, stored=stored, block_w=block_w)
    if mode == "fp32" or not _has_tma(arch):
        return KernelConfig(mode, 64, 32, 16 if mode == "fp32" else 32, 4, 2, block_w=min(block_w, 64))
    block_k = {"int8": 128, "tf32": 32}.get(mode, 64)
    return KernelConfig(mode, 128, 64 if exact or block_w == 128 else 128, block_k, 8, 2, tma=True, block_w=block_w)


def plan_tiles_config(mode: str, arch: int, *, stored: int = 0) -> KernelConfig:
    """Configuration of ``plan_tiles``."""
    if arch == 0:
        return KernelConfig(mode, 32, 64, 32, 2, 1, stored=stored)
    if stored:
        return KernelConfig(mode, 64, 128, 32, 4, 1, stored=stored)
    if mode == "fp32":
        return KernelConfig(mode, *_FLOAT32)
    if not _has_tma(arch):
        return KernelConfig(mode, *_AMPERE[mode])
    return KernelConfig(mode, *_HOPPER[mode], tma=True)


def caching_pays(mode: str, width: int) -> bool:
    """Whether reading four bytes per score is faster than recomputing a dot product of ``width`` terms."""
    return width >= _CACHING_PAYS_FROM[mode]


def _has_tma(arch: int) -> bool:
    """Whether the bulk copy engine is there and this Triton can describe tensors to it."""
    return arch >= 90 and importlib.util.find_spec("triton.tools.tensor_descriptor") is not None


def dense_costs_config(width: int) -> KernelConfig:
    """For ``dense_costs`` of points of ``width`` features."""
    if width <= DENSE_NARROW:
        return KernelConfig("fp32", 32, 32, 32, 4, 1)
    return KernelConfig("fp32", 64, 64, 32, 8, 2)


def dense_in_blocks(device: torch.device, batch: int, size: int, width: int) -> bool:
    """Whether costs and gradients of ``batch`` pairs, ``size`` points each, are float64 products of the library.

    Of less work, the kernels take no longer than launching those products.
    """
    return batch * size**2 * width > _DENSE_WIDE and fast_float64(device)


def dense_step_config(size: int) -> KernelConfig:
    """For ``dense_step`` of ``size`` points: few rows make enough programs, long ones many reads under way."""
    return KernelConfig("fp32", 4, 256 if size <= 1024 else 1024, 0, 4, 2)


def dense_pull_config(size: int, width: int) -> KernelConfig:
    """For ``dense_pull`` of ``size`` points of ``width`` features: every chunk of features makes the plan once more."""
    chunk = min(max(16, 1 << (width - 1).bit_length()), 64 if size <= 2048 else 128)
    return KernelConfig("fp32", 16 if size <= 2048 else 32, 32, 0, 4, 2, block_w=chunk)
