"""How results leave the command line: a two-column table or JSON on stdout, files in the run's folder."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from otdd_flash.cli.config import OutputConfig
from otdd_flash.cli.streams import write_stdout
from otdd_flash.cli.tasks import Job

Row = tuple[str, str]

log = logging.getLogger("otdd")

FORMATS = ("table", "json")


class SampleTable(Protocol):
    """What has a table of samples: values, a selection."""

    def write(self, path: Path) -> Path:
        """Write the table in the form that the ending says."""


@dataclass
class Finished:
    """What a task found, and how it is kept and shown.

    Args:
        record: of plain types, for the JSON file and for ``output=json``.
        title: the head of the table.
        rows: of the table.
        file: name of the JSON file.
        files: what else is kept: writers of a path, by file name.
        figures: the same for what is drawn, which is done last.
    """

    record: dict[str, Any]
    title: str
    rows: Sequence[Row]
    file: str = "result.json"
    files: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    figures: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)


def deliver(found: Finished, output: OutputConfig, job: Job) -> None:
    """Write the files of a finished task, print it, then draw its figures: no failure loses what came before it.

    Raises:
        OSError: files that could not be written, or stdout; after all else was done.
    """
    lost: list[str] = []
    if output.files:
        writers = {found.file: lambda path: write_json(found.record, path), **found.files}
        lost = [error for name, write in writers.items() if (error := _failure(write, job.folder / name))]
    rows = [*found.rows, *([("files", str(job.folder))] if output.files else [])]
    emit(found.record, found.title, rows, fmt=output.format, one_line=job.multirun)
    for name, draw in found.figures.items() if output.files else ():
        if error := _failure(draw, job.folder / name):
            log.warning("a figure is missing: %s", error)
    if lost:
        raise OSError(
            f"the result is on stdout, but {len(lost)} of its files could not be written: {'; '.join(lost)}; free or "
            "name a place with hydra.run.dir=FOLDER"
        )


def _failure(write: Callable[[Path], object], path: Path) -> str | None:
    """What went wrong in writing ``path``, if anything."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except Exception as error:  # whatever a library makes of a full disk or a font
        return f"{path}: {getattr(error, 'strerror', None) or error or type(error).__name__}"
    return None


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
    write_stdout(text + "\n")


def write_json(record: dict[str, Any], path: Path) -> None:
    """Write ``record`` to ``path`` so that a reader never sees half of it."""
    from otdd_flash.tensor_files import replacing

    with replacing(path) as partial:
        partial.write_text(to_json(record) + "\n", encoding="utf-8")


def table_files(found: SampleTable, name: str) -> dict[str, Callable[[Path], object]]:
    """Writers of a table of samples: ``name.jsonl``, and ``name.parquet`` where pyarrow is installed."""
    endings = (".jsonl", ".parquet") if importlib.util.find_spec("pyarrow") else (".jsonl",)
    return {name + ending: found.write for ending in endings}


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
