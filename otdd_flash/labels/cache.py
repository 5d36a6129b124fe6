"""Label-distance tables kept between runs, found by what they were computed from."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from otdd_flash.errors import warn
from otdd_flash.labels.tables import LabelDistances
from otdd_flash.types import LabeledDataset

_VERSION = 1  # raise it when a method's numbers change


def cache_path(
    folder: str | os.PathLike[str],
    source: LabeledDataset,
    target: LabeledDataset,
    method: str,
    parameters: dict[str, Any],
) -> Path:
    """File of the table: its name is a key over both contents, the method, its parameters and the version."""
    key = [_VERSION, source.fingerprint, target.fingerprint, method, parameters]
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Path(folder) / f"labels-{digest}.safetensors"


def load_cached(path: Path, source: LabeledDataset, target: LabeledDataset) -> LabelDistances | None:
    """The stored table under today's class names, or ``None``; a damaged file is reported and will be replaced."""
    try:
        stored = LabelDistances.from_safetensors(path)
        return replace(stored, source_names=source.class_names, target_names=target.class_names)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        warn(f"stored label distances are computed anew: {error}")
        return None


def keep(table: LabelDistances, path: Path) -> None:
    """Store a computed table; a failure, such as a full disk, costs the file and not the result."""
    try:
        table.to_safetensors(path)
    except OSError as error:
        warn(f"label distances could not be kept in cache_dir={str(path.parent)!r}: {error}")


def check_writable(folder: Path) -> None:
    """Make the folder and a file in it, before a table is computed for it.

    Raises:
        ValueError: neither is possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cache_dir={str(folder)!r} cannot be written ({error}): give another folder") from error
