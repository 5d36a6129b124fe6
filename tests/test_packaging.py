"""The wheel is complete, and its console command works from anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ["pyproject.toml", "README.md", "LICENSE", "otdd_flash", "kernels", "conf"]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist of a copy of the tree, without network."""
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree, cwd=tree)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it; its dependencies stay those of this environment."""
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target]
    run(*install, wheel, cwd=target)
    return target


def test_wheel_contains_library_kernels_and_configs_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {path.relative_to(ROOT) for path in (ROOT / "otdd_flash").rglob("*.py")}
    for folder in ("kernels", "conf"):
        files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml", ".md")]
        expected |= {Path("otdd_flash") / path.relative_to(ROOT) for path in files}
    expected |= {path.relative_to(ROOT) for path in (ROOT / "otdd_flash" / "reporting").glob("page.*")}
    assert {path.as_posix() for path in expected} <= names
    assert "otdd_flash/py.typed" in names
    assert "otdd_flash/kernels/__init__.py" not in names
    assert all(name.startswith(("otdd_flash/", "otdd_flash-")) for name in names)


def test_console_command_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    command, path = installed / "bin" / "otdd", {"PYTHONPATH": str(installed)}
    where = run(sys.executable, "-c", "import otdd_flash; print(otdd_flash.__file__)", cwd=tmp_path, **path)
    assert Path(where.stdout.strip()).is_relative_to(installed)
    assert "distance" in run(command, "--help", cwd=tmp_path, **path).stdout
    info = json.loads(run(command, "info", "output=json", cwd=tmp_path, **path).stdout)
    assert info["backends"]["torch"] == "available"
    overrides = [
        "source=iris",
        "target=iris",
        "source.classes=[0]",
        "target.classes=[1,2]",
        "output=json",
        "device=cpu",
    ]
    result = json.loads(run(command, "distance", *overrides, cwd=tmp_path, **path).stdout)
    assert result["converged"]
    assert len(list(tmp_path.glob("outputs/distance/*/*/result.json"))) == 1


def test_script_is_the_console_command(tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "scripts" / "distance.py"]
    ours = run(*script, "--cfg", "job", "experiment=demo", cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout
    module = [sys.executable, "-m", "otdd_flash.cli.main", "distance", "--cfg", "job", "experiment=demo"]
    assert ours == run(*module, cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout
