"""Labelled samples without features: texts and tables of mixed columns, which an embedder turns into a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from typing_extensions import Self


class Texts(list[str]):
    """Texts fetched from a source, told apart from lists of numbers."""


class Unembedded:
    """What :class:`TextDataset` and :class:`TableDataset` share: all of a :class:`LabeledDataset` but its features."""

    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None
    ids: Tensor | None
    name: str
    dropped: dict[str, int]
    notes: tuple[str, ...]
    remedy = ""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """Number of classes, each with at least one sample."""
        return len(self.class_names)

    @property
    def class_counts(self) -> Tensor:
        """``(c,)`` int64 samples per class."""
        return torch.bincount(self.y, minlength=self.num_classes)

    @property
    def x(self) -> NoReturn:
        """There are no features yet.

        Raises:
            ValueError: always; the message names the embedder to use.
        """
        raise ValueError(f"{self.name} holds {self.remedy} to both sets first")

    def with_features(self, x: Tensor, note: str | None = None) -> LabeledDataset:
        """The labelled data set whose row i is ``x[i]``, an embedding of sample i.

        Raises:
            ValueError: another number of rows than samples.
        """
        if x.ndim != 2 or len(x) != self.n:
            raise ValueError(f"features must be ({self.n}, d), one row a sample, got shape {tuple(x.shape)}")
        held = {name: getattr(self, name) for name in ("y", "weights", "ids")}
        moved: dict[str, Any] = {name: None if value is None else value.to(x.device) for name, value in held.items()}
        notes = (*self.notes, note) if note else self.notes
        return LabeledDataset(
            x=x, class_names=self.class_names, name=self.name, dropped=self.dropped, notes=notes, **moved
        )

    def subset(self, index: Tensor | Sequence[int]) -> Self:
        """The samples ``index``, row numbers or a mask, as :meth:`LabeledDataset.subset` takes them."""
        part = self.with_features(torch.arange(self.n, dtype=torch.float64)[:, None]).subset(index)
        kept: dict[str, Any] = {name: getattr(part, name) for name in ("y", "class_names", "weights", "ids")}
        return replace(self, **kept, **self._taken(part.x[:, 0].long().tolist()))  # type: ignore[type-var]

    def _taken(self, rows: list[int]) -> dict[str, Any]:
        """The field with the samples of ``rows``."""
        raise NotImplementedError


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class TextDataset(Unembedded):
    """Labelled texts; the other fields are those of :class:`LabeledDataset`.

    Args:
        texts: ``n`` strings.
    """

    texts: tuple[str, ...]
    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None = None
    ids: Tensor | None = None
    name: str = "texts"
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    remedy = (
        "texts, which have no distance before an embedder made them vectors: apply "
        "otdd_flash.data.features.Features(embedder='sentence-transformers:<model>')"
    )

    @cached_property
    def fingerprint(self) -> str:
        """Content key of 32 hex digits over texts, labels and weights."""
        digest = hashlib.blake2b(digest_size=16)
        for text in self.texts:
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in (self.y, self.weights):
            if tensor is not None:
                digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _taken(self, rows: list[int]) -> dict[str, Any]:
        return {"texts": tuple(self.texts[i] for i in rows)}

    def __repr__(self) -> str:
        return f"TextDataset({self.name!r}, n={self.n}, classes={self.num_classes})"


@dataclass(frozen=True, eq=False)
class TableDataset(Unembedded):
    """A labelled table of numbers and categories; the other fields are those of :class:`LabeledDataset`.

    Args:
        frame: pandas data frame of the feature columns, one sample a row.
    """

    frame: Any
    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None = None
    ids: Tensor | None = None
    name: str = "table"
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    remedy = (
        "columns of several kinds, which have no distance before one transformer made them numbers on both sides: "
        "apply otdd_flash.data.features.Features(embedder='table')"
    )

    def _taken(self, rows: list[int]) -> dict[str, Any]:
        return {"frame": self.frame.iloc[rows].reset_index(drop=True)}

    def __repr__(self) -> str:
        return f"TableDataset({self.name!r}, n={self.n}, columns={self.frame.shape[1]}, classes={self.num_classes})"
