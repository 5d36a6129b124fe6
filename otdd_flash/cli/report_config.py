"""Config of the task report; see :mod:`otdd_flash.cli.config` for the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otdd_flash.cli.config import DistanceConfig


@dataclass
class PageConfig:
    """What the page holds and where it goes."""

    file: str | None = None
    """Of the page, from the current folder; null for report.html in the run's own folder."""
    title: str | None = None
    """null for what is compared."""
    values: bool = True
    """Sample values of source: two more solves."""
    values_epsilon: float = 0.03
    """Regularisation of the values, as a fraction of the mean cost."""
    top: int = 12
    """Samples shown of each end of the values."""
    bootstrap: int | None = None
    """Half-sample replicates behind the interval, 0 for none; null is 40 where no side has over 2,000 samples."""
    level: float = 0.95
    """Of the interval."""


@dataclass
class ReportConfig(DistanceConfig):
    """``otdd report``."""

    report: PageConfig = field(default_factory=PageConfig)
    sets: list[Any] = field(default_factory=list)
    """Further data sets for a map together with source and target, as in otdd matrix."""
    saved: Any = None
    """Folder or JSON file of an earlier run, or a list of them: the page shows those and nothing is computed."""
