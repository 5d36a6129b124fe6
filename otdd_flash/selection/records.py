"""Tables of samples as files: Parquet for machines, JSON lines for everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from otdd_flash.checks import check_path
from otdd_flash.errors import optional_import
from otdd_flash.tensor_files import replacing

SUFFIXES = (".parquet", ".jsonl")


def write_columns(columns: dict[str, list[Any]], path: str | os.PathLike[str]) -> Path:
    """Write equally long columns to ``path``; the file appears whole or not at all.

    Args:
        columns: values of JSON's own types by name.
        path: its suffix decides the form, ``.parquet`` or ``.jsonl`` (one object a line).

    Returns:
        The path written.

    Raises:
        ValueError: another suffix, or columns of different length.
        MissingDependencyError: Parquet without pyarrow.
    """
    check_path("path", path)
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end in {' or '.join(SUFFIXES)}, got {path.name!r}")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns differ in length: {lengths}")
    with replacing(path) as unfinished:
        if path.suffix == ".parquet":
            _write_parquet(columns, unfinished)
        else:
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            unfinished.write_text(text, encoding="utf-8")
    return path


def _write_parquet(columns: dict[str, list[Any]], path: Path) -> None:
    optional_import("pyarrow", needed_for="writing Parquet", extra="report")
    library = optional_import("pyarrow.parquet", needed_for="writing Parquet", extra="report")
    arrow = optional_import("pyarrow", needed_for="writing Parquet", extra="report")
    library.write_table(arrow.table(columns), path)
