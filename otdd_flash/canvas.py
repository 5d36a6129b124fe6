"""Figures that need no display: matplotlib on its Agg canvas, whatever backend the environment names."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from otdd_flash.errors import optional_import


def load_matplotlib(*, needed_for: str, extra: str = "plots") -> ModuleType:
    """matplotlib; a backend in ``MPLBACKEND`` that is not installed, such as a notebook's, does not matter.

    Args:
        needed_for: what is about to be drawn, for the message where matplotlib is absent.
        extra: the extra of otdd-flash that brings it.
    """
    try:
        return optional_import("matplotlib", needed_for=needed_for, extra=extra)
    except ValueError:  # how the import ends where the variable names no backend of this installation
        named = os.environ.pop("MPLBACKEND")
        for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            del sys.modules[module]  # what the failed import has left
        try:
            return optional_import("matplotlib", needed_for=needed_for, extra=extra)
        finally:
            os.environ["MPLBACKEND"] = named


def new_figure(width: float, height: float, *, needed_for: str, layout: str = "constrained") -> Any:
    """An empty ``matplotlib.figure.Figure`` on the Agg canvas.

    Args:
        width: in inches.
        height: in inches.
        needed_for: what is about to be drawn.
        layout: matplotlib's layout engine.
    """
    load_matplotlib(needed_for=needed_for)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure
