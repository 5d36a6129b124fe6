"""The colours of figures and pages, light and dark: readable in both, and one hue, so that any eye can order them.

Text stands on its ground with a contrast of at least 4.5 and lines with at least 3 (WCAG 2.1, 1.4.3 and 1.4.11); a test
computes it.
"""

from __future__ import annotations

from typing import Literal

Theme = Literal["light", "dark"]

COLOURS: dict[Theme, dict[str, str]] = {
    "light": {
        "ink": "#1f2328", "soft": "#57606a", "muted": "#8a9099", "ground": "#ffffff", "raised": "#f5f7f9",
        "accent": "#1f5fa8", "gap": "#e8eaed", "alarm": "#8a1c12", "alarm-ground": "#fdecea",
    },
    "dark": {
        "ink": "#e6e8eb", "soft": "#a7afb9", "muted": "#7d858f", "ground": "#15181c", "raised": "#1d2127",
        "accent": "#7fb3e8", "gap": "#2a2f36", "alarm": "#ffb9ae", "alarm-ground": "#43191a",
    },
}  # fmt: skip

# From little to much: away from the ground in both themes.
LEVELS: dict[Theme, tuple[str, ...]] = {
    "light": (
        "#f3f8fd", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b",
    ),
    "dark": (
        "#1b2430", "#18324c", "#15426c", "#1c568e", "#2969aa", "#4c8fcd", "#78addf", "#a6caee", "#d5e7fa",
    ),
}  # fmt: skip

_DARK_INK, _LIGHT_INK = "#0d1117", "#ffffff"


def ink_on(colour: str) -> str:
    """Dark or light ink, whichever reads better on ``#rrggbb``."""
    return max((_DARK_INK, _LIGHT_INK), key=lambda ink: contrast(ink, colour))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours ``#rrggbb``, from 1 to 21 (WCAG 2.1)."""
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, from 0 to 1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
