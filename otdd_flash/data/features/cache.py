"""Embeddings on disk, by content of data and weights."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor

from otdd_flash.errors import optional_import
from otdd_flash.tensor_files import write_safetensors


def default_cache() -> Path:
    """``$OTDD_CACHE/features``, by default ``~/.cache/otdd_flash/features``."""
    base = os.environ.get("OTDD_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "otdd_flash")
    return Path(base).expanduser() / "features"


def read(folder: Path, key: str, n: int) -> Tensor | None:
    """The ``(n, k)`` embedding stored under ``key``, or ``None``; an unreadable file is said and passed over."""
    path = folder / f"{key}.safetensors"
    if not path.is_file():
        return None
    library = optional_import("safetensors.torch", needed_for="the cache of embeddings")
    damaged = optional_import("safetensors", needed_for="the cache of embeddings").SafetensorError
    try:
        x = library.load_file(path)["x"]
    except (OSError, KeyError, ValueError, damaged) as error:
        warnings.warn(f"{path} cannot be read and is made anew: {error}", UserWarning, stacklevel=3)
        return None
    return x if len(x) == n else None


def write(folder: Path, key: str, x: Tensor, about: dict[str, str]) -> None:
    """Store an embedding; a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    os.close(handle)
    try:
        write_safetensors({"x": x}, name, about, needed_for="the cache of embeddings")
        os.replace(name, folder / f"{key}.safetensors")
    finally:
        Path(name).unlink(missing_ok=True)


def is_storable(x: Tensor) -> bool:
    """Whether every value is finite."""
    return bool(torch.isfinite(x).all())
