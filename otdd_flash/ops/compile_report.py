"""Ahead-of-time compilation of the kernels, without a GPU: registers, spills and shared memory per configuration."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otdd_flash.ops import tuning
from otdd_flash.ops.plan_product import ROUNDED_ONCE
from otdd_flash.ops.tuning import KernelConfig

_POINTERS = {
    "tiles": "*fp32", "exponent": "*fp32", "table": "*fp32", "partial": "*fp32", "peak": "*fp32", "total": "*fp32",
    "u": "*fp32", "v": "*fp32", "high": "*fp16", "low": "*fp16", "mass": "*fp32", "out": "*fp32", "labels": "*i32",
    "jobs": "*i64", "costs": "*fp32", "points": "*fp32", "seen": "*fp32", "next_seen": "*fp32", "log_weights": "*fp64",
    "old": "*fp64", "new": "*fp64", "potentials": "*fp64",
}  # fmt: skip
_SCALARS = {
    **dict.fromkeys(("scale", "table_scale", "cost_scale", "slope", "slope_hi", "slope_lo", "kept"), "fp32"),
    **dict.fromkeys(("factor_hi", "factor_lo", "next_hi", "next_lo"), "fp32"),
    **dict.fromkeys(("out_pitch", "out_split"), "i32"),
}
_OPERANDS = {"int8": "i8", "fp16": "fp16", "fp16x3": "fp16", "tf32": "fp32", "fp32": "fp32"}
_ALIGNED = ("width", "main", "values_pitch", "out_pitch", "out_split")


@dataclass(frozen=True)
class Resources:
    """What one compilation uses, per thread and per program."""

    kernel: str
    config: KernelConfig
    variant: str
    arch: int
    registers: int
    spill_bytes: int
    shared_bytes: int


def cases(arch: int, modes: tuple[str, ...] = tuple(_OPERANDS)) -> Iterator[tuple[str, KernelConfig, dict[str, Any]]]:
    """``(kernel, configuration, constants)`` of every kernel and mode as the table chooses them for ``arch``.

    Kernels that read stored scores have no mode; they come with ``fp32``.
    """
    for mode in modes:
        stored = tuning.stored_config(mode, arch)
        for config in dict.fromkeys(tuning.table_config(mode, features, arch) for features in (64, 128, 256, 784)):
            yield "marginals", config, {"LABELS": True}
        yield "softmin", tuning.softmin_config(mode, arch), {"LABELS": True}
        yield "scores", tuning.fill_config(stored, arch), {"LABELS": True}
        exact = mode not in ROUNDED_ONCE
        for columns in (16, 64, 128):
            config = tuning.apply_config(mode, columns, arch, exact=exact)
            yield "apply_plan", config, {"LABELS": True, "EXACT": exact}
        yield "plan_tiles", tuning.plan_tiles_config(mode, arch), {"LABELS": True, "EXACT": exact}
        if mode != "fp32":
            continue
        yield "stored_marginals", stored, {}
        yield "softmin", tuning.softmin_config(mode, arch, stored=stored.block_n), {"LABELS": False}
        for exact in (False, True):
            for columns in (16, 64, 128):
                config = tuning.apply_config(mode, columns, arch, stored=stored.block_n, exact=exact)
                yield "apply_plan", config, {"LABELS": False, "EXACT": exact}
            config = tuning.plan_tiles_config(mode, arch, stored=stored.block_n)
            yield "plan_tiles", config, {"LABELS": False, "EXACT": exact}
        yield from _dense_cases()


def _dense_cases() -> Iterator[tuple[str, KernelConfig, dict[str, Any]]]:
    """The kernels of small problems, at a few sizes and widths."""
    for size, width in ((512, 3), (2048, 64), (8192, 512)):
        costs, step = tuning.dense_costs_config(width), tuning.dense_step_config(size)
        yield "dense_costs", costs, {"OWN": True, "NARROW": width <= tuning.DENSE_NARROW}
        yield "dense_step", step, {"ALIGNED": True}
        yield "dense_pull", tuning.dense_pull_config(size, width), {"ALIGNED": True, "KINDS": 2}


def compile_case(kernel: str, config: KernelConfig, constants: dict[str, Any], arch: int) -> Resources:
    """Compile one case for ``sm_<arch>`` and read the assembler's report.

    Raises:
        RuntimeError: the assembler's report has no register count.
    """
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"otdd_flash.kernels.{kernel}"), f"_{kernel}_kernel")
    known = {
        "MODE": config.mode, "TMA": config.tma, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k, "WARPS": config.warps,
        "RESIDENT": config.resident, "DEFER": config.defer, "BLOCK_W": config.block_w,
        "FIELDS": 16, "STORED": config.stored, **constants,
    }  # fmt: skip
    constexprs = {name: known[name] for name in function.arg_names if name.isupper()}
    signature, attrs = {}, {}
    for position, name in enumerate(function.arg_names):
        signature[name] = "constexpr" if name.isupper() else _argument_type(name, config)
        if signature[name].startswith("*") or name in _ALIGNED:
            attrs[(position,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(function, signature, constexprs, attrs), target=GPUTarget("cuda", arch, 32),
        options={"num_warps": config.warps, "num_stages": config.stages},
    )  # fmt: skip
    registers, spills = _assemble(compiled.asm["ptx"], arch)
    variant = ",".join(f"{key.lower()}" for key, value in constants.items() if value)
    return Resources(kernel, config, variant, arch, registers, spills, compiled.metadata.shared)


def _argument_type(name: str, config: KernelConfig) -> str:
    """Triton's name for the type of a kernel argument."""
    if name in ("rows", "cols"):
        element = _OPERANDS[config.mode]
        block = config.block_m if name == "rows" else config.block_n
        return f"tensordesc<{element}[{block}, {config.block_k}]>" if config.tma else f"*{element}"
    return _POINTERS.get(name) or _SCALARS.get(name, "i32")


def _assemble(ptx: str, arch: int) -> tuple[int, int]:
    """Registers per thread and bytes spilled, from Triton's own assembler."""
    import triton

    root = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        target = "sm_90a" if arch == 90 else f"sm_{arch}"
        report = subprocess.run(
            [str(root / "ptxas"), "-v", f"--gpu-name={target}", str(source), "-o", str(Path(folder) / "kernel.cubin")],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
    registers = re.search(r"Used (\d+) registers", report)
    if registers is None:
        raise RuntimeError(f"no register count in the assembler's report: {report!r}")
    return int(registers.group(1)), sum(int(size) for size in re.findall(r"(\d+) bytes spill stores", report))
