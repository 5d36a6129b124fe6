"""Labelled tables whose columns keep their kinds: they become a data set through the embedder ``table``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from torch import Tensor

from otdd_flash.data.text import Unembedded


@dataclass(frozen=True, eq=False)
class TableDataset(Unembedded):
    """A labelled table of numbers and categories, with the fields of :class:`LabeledDataset` except for features.

    Args:
        frame: pandas data frame of the feature columns, one sample a row.
        y: ``(n,)`` int64 class ids.
        class_names: ``c`` names.
        weights: ``(n,)`` float64 that sum to one, or ``None`` for uniform.
        ids: ``(n,)`` int64 positions in the original source.
        name: for messages and results.
        dropped: rows left out on the way in, by reason.
        notes: remarks on what was done to the data.
    """

    frame: Any
    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None = None
    ids: Tensor | None = None
    name: str = "table"
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def x(self) -> NoReturn:
        """A table has no features yet.

        Raises:
            ValueError: always, with the way out.
        """
        raise ValueError(
            f"{self.name} holds columns of several kinds, which have no distance before one transformer made them "
            "numbers on both sides: apply otdd_flash.data.features.Features(embedder='table') to both sets first"
        )

    def __repr__(self) -> str:
        return f"TableDataset({self.name!r}, n={self.n}, columns={self.frame.shape[1]}, classes={self.num_classes})"
