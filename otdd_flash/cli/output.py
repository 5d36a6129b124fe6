"""How results leave the command line: a two-column table or JSON on stdout, files in the run's folder."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

Row = tuple[str, str]

FORMATS = ("table", "json")


class SampleTable(Protocol):
    """What has a table of samples: values, a selection."""

    def write(self, path: Path) -> Path:
        """Write the table in the form that the ending says."""


def check_format(name: str) -> None:
    """Refuse an unknown ``output.format`` before any work is done."""
    if name not in FORMATS:
        raise ValueError(f"output.format must be {' or '.join(FORMATS)}, got {name!r}")


def format_table(title: str, rows: Sequence[Row]) -> str:
    """``title``, a blank line and the rows with their second column aligned; further lines of a value are indented."""
    width = max((len(name) for name, _ in rows), default=0)
    indent = "\n" + " " * (width + 2)
    lines = [f"{name:<{width}}  {value.replace(chr(10), indent)}".rstrip() for name, value in rows]
    return "\n".join([title, "", *lines])


def to_json(record: dict[str, Any], *, one_line: bool = False) -> str:
    """Strict JSON (NaN and infinities are errors) of a record of plain types."""
    return json.dumps(record, indent=None if one_line else 2, allow_nan=False)


def emit(record: dict[str, Any], title: str, rows: Sequence[Row], *, fmt: str, one_line: bool) -> None:
    """Write the result to stdout in the format asked for: the only thing that a task writes there."""
    text = to_json(record, one_line=one_line) if fmt == "json" else format_table(title, rows) + "\n"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_json(record: dict[str, Any], path: Path) -> None:
    """Write ``record`` to ``path`` so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(to_json(record) + "\n", encoding="utf-8")
    partial.replace(path)


def write_table(found: SampleTable, path: Path) -> None:
    """Write a table of samples to ``path`` with the ending .jsonl, and .parquet where pyarrow is installed."""
    found.write(path.with_suffix(".jsonl"))
    if importlib.util.find_spec("pyarrow"):
        found.write(path.with_suffix(".parquet"))


def format_bytes(count: float | None) -> str:
    """Bytes in binary units with three digits."""
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def format_seconds(seconds: float) -> str:
    """Seconds with two decimals below ten, one below a thousand."""
    return f"{seconds:.{2 if seconds < 10 else 1 if seconds < 1000 else 0}f} s"
