"""Tensors with a record of plain values in one safetensors file that appears whole or not at all."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.errors import optional_import


def save_tensors(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str], *, kind: str, record: Mapping[str, Any]
) -> Path:
    """Write ``tensors`` and a JSON-safe ``record`` to ``path``.

    Args:
        tensors: by name; none may share memory with another.
        path: replaced where it exists; its folder is made.
        kind: what the file is, with the version of its layout; checked by :func:`read_tensors`.
        record: everything else.
    """
    library = optional_import("safetensors.torch", needed_for=f"writing {kind}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        library.save_file(held, unfinished, metadata={"format": kind, "record": json.dumps(record)})
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read_tensors(path: str | os.PathLike[str], *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors that :func:`save_tensors` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or of another kind.
    """
    library = optional_import("safetensors", needed_for=f"reading {kind}")
    try:
        with library.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise ValueError(f"{path} is not a file of {kind!r}: its format is {metadata.get('format')!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return json.loads(metadata["record"]), tensors
    except (library.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a readable file of {kind!r}: {error}") from error
