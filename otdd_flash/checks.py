"""Checks of arguments that several dataclasses share; each names the argument, what was got and what would do."""

from __future__ import annotations

import math
from typing import Any


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


def _is_real(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, (str, bytes, complex))
