"""Kept files: each appears whole or not at all and carries a checksum of its content, which readers check."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.errors import optional_import

_CHECKSUM = "checksum"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A private file beside ``path`` to write to, which takes its place at the end; after an error nothing is left.

    Args:
        path: replaced where it exists; its folder is made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{uuid.uuid4().hex}.{path.name}")  # writers go by the ending
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_safetensors(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    needed_for: str,
) -> None:
    """Write a safetensors file with the rights of any new file, which the library keeps for its owner alone.

    Args:
        tensors: by name; none may share memory with another.
        path: replaced where it exists; its folder is made.
        metadata: strings for the header, where a checksum joins them.
        needed_for: what for, said where safetensors is missing.

    Raises:
        OSError: the file cannot be written, for example because the disk is full.
    """
    library = optional_import("safetensors.torch", needed_for=needed_for)
    failure = optional_import("safetensors", needed_for=needed_for).SafetensorError
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = dict(metadata or {})
    header[_CHECKSUM] = _tensor_checksum(held, header)
    with replacing(path) as unfinished:
        try:
            library.save_file(held, unfinished, metadata=header)
        except failure as error:
            raise OSError(f"{path} cannot be written: {error}") from error
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(unfinished, 0o666 & ~umask)


def read_safetensors(
    path: str | os.PathLike[str], *, needed_for: str
) -> tuple[dict[str, str], dict[str, Tensor]]:  # fmt: skip
    """The metadata and the tensors that :func:`write_safetensors` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, or has no checksum; the message names it.
    """
    failure = optional_import("safetensors", needed_for=needed_for).SafetensorError
    try:
        with optional_import("safetensors", needed_for=needed_for).safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            # copies, which lie as torch puts them: a sum over a tensor that is not aligned may end in another last bit
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (failure, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    found = metadata.pop(_CHECKSUM, None)
    _compare(found, _tensor_checksum(tensors, metadata), path)
    return metadata, tensors


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
    write_safetensors(tensors, path, {"format": kind, "record": json.dumps(record)}, needed_for=f"writing {kind}")
    return Path(path)


def read_tensors(path: str | os.PathLike[str], *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors that :func:`save_tensors` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or of another kind.
    """
    try:
        metadata, tensors = read_safetensors(path, needed_for=f"reading {kind}")
    except ValueError as error:
        raise ValueError(f"{path} is not a readable file of {kind!r}: {error}") from error
    if metadata.get("format") != kind:
        raise ValueError(f"{path} is not a file of {kind!r}: its format is {metadata.get('format')!r}")
    return json.loads(metadata["record"]), tensors


def write_record(record: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a JSON-safe ``record`` and its checksum to ``path``, which is replaced where it exists."""
    plain = json.loads(json.dumps(record, allow_nan=False))
    text = json.dumps({**plain, _CHECKSUM: _record_checksum(plain)}, indent=1, allow_nan=False)
    with replacing(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record that :func:`write_record` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, or has no checksum; the message names it.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} is damaged: a record, not a {type(record).__name__}, should be there")
    found = record.pop(_CHECKSUM, None)
    _compare(found, _record_checksum(record), path)
    return record


def _compare(found: Any, expected: str, path: str | os.PathLike[str]) -> None:
    if found is None:
        raise ValueError(f"{path} has no checksum: it is damaged or was written by an earlier version")
    if found != expected:
        raise ValueError(f"{path} is damaged: its content does not have the checksum that was written with it")


def _tensor_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _record_checksum(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()
