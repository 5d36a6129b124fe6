"""Weighted class samples and their moments: what every label distance is computed from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.labels.triangles import triangles
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset

_BLOCK_ELEMENTS = 1 << 22  # 32 MiB of float64 rows at a time
_PIECE_ELEMENTS = 1 << 20  # 8 MiB where several copies of the rows are at work


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class ClassSample:
    """One class of a data set: rows ``index`` of ``x``, with weights that sum to one within the class.

    Moments are those of the weighted sample itself (population covariance): one sample is a Dirac of covariance zero.
    All of them are float64 and computed on first use.

    Args:
        x: ``(n, d)`` features of the whole data set; never copied as a whole.
        index: ``(n_c,)`` rows of the class.
        weights: ``(n_c,)`` float64.
        name: of data set and class, for messages.
        present: the class has mass in its data set; one without is weighted uniformly and has no part in averages.
    """

    x: Tensor
    index: Tensor
    weights: Tensor
    name: str
    present: bool = True

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.index.shape[0]

    @property
    def points(self) -> Tensor:
        """``(n_c, d)`` features, gathered anew."""
        return self.x[self.index]

    @cached_property
    def mean(self) -> Tensor:
        """``(d,)`` weighted mean."""
        out = torch.zeros(self.x.shape[1], dtype=torch.float64, device=self.x.device)
        for rows, weights in self._blocks():
            out += weights @ rows
        return out

    @cached_property
    def variance(self) -> Tensor:
        """``(d,)`` weighted population variance of each feature, from centred rows."""
        out = torch.zeros_like(self.mean)
        for rows, weights in self._blocks():
            out += weights @ (rows - self.mean).square()
        return out

    @cached_property
    def factor(self) -> Tensor:
        """``(r, d)`` factor ``F`` of the covariance ``S = F^T F``, with ``r = min(n_c, features that vary)``.

        Few samples: the centred rows times ``sqrt(w)`` themselves. Many: the triangle of their QR decomposition, block
        by block, which unlike a square root of ``S`` never squares the data and so keeps every digit. On a GPU, where
        such a decomposition is slow, the Cholesky factor of ``S``, see :func:`~otdd_flash.labels.triangles.triangles`.
        """
        mask = self._varying_features()
        varies = mask.nonzero()[:, 0]
        if self.x.device.type != "cpu" and self.n > len(varies):
            return self._triangle(mask)
        triangle = torch.zeros(0, len(varies), dtype=torch.float64, device=self.x.device)
        for rows, weights in self._blocks():
            centred = (rows - self.mean)[:, varies] * weights.sqrt()[:, None]
            triangle = torch.cat([triangle, centred])
            if triangle.shape[0] > len(varies):
                triangle = torch.linalg.qr(triangle, mode="r").R
        out = torch.zeros(triangle.shape[0], self.x.shape[1], dtype=torch.float64, device=self.x.device)
        out[:, varies] = triangle
        return out

    @cached_property
    def trace(self) -> Tensor:
        """Of the covariance."""
        return self.factor.square().sum()

    def _triangle(self, varies: Tensor) -> Tensor:
        """``(r, d)`` factor from the covariance of the features that vary."""
        covariance = torch.zeros(self.x.shape[1], self.x.shape[1], dtype=torch.float64, device=self.x.device)
        for rows, weights in self._blocks():
            centred = (rows - self.mean) * weights.sqrt()[:, None] * varies
            covariance += centred.T @ centred
        return triangles(covariance[None], varies[None])[0]

    def _varying_features(self) -> Tensor:
        """``(d,)`` which features are not one constant over the class."""
        first = self.x[self.index[0]]
        varies = torch.zeros(self.x.shape[1], dtype=torch.bool, device=self.x.device)
        for index in self.index.split(self._rows_per_block):
            varies |= (self.x[index] != first).any(0)
        return varies

    @property
    def _rows_per_block(self) -> int:
        width = max(self.x.shape[1], 1)
        return max(_BLOCK_ELEMENTS // width, 2 * width)  # fewer rows would make the block-wise QR wasteful

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions of the rows in ``x`` and their weights, a few at a time: float64 copies stay small."""
        rows = max(1, _PIECE_ELEMENTS // max(self.x.shape[1], 1))
        return zip(self.index.split(rows), self.weights.split(rows), strict=True)

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Float64 rows and their weights, block by block."""
        size = self._rows_per_block
        for index, weights in zip(self.index.split(size), self.weights.split(size), strict=True):
            yield self.x[index].to(torch.float64), weights


@plain_torch
def class_samples(dataset: LabeledDataset) -> list[ClassSample]:
    """The classes of ``dataset`` in the order of their ids."""
    order = torch.argsort(dataset.y, stable=True)
    groups = order.split(dataset.class_counts.tolist())
    held = [dataset.normalised_weights[index] for index in groups]
    masses = torch.stack([weights.sum() for weights in held])
    x = dataset.x.detach()
    return [
        ClassSample(x, index, weights / mass if mass else torch.full_like(weights, 1 / len(index)), name, mass > 0)
        for index, weights, mass, name in zip(
            groups, held, masses.tolist(), (f"{dataset.name}/{name}" for name in dataset.class_names), strict=True
        )
    ]


def with_mass(classes: Sequence[ClassSample]) -> tuple[ClassSample, ...]:
    """The classes that have mass in their data sets."""
    if isinstance(classes, tuple) and all(sample.present for sample in classes):
        return classes  # the very same, which is held once in a batch
    return tuple(sample for sample in classes if sample.present)


def stacked(groups: Sequence[Sequence[ClassSample]]) -> tuple[list[ClassSample], list[int]]:
    """The classes of all groups one after the other, a repeated group once; and where each group begins."""
    classes: list[ClassSample] = []
    begin: dict[int, int] = {}
    for group in groups:
        if id(group) not in begin:
            begin[id(group)] = len(classes)
            classes += group
    return classes, [begin[id(group)] for group in groups]


def distinct_classes(classes: Sequence[ClassSample]) -> tuple[list[ClassSample], list[int]]:
    """Classes without repetition, and where each one stands among them; one with mass stands for one without."""
    distinct: list[ClassSample] = []
    position = []
    alike: dict[tuple[int, int], list[int]] = {}
    for sample, key in zip(classes, _keys(classes), strict=True):
        candidates = alike.setdefault(key, [])
        match = next((k for k in candidates if _same(sample, distinct[k])), len(distinct))
        if match == len(distinct):
            candidates.append(match)
            distinct.append(sample)
        elif sample.present and not distinct[match].present:
            distinct[match] = sample
        position.append(match)
    return distinct, position


def _keys(classes: Sequence[ClassSample]) -> list[tuple[int, int]]:
    """Size and hash of the first row of each class: the same for equal classes, seldom for others.

    The host reads all hashes at once.
    """
    hashes: list[Tensor] = []
    for _, group in itertools.groupby(classes, key=lambda sample: id(sample.x)):
        samples = list(group)
        x, rows = samples[0].x, torch.stack([sample.index[0] for sample in samples])
        factors = 2 * torch.arange(x.shape[1], device=x.device) + 1
        for part in rows.split(max(1, _BLOCK_ELEMENTS // max(x.shape[1], 1))):
            bits = (x[part].to(torch.float64) + 0.0).view(torch.int64)  # -0.0 equals 0.0 and must hash like it
            hashes.append((bits * factors).sum(1))  # integers wrap: one value whatever the order of the sum
    return list(zip((sample.n for sample in classes), torch.cat(hashes).tolist(), strict=True))


def _same(p: ClassSample, q: ClassSample) -> bool:
    """Whether two classes hold the same weighted points in the same order."""
    if p.n != q.n or not torch.equal(p.x[p.index[0]], q.x[q.index[0]]):
        return False
    return torch.equal(p.weights, q.weights) and torch.equal(p.points, q.points)


def check_pair(source: LabeledDataset, target: LabeledDataset) -> None:
    """Refuse a pair of data sets whose features cannot be compared.

    Raises:
        ValueError: different feature widths, or different devices.
    """
    if source.d != target.d:
        raise ValueError(
            f"the data sets have different feature widths: {source.name!r} has {source.d} and {target.name!r} has "
            f"{target.d}; bring both into one space first, with one embedder shared by both sides, with a projection "
            "(PCA) to a common width, or for images with a resize to one shape"
        )
    if source.x.device != target.x.device:
        raise ValueError(
            f"the data sets live on different devices: {source.name!r} on {source.x.device} and {target.name!r} on "
            f"{target.x.device}; move one with .to(device)"
        )
