"""Ahead-of-time compilation for sm_80 and sm_90, no GPU needed; on sm_90 the table's choices must not spill."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")


@pytest.mark.parametrize("mode", ["int8", "fp16", "fp16x3", "tf32", "fp32"])
@pytest.mark.parametrize("arch", [80, 90])
def test_every_kernel_compiles(arch, mode):
    from otdd_flash.ops.compile_report import cases, compile_case

    for kernel, config, constants in cases(arch, (mode,)):
        used = compile_case(kernel, config, constants, arch)
        assert 0 < used.registers <= 255
        assert used.shared_bytes <= 227 << 10
        if arch == 90:
            assert used.spill_bytes <= 128, used
