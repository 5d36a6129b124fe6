"""Kernel configurations that ``otdd bench tune=true`` found to be faster than the table's, kept per GPU.

One JSON file a GPU model under ``$OTDD_CACHE/tuning`` (``~/.cache/otdd_flash/tuning``). A choice serves one mode and
one bucket of widths, and only the Triton version that it was found with. Delete the file to return to the table.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from otdd_flash.errors import warn
from otdd_flash.ops.tuning import KernelConfig


def folder() -> Path:
    """Where choices are kept."""
    base = os.environ.get("OTDD_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "otdd_flash")
    return Path(base).expanduser() / "tuning"


def path_of(device: torch.device) -> Path:
    """The file of a device's model."""
    return folder() / f"{re.sub(r'[^A-Za-z0-9]+', '-', _model(device)).strip('-').lower()}.json"


def bucket(features: int) -> str:
    """Widths that share a configuration."""
    return next((f"up to {limit}" for limit in (64, 128, 256) if features <= limit), "over 256")


def save(
    device: torch.device, mode: str, features: int, config: KernelConfig, *, ms: float | None, table_ms: float | None
) -> Path:
    """Keep ``config`` for a mode and the bucket of ``features``; what the file holds for others stays.

    Returns:
        The file.
    """
    path = path_of(device)
    record = _read(path)
    if record.get("triton") != _triton():
        record = {"device": _model(device), "triton": _triton(), "entries": {}}
    record["entries"][_key(mode, features)] = {"config": asdict(config), "ms": ms, "table_ms": table_ms}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def load(device: torch.device, mode: str, features: int) -> KernelConfig | None:
    """The choice for a mode and a width, or ``None``; an entry that cannot be read is said and passed over."""
    path = path_of(device)
    record = _read(path)
    entry = record.get("entries", {}).get(_key(mode, features)) if record.get("triton") == _triton() else None
    if entry is None:
        return None
    config = entry.get("config", {})
    if set(config) != {field.name for field in fields(KernelConfig)} or config["mode"] != mode:
        warn(f"{path} holds no usable configuration for {mode}: delete it")
        return None
    return KernelConfig(**config)


def _key(mode: str, features: int) -> str:
    return f"{mode}, {bucket(features)}"


def _model(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"


@cache
def _triton() -> str:
    """The installed version; looking it up takes longer than a small solve."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "none"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        warn(f"{path} cannot be read and is not used: {error}")
        return {}
