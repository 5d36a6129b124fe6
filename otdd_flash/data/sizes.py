"""The size that pictures are brought to: stretched to it, or padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from otdd_flash.checks import check_text
from otdd_flash.data.matrix import LEVELS
from otdd_flash.types import LabeledDataset

_RESIZED_AT_ONCE = 4096
_MOST_PIXELS = 2**27


@dataclass(frozen=True)
class PictureSize:
    """The size of pictures and the way there; calling it brings pictures to it.

    Args:
        height: in pixels.
        width: in pixels.
        fit: ``stretch`` fills the size, whatever becomes of the shapes. ``pad`` puts the picture into the middle of
            zeros (black) as it is, or shrunk with its aspect ratio where it is too large. ``pad:4`` brings it, with its
            aspect ratio, to the largest size that leaves 4 pixels on all sides.
    """

    height: int
    width: int
    fit: str = "stretch"

    @classmethod
    def asked(cls, resize: Any, fit: str = "stretch") -> PictureSize | None:
        """The size of ``(h, w)``; ``None`` where none is asked for.

        Raises:
            ValueError: no two positive integers, more pixels than a picture can sensibly have, or another fit.
        """
        check_text("fit", fit)
        if resize is None:
            if fit != "stretch":
                raise ValueError(f"fit={fit!r} says how pictures are brought to a size: give the size as resize=(h, w)")
            return None
        size = tuple(resize) if isinstance(resize, Sequence) and not isinstance(resize, str) else ()
        if len(size) != 2 or not all(isinstance(side, Integral) and int(side) > 0 for side in size):
            raise ValueError(f"resize must be (h, w), two positive integers, got {resize!r}")
        height, width = int(size[0]), int(size[1])
        if height * width > _MOST_PIXELS:
            raise ValueError(
                f"resize={resize!r} asks for {height * width} pixels a picture, at most are {_MOST_PIXELS}"
            )
        way, colon, margin = fit.partition(":") if isinstance(fit, str) else ("", "", "")
        if way not in ("stretch", "pad") or (colon and (way != "pad" or not margin.isdecimal())):
            raise ValueError(f"fit must be stretch, pad or pad:<margin in pixels>, got {fit!r}")
        if colon and 2 * int(margin) >= min(height, width):
            raise ValueError(f"fit={fit!r} leaves nothing of {height} x {width} pixels; take a smaller margin")
        return cls(height, width, fit)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures ``(n, c, h, w)`` at this size; those that have it stay as they are, 8-bit ones 8-bit."""
        height, width = pictures.shape[-2:]
        if (height, width) == (self.height, self.width):
            return pictures
        inner = self._inner(height, width)
        if inner != (height, width):
            pictures = _interpolated(pictures, inner)
        rows, columns = self.height - inner[0], self.width - inner[1]
        return functional.pad(pictures, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))

    def _inner(self, height: int, width: int) -> tuple[int, int]:
        """The size of the picture itself within this one."""
        way, colon, margin = self.fit.partition(":")
        if way == "stretch":
            return self.height, self.width
        most = (self.height - 2 * int(margin or 0), self.width - 2 * int(margin or 0))
        scale = min(most[0] / height, most[1] / width)
        if not colon:
            scale = min(scale, 1.0)
        return max(1, round(height * scale)), max(1, round(width * scale))


def resize_pictures(dataset: LabeledDataset, size: PictureSize) -> LabeledDataset:
    """The data set with its pictures brought to a size, each as it would be alone.

    Raises:
        ValueError: a data set that holds no pictures.
    """
    shape = dataset.image_shape
    if shape is None:
        raise ValueError(f"resize is for pictures, {dataset.name} has {dataset.d} features that are none")
    if tuple(shape[-2:]) == (size.height, size.width):
        return dataset
    pictures = dataset.x.reshape(dataset.n, -1, *shape[-2:])
    parts = []
    for part in pictures.split(_RESIZED_AT_ONCE):
        if dataset.levels == LEVELS:
            parts.append(size((part * LEVELS).round().to(torch.uint8)).to(part.dtype).div(LEVELS))
        else:
            parts.append(size(part))
    way = "resized" if size.fit == "stretch" else f"brought by fit={size.fit}"
    note = f"pictures {way} from {shape[-2]} x {shape[-1]} to {size.height} x {size.width}"
    return replace(
        dataset,
        x=torch.cat(parts).reshape(dataset.n, -1),
        image_shape=(*shape[:-2], size.height, size.width),
        notes=(*dataset.notes, note),
    )


def _interpolated(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear with antialiasing; 8-bit pictures stay 8-bit."""
    real = pictures if pictures.dtype in (torch.float32, torch.float64) else pictures.float()
    resized = functional.interpolate(real, size=size, mode="bilinear", antialias=True, align_corners=False)
    return resized.round().clamp(0, LEVELS).to(torch.uint8) if pictures.dtype == torch.uint8 else resized
