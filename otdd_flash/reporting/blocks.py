"""What a page is made of: plain records, each shown by the template macro that its ``kind`` names.

All text is as hostile as the names of classes and sets: it is escaped by the template. Only :class:`Figure` carries
markup, which this package made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from otdd_flash.palette import Theme


@dataclass(frozen=True)
class Cell:
    """A table cell with a bar behind or below its text.

    Args:
        text: of the cell.
        span: start and end of the bar, as shares of the cell's width.
        mark: place of a mark on the bar, likewise.
    """

    text: str
    span: tuple[float, float] | None = None
    mark: float | None = None


@dataclass(frozen=True)
class Headline:
    """The number: what it is, its digits, and lines below it."""

    kind: ClassVar[str] = "headline"
    label: str
    value: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """One line that says whether a number may be used."""

    kind: ClassVar[str] = "verdict"
    good: bool
    text: str


@dataclass(frozen=True)
class Facts:
    """Pairs of name and value."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Notes:
    """A list of remarks."""

    kind: ClassVar[str] = "notes"
    rows: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of text or :class:`Cell`; the first column names the row."""

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""


@dataclass(frozen=True)
class HeatCell:
    """Text on a colour: a level of the palette, or ``None`` where there is no number."""

    text: str
    level: int | None


@dataclass(frozen=True)
class HeatTable:
    """Numbers on colours, with their legend."""

    kind: ClassVar[str] = "heat_table"
    caption: str
    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[HeatCell]]
    legend: tuple[str, str]


@dataclass(frozen=True)
class HeatPicture:
    """A large heat map as a picture in both themes, a square of ``side`` units an entry, with labels where they fit.

    ``margins`` are the room left of and above the picture, for the labels.
    """

    kind: ClassVar[str] = "heat_picture"
    caption: str
    corner: str
    rows: Sequence[tuple[int, str]]
    columns: Sequence[tuple[int, str]]
    shape: tuple[int, int]
    side: float
    margins: tuple[int, int]
    pictures: Mapping[Theme, str]
    legend: tuple[str, str]


@dataclass(frozen=True)
class Figure:
    """Markup of an inline SVG, with what it shows in words."""

    kind: ClassVar[str] = "figure"
    svg: Any
    caption: str
    width: int


@dataclass(frozen=True)
class Sample:
    """One sample of a gallery; ``picture`` is a ``data:`` address."""

    picture: str
    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Gallery:
    """Samples as pictures."""

    kind: ClassVar[str] = "gallery"
    title: str
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    anchor: str
    title: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Part:
    """What one result contributes to a page.

    Args:
        title: of the page, where it is the first part.
        sections: in order.
        alerts: what must be read before anything else: not converged, failed.
        parameters: name and value, for the last section.
        versions: by package.
    """

    title: str
    sections: Sequence[Section]
    alerts: Sequence[str] = ()
    parameters: Sequence[tuple[str, str]] = ()
    versions: dict[str, str] = field(default_factory=dict)
