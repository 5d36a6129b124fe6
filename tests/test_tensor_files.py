"""Safetensors files have the rights of any other file."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from otdd_flash.tensor_files import read_tensors, save_tensors, write_safetensors


@pytest.mark.skipif(sys.platform == "win32", reason="no such rights")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_rights_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_safetensors({"a": torch.arange(3)}, tmp_path / "one", needed_for="a test")
        save_tensors({"a": torch.arange(3)}, tmp_path / "two", kind="a test", record={"n": 3})
    finally:
        os.umask(before)
    for name in ("one", "two"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask
    assert torch.equal(load_file(tmp_path / "one")["a"], torch.arange(3))
    record, tensors = read_tensors(tmp_path / "two", kind="a test")
    assert record == {"n": 3}
    assert torch.equal(tensors["a"], torch.arange(3))
