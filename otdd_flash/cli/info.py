"""``otdd info``: what is installed, what can be used, which data sets are at hand."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from otdd_flash import __version__
from otdd_flash.cli.config import InfoConfig
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_bytes
from otdd_flash.cli.tasks import Job

_DISTRIBUTION = "otdd-flash"
_PACKAGES = (
    "triton",
    "torchvision",
    "datasets",
    "scikit-learn",
    "hydra-core",
    "numpy",
    "scipy",
    "safetensors",
)


def run(config: InfoConfig, job: Job) -> None:
    """Print what this installation has; ``output.files=true`` keeps it as ``info.json`` too."""
    check_format(config.output.format)
    record = {
        "task": "info",
        "versions": versions(),
        "devices": devices(),
        "backends": backends(),
        "data": data_sets(config.data_root),
        "extras": extras(),
    }
    deliver(Finished(record, f"otdd-flash {__version__}", table_rows(record), "info.json"), config.output, job)


def versions() -> dict[str, str | None]:
    """Version of the library, of Python and of each core package; ``None`` where a package is absent."""
    return {
        "otdd_flash": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{package: _version(package) for package in _PACKAGES},
    }


def devices() -> list[dict[str, Any]]:
    """The CPU and every CUDA device that torch sees, with memory in bytes."""
    cpu = {"device": "cpu", "name": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    found: list[dict[str, Any]] = [cpu]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "memory": properties.total_memory,
                "capability": capability,
            }
        )
    return found


def backends() -> dict[str, str]:
    """``available``, or why not, for each backend."""
    if util.find_spec("triton") is None:
        triton = "the package triton is not installed (pip install triton, Linux only)"
    elif not torch.cuda.is_available():
        triton = "no CUDA device is visible to torch"
    else:
        triton = "available"
    return {"torch": "available", "triton": triton}


def data_sets(data_root: str | None) -> dict[str, dict[str, str]]:
    """For every known set, the splits that load without a download and where each is found."""
    from otdd_flash.data.registry import SOURCES
    from otdd_flash.data.sources import search_roots

    roots = search_roots(data_root)
    return {
        name: {split: place for split in source.splits if (place := _place(name, split, roots)) is not None}
        for name, source in SOURCES.items()
        if "path" not in source.options  # a kind of file, not a set
    }


def extras() -> dict[str, dict[str, str | None]]:
    """For every optional extra, its packages with their versions; empty where the library is not installed."""
    found: dict[str, dict[str, str | None]] = {}
    for extra, package in _extra_requirements():
        found.setdefault(extra, {})[package] = _version(package)
    return found


def table_rows(record: dict[str, Any]) -> list[Row]:
    """The table on stdout."""
    found = {name: splits for name, splits in record["data"].items() if splits}
    lost = [name for name in record["data"] if name not in found]
    rows = [
        ("versions", "\n".join(f"{name} {version or 'not installed'}" for name, version in record["versions"].items())),
        ("devices", "\n".join(map(_device_line, record["devices"]))),
        ("backends", "\n".join(f"{name}: {state}" for name, state in record["backends"].items())),
        ("data", "\n".join(f"{name}: {_splits_line(splits)}" for name, splits in found.items())),
    ]
    if lost:
        remedy = "these are downloaded when asked for, or name their folder (data_root=, $OTDD_DATA)"
        rows.append(("not offline", f"{textwrap.fill(', '.join(lost), 96)}\n{remedy}"))
    extras = "\n".join(_extra_line(*item) for item in record["extras"].items())
    rows.append(("extras", extras or "unknown: the library was not installed by pip"))
    return rows


def _version(package: str) -> str | None:
    """The installed version, or ``None``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra_requirements() -> Iterator[tuple[str, str]]:
    """Pairs of extra and package that this distribution declares."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*\bextra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match:
            yield match[2], match[1]


def _place(name: str, split: str, roots: tuple[Path, ...]) -> str | None:
    """Where ``split`` of the set loads from without a download: a folder, or scikit-learn; ``None`` where nowhere."""
    from otdd_flash.data.registry import SOURCES
    from otdd_flash.data.sources import Request

    source = SOURCES[name]
    for places in ((), *((root,) for root in roots)):
        for reader in source.readers:
            try:
                if reader(Request(name, split, places, download=False)) is not None:
                    return os.fspath(places[0]) if places else "scikit-learn"
            except (OSError, ValueError, ImportError):
                continue
    return None


def _device_line(device: dict[str, Any]) -> str:
    """One device in words."""
    if "threads" in device:
        return f"{device['device']}: {device['name']}, {device['threads']} threads"
    return f"{device['device']}: {device['name']}, {format_bytes(device['memory'])}, capability {device['capability']}"


def _splits_line(splits: dict[str, str]) -> str:
    """Splits by the place where they lie."""
    places = dict.fromkeys(splits.values())
    return "; ".join(f"{', '.join(s for s, p in splits.items() if p == place)} in {place}" for place in places)


def _extra_line(extra: str, packages: dict[str, str | None]) -> str:
    """One extra: complete, or what is missing and how to get it."""
    missing = [package for package, version in packages.items() if version is None]
    return (
        f"{extra}: lacks {', '.join(missing)} (pip install '{_DISTRIBUTION}[{extra}]')"
        if missing
        else f"{extra}: installed"
    )
