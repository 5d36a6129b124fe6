"""Runs the interpreted kernel tests in a process of their own: Triton reads TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "interpreted"
LONG = [FOLDER / "test_fused.py"]
SHARES = [LONG, sorted(path for path in FOLDER.glob("test_*.py") if path not in LONG)]  # of about the same time


@pytest.mark.parametrize("files", SHARES, ids=["fused", "others"])
def test_kernels_match_float64_under_the_interpreter(files: list[Path]) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--import-mode=importlib", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
