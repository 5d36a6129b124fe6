"""What the exit code of ``otdd`` means, and which error leads to which."""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum

from otdd_flash.errors import DistributionShiftError, NotConvergedError


class ExitCode(IntEnum):
    """Exit codes of the console command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    EXCEEDED = 3
    NOT_CONVERGED = 4
    INTERRUPTED = 130


class UsageError(ValueError):
    """An argument that cannot be understood; the message names it and what to write instead."""


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that ``error`` stands for."""
    if isinstance(error, NotConvergedError):
        return ExitCode.NOT_CONVERGED
    if isinstance(error, DistributionShiftError):
        return ExitCode.EXCEEDED
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    # Everything that Hydra and OmegaConf raise is about the command line or a config file.
    if any(base.__module__.split(".")[0] in ("hydra", "omegaconf") for base in type(error).__mro__):
        return ExitCode.USAGE
    return ExitCode.ERROR


def report(program: str, error: BaseException, *, full: bool = False) -> ExitCode:
    """Say on stderr what went wrong, in one line (after the traceback if ``full``), and return the exit code."""
    code = exit_code(error)
    if full:
        traceback.print_exception(error)
    message = " ".join(_text(error).split())
    hint = f" (see '{program} --help')" if code == ExitCode.USAGE else ""
    # drift is what was asked for, not something that went wrong
    kind = "" if code == ExitCode.EXCEEDED else "error: "
    sys.stderr.write(f"{program}: {kind}{message}{hint}\n")
    return code


def wants_traceback() -> bool:
    """Whether the user asked for full tracebacks: ``OTDD_TRACEBACK=1``, or Hydra's ``HYDRA_FULL_ERROR=1``."""
    return any(os.environ.get(name) == "1" for name in ("OTDD_TRACEBACK", "HYDRA_FULL_ERROR"))


def _text(error: BaseException) -> str:
    """The message; with the class name before it where the error is not one that this library words itself."""
    code, message = exit_code(error), str(error)
    if code == ExitCode.INTERRUPTED:
        return f"interrupted: {message}" if message else "interrupted"
    if code == ExitCode.USAGE and not isinstance(error, UsageError):
        return _config_text(message, error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if message and isinstance(error, (ValueError, RuntimeError, OSError, ImportError, DistributionShiftError)):
        return message
    if isinstance(error, TypeError) and " must be " in message and "got " in message:
        return message
    return f"{type(error).__name__}: {message}"


def _config_text(message: str, error: BaseException) -> str:
    """What is wrong with a config: Hydra's first words and their cause, without its search path and link."""
    if error.__cause__ is not None:
        texts = (message, str(error.__cause__))
        return ": ".join(text.strip().splitlines()[0].rstrip(".") for text in texts if text.strip())
    key = getattr(error, "full_key", None)
    text = message.split("Config search path:")[0].split("See https:")[0].split("\n    full_key:")[0]
    return f"{key}: {text}" if key else text
