"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant ones, thousands apart, powers of ten where it is very large or small.

    >>> number(218.04321), number(12345.6), number(0.00001234), number(None), number(60000)
    ('218', '12,346', '1.234e-05', '–', '60,000')
    """
    if value is None or not math.isfinite(value):
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 10**digits:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}" if 10**digits <= size < 1e9 else f"{value:.{digits - 1}e}"


def share(value: float | None) -> str:
    """Per cent; a little is not nothing.

    >>> share(0.534), share(0.002), share(0.0)
    ('53%', '<1%', '0%')
    """
    if value is None or not math.isfinite(value):
        return NONE
    return "<1%" if 0 < value < 0.005 else f"{100 * value:.0f}%"


def seconds(clock: dict[str, float]) -> str:
    """Wall times by what they were spent on."""
    return ", ".join(f"{part} {time:.{2 if time < 10 else 1}f} s" for part, time in clock.items())


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def plain(value: Any) -> str:
    """A parameter: numbers as above with more digits, lists in brackets, nothing as a dash.

    >>> plain(None), plain(True), plain([28, 28]), plain(0.01)
    ('–', 'yes', '[28, 28]', '0.01')
    """
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value, 6)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)


def flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested parameters as dotted names and texts.

    >>> flat({"solver": {"tol": 0.001}, "seed": 0})
    [('solver.tol', '0.001'), ('seed', '0')]
    """
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        rows += (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [(f"{prefix}{key}", plain(value))]
        )
    return rows
