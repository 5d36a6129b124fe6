"""Single items of a data set, decoded pictures above all, as one float matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.matrix import LEVELS, NOTE_16_BIT, Matrix, as_tensor, channels_first, picture_matrix, to_matrix
from otdd_flash.data.text import Texts
from otdd_flash.types import LabeledDataset

_GREY_WITH_ALPHA = ("LA", "La")
_COLOUR_WITH_ALPHA = ("RGBA", "RGBa", "PA")
_NOTE_ALPHA = "alpha dropped: pictures with an alpha channel"
_RESIZED_AT_ONCE = 4096
_MOST_PIXELS = 2**27


def stack(items: Iterable[Any], resize: Sequence[int] | None = None) -> Matrix:
    """Items as the rows of a matrix: pictures (PIL, ``(h, w)``, ``(c, h, w)``, ``(h, w, c)``) or vectors of numbers.

    A picture gives the same row whether it comes as PIL, as 8-bit array in either order of axes, or as float in [0, 1].

    Args:
        items: of one kind.
        resize: ``(h, w)`` to bring pictures to (bilinear, antialiased; 8-bit ones are rounded to 8 bit).

    Raises:
        ValueError: sizes that differ without ``resize``, or items of another kind.
    """
    items = list(items)
    if not items:
        raise ValueError("no items to stack")
    if not _is_picture(items[0]):
        return to_matrix(_stack_vectors(items))
    pictures: list[Tensor] = []
    notes: dict[str, None] = {}  # an ordered set
    for item in items:
        picture, remarks = decode(item)
        pictures.append(picture)
        notes.update(dict.fromkeys(remarks))
    if len({picture.dtype for picture in pictures}) > 1:
        pictures = [_unit(picture) for picture in pictures]
    if {len(picture) for picture in pictures} == {1, 3}:
        pictures = [picture.expand(3, -1, -1) for picture in pictures]
        notes["grey pictures among coloured ones given three equal channels"] = None
    pictures = _same_size(pictures, resize)
    return picture_matrix(torch.stack(pictures), tuple(notes))


def gather(items: Iterable[Any], resize: Sequence[int] | None = None) -> Matrix | Texts:
    """Items as a matrix, or as texts.

    Args:
        items: pictures, vectors of numbers, or strings.
        resize: ``(h, w)`` for pictures.
    """
    items = list(items)
    if all(isinstance(item, str) for item in items):
        return Texts(items)
    return stack(items, resize)


def resize_pictures(dataset: LabeledDataset, resize: Sequence[int]) -> LabeledDataset:
    """The data set with its pictures brought to ``(h, w)``, as :func:`stack` brings single ones.

    Raises:
        ValueError: a data set that holds no pictures, or another form of size.
    """
    height, width = picture_size(resize)
    shape = dataset.image_shape
    if shape is None:
        raise ValueError(f"resize is for pictures, {dataset.name} has {dataset.d} features that are none")
    if tuple(shape[-2:]) == (height, width):
        return dataset
    pictures = dataset.x.reshape(dataset.n, -1, *shape[-2:])
    grid = dataset.levels == LEVELS
    parts = []
    for part in pictures.split(_RESIZED_AT_ONCE):
        resized = _interpolate((part * LEVELS).round() if grid else part, (height, width))
        parts.append(resized.round().clamp(0, LEVELS).div(LEVELS) if grid else resized)
    note = f"pictures resized from {shape[-2]} x {shape[-1]} to {height} x {width}"
    return replace(
        dataset,
        x=torch.cat(parts).reshape(dataset.n, -1),
        image_shape=(*shape[:-2], height, width),
        notes=(*dataset.notes, note),
    )


def picture_size(resize: Any) -> tuple[int, int]:
    """``(h, w)`` as two positive integers.

    Raises:
        ValueError: anything else, or more pixels than a picture can sensibly have.
    """
    size = tuple(resize) if isinstance(resize, Sequence) and not isinstance(resize, str) else ()
    if len(size) != 2 or not all(isinstance(side, Integral) and int(side) > 0 for side in size):
        raise ValueError(f"resize must be (h, w), two positive integers, got {resize!r}")
    height, width = int(size[0]), int(size[1])
    if height * width > _MOST_PIXELS:
        raise ValueError(f"resize={resize!r} asks for {height * width} pixels a picture, at most are {_MOST_PIXELS}")
    return height, width


def decode(item: Any) -> tuple[Tensor, tuple[str, ...]]:
    """One picture as ``(c, h, w)`` without alpha, and notes on what that took."""
    if hasattr(item, "mode") and hasattr(item, "convert"):
        return _from_pil(item)
    tensor = as_tensor(item)
    if tensor.ndim not in (2, 3):
        raise ValueError(f"a picture must be (h, w), (c, h, w) or (h, w, c), got shape {tuple(tensor.shape)}")
    pictures, notes = channels_first(tensor.unsqueeze(0))
    return pictures[0], tuple(_NOTE_ALPHA for _ in notes)


def _is_picture(item: Any) -> bool:
    """Whether an item is a PIL picture or an array of two or three axes."""
    if hasattr(item, "mode") and hasattr(item, "convert"):
        return True
    if isinstance(item, list | tuple):
        return bool(item) and isinstance(item[0], list | tuple | np.ndarray)
    return getattr(item, "ndim", 0) in (2, 3)


def _stack_vectors(items: list[Any]) -> Tensor:
    """Vectors of numbers as rows."""
    if isinstance(items[0], str | bytes | dict):
        raise ValueError(
            f"features are {type(items[0]).__name__}, not numbers or pictures; text goes through an embedder "
            "(text= of from_huggingface, otdd_flash.data.features)"
        )
    if isinstance(items[0], list | tuple) and any(getattr(part, "ndim", 0) for part in items[0]):
        raise ValueError("the features of a sample are several arrays; choose one, or join them in a transform")
    rows = [as_tensor(item).reshape(-1) if np.ndim(item) == 0 else as_tensor(item) for item in items]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise ValueError(f"samples differ in shape: {sorted(shapes)[:4]}; bring them to one")
    return torch.stack(rows)


def _from_pil(image: Any) -> tuple[Tensor, tuple[str, ...]]:
    """A PIL picture of any mode: 8-bit grey or colour, or float for deeper ones."""
    mode = image.mode
    notes: tuple[str, ...] = ()
    if mode == "F":
        return torch.from_numpy(np.array(image)).unsqueeze(0), ()
    if mode == "I" or mode.startswith("I;16"):
        values = np.array(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() >= 2**16):
            raise ValueError(f"a picture of mode {mode} holds values outside 0..65535; convert it to float first")
        return torch.from_numpy(values).unsqueeze(0).float().div(2**16 - 1), (NOTE_16_BIT,)
    if mode in (*_GREY_WITH_ALPHA, *_COLOUR_WITH_ALPHA) or (mode == "P" and "transparency" in image.info):
        notes = (_NOTE_ALPHA,)
    if mode in ("1", *_GREY_WITH_ALPHA):
        image = (image.convert("LA") if mode == "La" else image).convert("L")
    elif mode not in ("L", "RGB"):
        through = image.convert("RGBA") if mode in ("P", "RGBa", "PA") else image
        image = through.convert("RGB")
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 2 else array.transpose(2, 0, 1)).reshape(-1, *array.shape[:2]), notes


def _unit(picture: Tensor) -> Tensor:
    """8-bit values as floats in [0, 1]."""
    return picture.float().div(LEVELS) if picture.dtype == torch.uint8 else picture.float()


def _same_size(pictures: list[Tensor], resize: Sequence[int] | None) -> list[Tensor]:
    """All pictures of one shape: resized when asked, else refused where they differ."""
    if resize is not None:
        size = picture_size(resize)
        pictures = [picture if tuple(picture.shape[1:]) == size else _resize(picture, size) for picture in pictures]
    shapes = [tuple(picture.shape) for picture in pictures]
    other = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise ValueError(
            f"pictures differ in size, (c, h, w) is {shapes[0]} first and {shapes[other]} in row {other} of those read"
            "; pass resize=(h, w) to bring them to one"
        )
    return pictures


def _resize(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear resizing with antialiasing; 8-bit pictures stay 8-bit."""
    resized = _interpolate(_real(picture).unsqueeze(0), size)[0]
    return resized.round().clamp(0, LEVELS).to(torch.uint8) if picture.dtype == torch.uint8 else resized


def _interpolate(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """Float pictures ``(n, c, h, w)`` at another size."""
    return torch.nn.functional.interpolate(pictures, size=size, mode="bilinear", antialias=True, align_corners=False)


def _real(picture: Tensor) -> Tensor:
    """A float version for interpolation."""
    return picture if picture.dtype in (torch.float32, torch.float64) else picture.float()
