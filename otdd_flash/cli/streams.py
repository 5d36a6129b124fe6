"""The process's streams: any encoding, closed pipes, full disks."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def usable_streams() -> Iterator[None]:
    """Let stdout replace characters that its encoding lacks, and stand in for streams that are closed."""
    before = sys.stdout, sys.stderr
    handler = getattr(sys.stdout, "errors", None)
    replaces = handler == "strict" and hasattr(sys.stdout, "reconfigure")
    if replaces:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (to the process's end)
    try:
        yield
    finally:
        flush_stdout()
        if replaces:
            before[0].reconfigure(errors=handler)  # type: ignore[union-attr]
        sys.stdout, sys.stderr = before


def write_stdout(text: str) -> None:
    """Write to stdout at once; a reader that has gone away, as ``head`` does, is no error.

    Raises:
        OSError: stdout cannot take it.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        drop_stdout()
        if not is_closed_pipe(error):
            raise OSError(error.errno, f"cannot write the result to stdout: {error.strerror or error}") from error


def flush_stdout() -> None:
    """Flush what others, Hydra's help among them, have printed; what cannot be written is dropped."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        drop_stdout()


def is_closed_pipe(error: OSError) -> bool:
    """Whether the reader of a pipe has gone away."""
    return isinstance(error, BrokenPipeError) or error.errno in (errno.EPIPE, errno.ESHUTDOWN)


def drop_stdout() -> None:
    """Point stdout's descriptor at nothing, so that the interpreter's last flush says nothing either."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
