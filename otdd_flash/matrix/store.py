"""A folder of finished work, found by content key; every file appears whole or not at all and is read checked."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from otdd_flash.errors import warn
from otdd_flash.tensor_files import read_record, read_safetensors, write_record, write_safetensors

_Content = TypeVar("_Content")
VERSION = 1  # raise it when a number's meaning or method changes: all keys change with it


def content_key(*parts: Any) -> str:
    """32 hex digits over JSON-safe ``parts`` and the version of this layout."""
    text = json.dumps([VERSION, *parts], sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Store:
    """Records (JSON) and tensors (safetensors) by kind and key, below one folder.

    Args:
        folder: created on the first write.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, kind: str, key: str, suffix: str = ".json") -> Path:
        """Where a record of this kind lies."""
        return self.folder / kind / f"{key}{suffix}"

    def read(self, kind: str, key: str) -> dict[str, Any] | None:
        """The record, or ``None`` where there is none; one that cannot be read is reported and counts as absent."""
        return _read_checked(read_record, self.path(kind, key))

    def write(self, kind: str, key: str, record: dict[str, Any]) -> None:
        """Put ``record`` in place, over an older one."""
        write_record(record, self.path(kind, key))

    def write_first(self, kind: str, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Put ``record`` in place unless a sound one is there; returns the one that stands, whoever wrote it."""
        path = self.path(kind, key)
        candidate = path.with_name(f".{uuid.uuid4().hex}.{path.name}")
        try:
            write_record(record, candidate)
            os.link(candidate, path)  # fails where the name exists, unlike a rename
        except OSError:  # the name exists, or the file system has no hard links
            if not candidate.exists():
                raise
            standing = self.read(kind, key)
            if standing is not None:
                return standing
            os.replace(candidate, path)
        finally:
            candidate.unlink(missing_ok=True)
        return record

    def remove(self, kind: str, key: str) -> None:
        """Forget a record, if it is there."""
        self.path(kind, key).unlink(missing_ok=True)

    def read_tensors(self, kind: str, key: str) -> dict[str, Tensor] | None:
        """Tensors written by :meth:`write_tensors`, or ``None``."""
        return _read_checked(_read_tensors, self.path(kind, key, ".safetensors"))

    def write_tensors(self, kind: str, key: str, tensors: dict[str, Tensor]) -> None:
        """Put ``tensors`` in place."""
        write_safetensors(tensors, self.path(kind, key, ".safetensors"), needed_for="storing class statistics")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    return read_safetensors(path, needed_for="reading stored class statistics")[1]


def _read_checked(read: Callable[[Path], _Content], path: Path) -> _Content | None:
    """What ``read`` finds, or ``None`` where nothing is there or, with a warning, where it is damaged."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        warn(f"{path} cannot be read and is computed anew: {error}")
        return None
