"""Labelled texts: they become a data set through an embedder, and say so where numbers are asked of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset


class Texts(list[str]):
    """Texts fetched from a source, told apart from lists of numbers."""


class Unembedded:
    """What labelled samples have that are no numbers yet: all of a :class:`LabeledDataset` but its features."""

    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None
    ids: Tensor | None
    name: str
    dropped: dict[str, int]
    notes: tuple[str, ...]

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

    def with_features(self, x: Tensor, note: str | None = None) -> LabeledDataset:
        """The labelled data set whose row i is ``x[i]``, an embedding of sample i.

        Raises:
            ValueError: another number of rows than samples.
        """
        if x.ndim != 2 or len(x) != self.n:
            raise ValueError(f"features must be ({self.n}, d), one row a sample, got shape {tuple(x.shape)}")
        device = x.device
        return LabeledDataset(
            x=x,
            class_names=self.class_names,
            name=self.name,
            dropped=self.dropped,
            notes=(*self.notes, note) if note else self.notes,
            y=self.y.to(device),
            weights=None if self.weights is None else self.weights.to(device),
            ids=None if self.ids is None else self.ids.to(device),
        )


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class TextDataset(Unembedded):
    """Labelled texts, with the fields of :class:`LabeledDataset` except for features.

    Args:
        texts: ``n`` strings.
        y: ``(n,)`` int64 class ids.
        class_names: ``c`` names.
        weights: ``(n,)`` float64 that sum to one, or ``None`` for uniform.
        ids: ``(n,)`` int64 positions in the original source.
        name: for messages and results.
        dropped: rows left out on the way in, by reason.
        notes: remarks on what was done to the data.
    """

    texts: tuple[str, ...]
    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None = None
    ids: Tensor | None = None
    name: str = "texts"
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def x(self) -> NoReturn:
        """Texts have no features.

        Raises:
            ValueError: always, with the way out.
        """
        raise ValueError(
            f"{self.name} holds texts, which have no distance before an embedder made them vectors: apply "
            "otdd_flash.data.features.Features(embedder='sentence-transformers:<model>') to both sets first"
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

    def subset(self, index: Tensor | Sequence[int]) -> TextDataset:
        """The texts ``index``; classes left without a sample are dropped and ids renumbered."""
        index = torch.as_tensor(index, dtype=torch.int64)
        kept, y = torch.unique(self.y[index], return_inverse=True)
        return replace(
            self,
            texts=tuple(self.texts[i] for i in index.tolist()),
            y=y,
            class_names=tuple(self.class_names[i] for i in kept.tolist()),
            weights=None if self.weights is None else self.weights[index] / self.weights[index].sum(),
            ids=index if self.ids is None else self.ids[index],
        )

    def __repr__(self) -> str:
        return f"TextDataset({self.name!r}, n={self.n}, classes={self.num_classes})"
