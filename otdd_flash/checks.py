"""Checks of arguments that several dataclasses share; each names the argument, what was got and what would do."""

from __future__ import annotations

import math
from typing import Any

import torch


def check_number(name: str, value: Any, *, low: float = 0.0, high: float = math.inf, optional: bool = False) -> None:
    """Refuse what is not a number in ``(low, high)``.

    Raises:
        TypeError: not a real number (a bool is none).
        ValueError: out of the open range, or not finite.
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not _is_real(value):
        raise TypeError(f"{name} must be a number{' or None' if optional else ''}, got {value!r}")
    if not (low < value < high and math.isfinite(value)):
        limits = f"greater than {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be finite and {limits}, got {value!r}")


def check_count(name: str, value: Any, *, optional: bool = False, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``.

    Raises:
        TypeError: not an integer.
        ValueError: too small.
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer{' or None' if optional else ''}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is not a bool: the string ``"False"`` counts as true everywhere else.

    Raises:
        TypeError: not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse what is none of the ``known`` words.

    Raises:
        ValueError: another value.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_device(name: str, value: Any) -> None:
    """Refuse what names no kind of device; ``None`` is allowed. Whether it is there, :func:`check_visible` tells.

    Raises:
        TypeError: neither a string nor a ``torch.device``.
        ValueError: no such kind of device.
    """
    if value is None:
        return
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a string such as 'cpu', 'cuda' or 'cuda:1', or None, got {value!r}")
    try:
        torch.device(value)
    except RuntimeError as error:
        raise ValueError(f"{name} must be cpu, cuda, cuda:1, ... or None, got {value!r}") from error


def check_visible(name: str, value: str | torch.device | None) -> None:
    """Refuse a CUDA device that torch does not see.

    Raises:
        ValueError: no CUDA device at all, or none of that number.
    """
    device = torch.device("cpu" if value is None else value)
    if device.type != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        seen = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        raise ValueError(f"{name}={str(value)!r} was asked for, but torch sees {seen}; leave it out, or give 'cpu'")


def _is_real(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, (str, bytes, complex))
