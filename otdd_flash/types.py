"""The types that travel between the parts, and the legend of symbols.

Symbols: ``n, m`` points; ``d`` features; ``c`` classes; ``k`` width of the dot-product form; ``x, y`` points;
``a, b`` weights; ``f, g`` potentials (unshifted: ``P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps)``); ``epsilon`` in
units of the cost; ``plan`` for P; ``table`` for W, the squared class-to-class Wasserstein distances.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_device, check_text, check_type, check_visible
from otdd_flash.torch_mode import plain_torch_methods


class Potentials(NamedTuple):
    """Dual potentials of one problem, unshifted, in units of the cost, float64."""

    f: Tensor  # (n,)
    g: Tensor  # (m,)


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class LabeledDataset:
    """A weighted labelled point cloud: what every distance, flow and selection works on.

    Invariants, kept by :func:`otdd_flash.from_arrays` and by :meth:`subset`: all features are finite, class ids are
    ``0..c-1`` with at least one sample each, weights are positive and sum to one.

    Args:
        x: ``(n, d)`` float features.
        y: ``(n,)`` int64 class ids.
        class_names: ``c`` names; the distance never depends on them.
        weights: ``(n,)`` float64, or ``None`` for uniform.
        ids: ``(n,)`` int64 positions in the original source.
        name: for messages and results.
        levels: ``255`` when every feature is an integer multiple of ``1/255`` (8-bit images), else ``None``.
        image_shape: ``(h, w)`` or ``(c, h, w)`` where a row is a flattened picture.
        dropped: rows left out on the way in (unlabelled, zero weight), by reason.
        notes: remarks on what was done to the data.
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    weights: Tensor | None = None
    ids: Tensor | None = None
    name: str = "arrays"
    levels: int | None = None
    image_shape: tuple[int, ...] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "weights", "ids"):
            value = getattr(self, name)
            check_type(name, value, Tensor, "use otdd_flash.from_arrays(X, y)", optional=name in ("weights", "ids"))
            if value is not None and (value.layout != torch.strided or value.is_quantized or value.is_complex()):
                raise TypeError(f"{name} must be a dense tensor of real numbers: use otdd_flash.from_arrays(X, y)")
        n = self.x.shape[:1]
        if self.x.dim() != 2 or not self.x.is_floating_point():
            raise ValueError(f"x must be (n, d) floats, got {tuple(self.x.shape)} of {self.x.dtype}")
        if self.y.shape != n or self.y.dtype != torch.int64:
            raise ValueError(f"y must be ({n[0]},) int64, got {tuple(self.y.shape)} of {self.y.dtype}")
        for name in ("weights", "ids"):
            value = getattr(self, name)
            if value is not None and value.shape != n:
                raise ValueError(f"{name} must be ({n[0]},), one a row of x, got {tuple(value.shape)}")
        if self.weights is not None and self.weights.dtype != torch.float64:
            raise ValueError(f"weights must be ({n[0]},) float64, got {self.weights.dtype}: use otdd_flash.from_arrays")
        for name in ("class_names", "notes"):
            check_type(name, getattr(self, name), tuple)
        check_type("image_shape", self.image_shape, tuple, optional=True)
        check_type("dropped", self.dropped, dict)
        check_text("name", self.name)
        check_count("levels", self.levels, optional=True)

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.x.shape[0]

    @property
    def d(self) -> int:
        """Number of features."""
        return self.x.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes, each with at least one sample."""
        return len(self.class_names)

    @property
    def class_counts(self) -> Tensor:
        """``(c,)`` int64 samples per class."""
        return torch.bincount(self.y, minlength=self.num_classes)

    @cached_property
    def normalised_weights(self) -> Tensor:
        """``(n,)`` float64 weights that sum to one, on the features' device."""
        if self.weights is None:
            return torch.full((self.n,), 1.0 / self.n, dtype=torch.float64, device=self.x.device)
        return self.weights

    @cached_property
    def fingerprint(self) -> str:
        """Content key of 32 hex digits over features, labels and weights (not over names, ids or device)."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((tuple(self.x.shape), str(self.x.dtype), self.num_classes)).encode())
        for tensor in (self.x, self.y, self.weights):
            if tensor is not None:
                digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> LabeledDataset:
        """The same data on ``device``."""
        if device is None:
            raise TypeError("device must be a string such as 'cpu' or 'cuda:1', got None")
        check_device("device", device)
        check_visible("device", device)
        held = {name: getattr(self, name) for name in ("x", "y", "weights", "ids")}
        moved: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in held.items()}
        return replace(self, **moved)

    def subset(self, index: Tensor | Sequence[int]) -> LabeledDataset:
        """The rows ``index``; classes left without a sample are dropped and ids renumbered, names kept with them.

        Args:
            index: row numbers, or a mask of ``n`` booleans.

        Raises:
            ValueError: row numbers that are no integers or not there, a mask of another length, or no row at all.
        """
        index = self._rows(index)
        kept, y = torch.unique(self.y[index], return_inverse=True)
        weights = None if self.weights is None else self.weights[index] / self.weights[index].sum()
        return replace(
            self,
            x=self.x[index],
            y=y,
            class_names=tuple(self.class_names[i] for i in kept.tolist()),
            weights=weights,
            ids=index if self.ids is None else self.ids[index],
        )

    def _rows(self, index: Tensor | Sequence[int]) -> Tensor:
        """Checked row numbers, int64 on the features' device."""
        rows = torch.as_tensor(index, device=self.x.device)
        if rows.dtype == torch.bool:
            if tuple(rows.shape) != (self.n,):
                raise ValueError(f"a mask of rows must have shape ({self.n},), got {tuple(rows.shape)}")
            rows = rows.nonzero()[:, 0]
        if rows.dim() != 1 or len(rows) == 0:
            raise ValueError(f"index must name at least one of the {self.n} rows, got shape {tuple(rows.shape)}")
        if rows.is_floating_point() or rows.is_complex():
            raise ValueError(f"index must hold row numbers or a mask of booleans, got {rows.dtype}")
        rows = rows.to(torch.int64)
        low, high = int(rows.min()), int(rows.max())
        if low < -self.n or high >= self.n:
            raise ValueError(f"index names row {low if low < -self.n else high}, but there are {self.n} rows")
        return rows

    def __repr__(self) -> str:
        return f"LabeledDataset({self.name!r}, n={self.n}, d={self.d}, classes={self.num_classes})"


def notes_of(*sides: LabeledDataset) -> tuple[str, ...]:
    """The notes of all sides, each with the name of its set; two parts of one set say the same things of it once."""
    return tuple(dict.fromkeys(f"{side.name}: {note}" for side in sides for note in side.notes))
