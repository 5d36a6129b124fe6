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


def write_safetensors(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    needed_for: str,
) -> None:
    """Write a safetensors file in place with the rights of any new file, which the library keeps for its owner alone.

    Args:
        tensors: by name; none may share memory with another.
        path: replaced where it exists.
        metadata: strings for the header.
        needed_for: what for, said where safetensors is missing.
    """
    library = optional_import("safetensors.torch", needed_for=needed_for)
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    library.save_file(held, path, metadata=metadata)
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(path, 0o666 & ~umask)


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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    header = {"format": kind, "record": json.dumps(record)}
    try:
        write_safetensors(tensors, unfinished, header, needed_for=f"writing {kind}")
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
            # copies, which lie as torch puts them: a sum over a tensor that is not aligned may end in another last bit
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
            return json.loads(metadata["record"]), tensors
    except (library.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a readable file of {kind!r}: {error}") from error
