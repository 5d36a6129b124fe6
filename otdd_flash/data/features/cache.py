"""Embeddings on disk, by content of data and weights."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from otdd_flash.errors import warn
from otdd_flash.tensor_files import read_safetensors, write_safetensors


def default_cache() -> Path:
    """``$OTDD_CACHE/features``, by default ``~/.cache/otdd_flash/features``."""
    base = os.environ.get("OTDD_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "otdd_flash")
    return Path(base).expanduser() / "features"


def read(folder: Path, key: str, n: int) -> Tensor | None:
    """The ``(n, k)`` embedding stored under ``key``, or ``None``; an unreadable file is said and passed over."""
    path = folder / f"{key}.safetensors"
    try:
        x = read_safetensors(path, needed_for="the cache of embeddings")[1]["x"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, KeyError, ValueError) as error:
        warn(f"{path} cannot be read and is made anew: {error}")
        return None
    return x if len(x) == n else None


def write(folder: Path, key: str, x: Tensor, about: dict[str, str]) -> None:
    """Store an embedding; a reader never sees half of it."""
    path = folder / f"{key}.safetensors"
    write_safetensors({"x": x}, path, about, needed_for="the cache of embeddings")


def is_storable(x: Tensor) -> bool:
    """Whether every value is finite."""
    return bool(torch.isfinite(x).all())
