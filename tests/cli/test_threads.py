from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import otdd_flash
from otdd_flash.cli.threads import cpu_quota


def write(folder: Path, **files: str) -> Path:
    """Files with the dots of their names as underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(("text", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)])
def test_quota_of_the_unified_hierarchy(tmp_path: Path, text: str, quota: float | None) -> None:
    v2 = write(tmp_path / "v2", cpu__max=text)
    assert cpu_quota(v2, tmp_path / "none", tmp_path / "none") == quota


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    v2 = tmp_path / "v2"
    write(v2 / "a" / "b", cpu__max="800000 100000")
    write(v2 / "a", cpu__max="200000 100000")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert cpu_quota(v2, tmp_path / "none", tmp_path / "own") == 2


@pytest.mark.parametrize(("quota", "found"), [("250000", 2.5), ("-1", None)])
def test_quota_of_the_older_hierarchy(tmp_path: Path, quota: str, found: float | None) -> None:
    write(tmp_path / "v1" / "docker" / "x", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    (tmp_path / "own").write_text("4:cpu,cpuacct:/docker/x\n7:pids:/\n")
    assert cpu_quota(tmp_path / "none", tmp_path / "v1", tmp_path / "own") == found


def started(code: str, **variables: str) -> str:
    """What a fresh process prints that calls ``share_processors`` first."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    environment |= {"PYTHONPATH": str(Path(otdd_flash.__file__).parents[1]), **variables}
    program = f"import os, sys\nfrom otdd_flash.cli import main, threads\n{code}"
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_the_command_waits_passively_before_torch_is_loaded() -> None:
    shown = "print('torch' in sys.modules); main.main(['--version']); print(os.environ.get('OMP_WAIT_POLICY'))"
    assert started(shown).splitlines()[::2] == ["False", "PASSIVE"]
    assert started(shown, OMP_WAIT_POLICY="ACTIVE").splitlines()[2] == "ACTIVE"


def test_a_quota_is_torchs_number_of_threads() -> None:
    code = "threads.cpu_quota = lambda: 0.5; threads.share_processors(); import torch; print(torch.get_num_threads())"
    assert started(code) == "1"
    many = "threads._processors = lambda: 8; threads.cpu_quota = lambda: 3.5; threads.share_processors()"
    assert started(f"{many}; print(os.environ['OMP_NUM_THREADS'])") == "3"
    assert started(f"{many}; print(os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="2") == "2"
