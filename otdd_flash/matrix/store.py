"""A folder of finished work, found by content key; every file appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.errors import optional_import
from otdd_flash.tensor_files import write_safetensors

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
        path = self.path(kind, key)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(record, dict):
                raise ValueError(f"a record, not a {type(record).__name__}, should be there")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, OSError) as error:
            warnings.warn(f"{path} cannot be read and is computed anew: {error}", stacklevel=2)
            return None
        return record

    def write(self, kind: str, key: str, record: dict[str, Any]) -> None:
        """Put ``record`` in place, over an older one."""
        path, unfinished = self._prepare(kind, key, ".json")
        unfinished.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(unfinished, path)

    def write_first(self, kind: str, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Put ``record`` in place unless there is one; returns the one that stands, whoever wrote it."""
        path, unfinished = self._prepare(kind, key, ".json")
        unfinished.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        try:
            os.link(unfinished, path)  # fails where the name exists, unlike a rename
        except FileExistsError:
            return self.read(kind, key) or record
        except OSError:  # a file system without hard links
            if not path.exists():
                os.replace(unfinished, path)
            return self.read(kind, key) or record
        finally:
            unfinished.unlink(missing_ok=True)
        return record

    def remove(self, kind: str, key: str) -> None:
        """Forget a record, if it is there."""
        self.path(kind, key).unlink(missing_ok=True)

    def read_tensors(self, kind: str, key: str) -> dict[str, Tensor] | None:
        """Tensors written by :meth:`write_tensors`, or ``None``."""
        path = self.path(kind, key, ".safetensors")
        if not path.exists():
            return None
        library = optional_import("safetensors.torch", needed_for="reading stored class statistics")
        try:
            return library.load_file(path)
        except (OSError, ValueError, optional_import("safetensors", needed_for="reading").SafetensorError) as error:
            warnings.warn(f"{path} cannot be read and is computed anew: {error}", stacklevel=2)
            return None

    def write_tensors(self, kind: str, key: str, tensors: dict[str, Tensor]) -> None:
        """Put ``tensors`` in place."""
        path, unfinished = self._prepare(kind, key, ".safetensors")
        try:
            write_safetensors(tensors, unfinished, needed_for="storing class statistics")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _prepare(self, kind: str, key: str, suffix: str) -> tuple[Path, Path]:
        """The final path and a private one beside it."""
        path = self.path(kind, key, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path, path.with_name(f".{path.name}.{uuid.uuid4().hex}")
