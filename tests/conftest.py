"""Shared fixtures: where the real data sets are, and how their absence is reported."""

from __future__ import annotations

import os
from pathlib import Path

# The tests' matrices are small: a second OpenMP thread costs more processor time than it saves, and where the cores are
# shared its spinning makes the suite many times slower. Set before torch is loaded, and passed on to subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets; skips (or, under ``OTDD_REQUIRE_DATA=1``, fails) where there is none."""
    root = os.environ.get("OTDD_DATA")
    if root and Path(root).is_dir():
        return Path(root)
    message = f"real data sets not found: OTDD_DATA={root!r}"
    if os.environ.get("OTDD_REQUIRE_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` skip where no CUDA device is visible."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
