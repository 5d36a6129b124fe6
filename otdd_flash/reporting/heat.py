"""Heat maps for a page: a table with numbers while it can be read, a picture with folded numbers beyond."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.palette import COLOURS, LEVELS, Theme
from otdd_flash.reporting.blocks import Folded, HeatCell, HeatPicture, HeatTable
from otdd_flash.reporting.numbers import number
from otdd_flash.reporting.pictures import palette_picture

READABLE = 24  # entries a side up to which the numbers are shown in the map itself
_MOST_CELLS = 120 * 120  # beyond, a table of numbers would make the page heavy
_WIDEST, _LARGEST_SIDE, _LABEL = 1600, 11.0, 10.0  # units of a picture, of an entry of it, of a line of text
_LONGEST, _LETTER = 26, 5.6  # characters of a label in a picture, units of one


@dataclass(frozen=True)
class Scale:
    """What the colours of a map mean.

    Args:
        low: number of the first level.
        high: number of the last.
        form: numbers as text.
    """

    low: float
    high: float
    form: Callable[[float], str] = number

    @classmethod
    def of(cls, numbers: Tensor) -> Scale:
        """From the least to the largest finite number; from zero where they are all alike."""
        known = numbers[numbers.isfinite()]
        low, high = (float(known.min()), float(known.max())) if known.numel() else (0.0, 1.0)
        return cls(low, high) if high > low else cls(0.0, high if high > 0 else 1.0)

    @classmethod
    def apart(cls, table: Tensor) -> Scale:
        """Of a square table's entries off the diagonal."""
        return cls.of(table[~torch.eye(len(table), dtype=torch.bool)])

    def levels(self, table: Tensor) -> Tensor:
        """Level of each entry; -1 where there is no number."""
        place = (table - self.low) / (self.high - self.low) * len(LEVELS["light"])
        found = place.nan_to_num(0.0).floor().clamp(0, len(LEVELS["light"]) - 1).to(torch.int64)
        return torch.where(table.isfinite(), found, -1)

    @property
    def legend(self) -> tuple[str, str]:
        """Both ends in words."""
        return self.form(self.low), self.form(self.high)


def heat_map(
    table: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    scale: Scale,
    *,
    caption: str,
    corner: str,
    estimated: Tensor | None = None,
) -> list[HeatTable | HeatPicture | Folded]:
    """Blocks that show ``table``.

    Args:
        table: ``(r, c)``, NaN where there is no number.
        rows: ``r`` names.
        columns: ``c`` names.
        scale: of the colours.
        caption: what the numbers are.
        corner: what rows and columns are.
        estimated: ``(r, c)`` bool, numbers to be marked as rough.
    """
    numbers = torch.as_tensor(table).detach().double().cpu()
    levels = scale.levels(numbers)
    readable = max(numbers.shape) <= READABLE
    if not readable and numbers.numel() > _MOST_CELLS:
        return [_picture(levels, rows, columns, scale, caption=caption, corner=corner)]
    rough = torch.zeros_like(levels, dtype=torch.bool) if estimated is None else estimated
    cells = [
        [
            HeatCell(f"{'≈' if marked else ''}{scale.form(value)}", None if level < 0 else level)
            for value, level, marked in zip(*row, strict=True)
        ]
        for row in zip(numbers.tolist(), levels.tolist(), rough.tolist(), strict=True)
    ]
    shown = HeatTable(caption if readable else "", corner, rows, columns, cells, scale.legend)
    if readable:
        return [shown]
    return [_picture(levels, rows, columns, scale, caption=caption, corner=corner), Folded("All numbers", [shown])]


def _picture(
    levels: Tensor, rows: Sequence[str], columns: Sequence[str], scale: Scale, *, caption: str, corner: str
) -> HeatPicture:
    """Levels as pixels."""
    side = max(1.0, min(_LARGEST_SIDE, _WIDEST / max(levels.shape)))
    themes: tuple[Theme, ...] = ("light", "dark")
    pictures = {theme: palette_picture(levels + 1, (COLOURS[theme]["gap"], *LEVELS[theme])) for theme in themes}
    every = math.ceil(_LABEL / side)
    down, across = _labels(rows, every), _labels(columns, every)
    left, top = (round(_LETTER * max(len(name) for _, name in shown)) + 10 for shown in (down, across))
    return HeatPicture(
        caption=caption, corner=corner, rows=down, columns=across, shape=(len(rows), len(columns)), side=side,
        margins=(left, top), pictures=pictures, legend=scale.legend,
    )  # fmt: skip


def _labels(names: Sequence[str], every: int) -> list[tuple[int, str]]:
    """Positions and names that fit beside a picture."""
    return [
        (i, name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…") for i, name in enumerate(names)
    ][::every]  # fmt: skip
