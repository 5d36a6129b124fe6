"""Single items of a data set, decoded pictures above all, as one float matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.decoding import SampleError, decode, is_encoded, is_pil, reading_sample
from otdd_flash.data.matrix import LEVELS, Matrix, as_tensor, picture_matrix, to_matrix
from otdd_flash.data.sizes import PictureSize
from otdd_flash.data.unembedded import Texts


def stack(items: Iterable[Any], size: PictureSize | None = None) -> Matrix:
    """Items as the rows of a matrix: pictures, or vectors of numbers.

    Args:
        items: of one kind.
        size: to bring pictures to.

    Raises:
        SampleError: an item that is missing.
        ValueError: items of another kind, and what :func:`stack_pictures` raises.
    """
    items = list(items)
    if not items:
        raise ValueError("no items to stack")
    if _is_picture(next((item for item in items if item is not None), b"")):
        return stack_pictures(items, size)
    return to_matrix(_stack_vectors(items))


def stack_pictures(items: Iterable[Any], size: PictureSize | None = None) -> Matrix:
    """Pictures (encoded, PIL, arrays of two or three axes) as the rows of a matrix.

    A picture gives the same row whether it comes encoded, as PIL, as 8-bit array in either order of axes, or as float
    in [0, 1].

    Args:
        items: decoded and brought to ``size`` one at a time.
        size: to bring pictures to.

    Raises:
        SampleError: a picture that is missing, damaged, or of another size than the first without ``size``.
    """
    pictures: list[Tensor] = []
    notes: dict[str, None] = {}  # an ordered set
    for position, item in enumerate(items):
        with reading_sample(position, decoding=True):
            picture, remarks = decode(item)
            pictures.append(picture if size is None else size(picture.unsqueeze(0))[0])
        notes.update(dict.fromkeys(remarks))
    if len({picture.dtype for picture in pictures}) > 1:
        pictures = [_unit(picture) for picture in pictures]
    if {len(picture) for picture in pictures} == {1, 3}:
        pictures = [picture.expand(3, -1, -1) for picture in pictures]
        notes["grey pictures among coloured ones given three equal channels"] = None
    _refuse_other_sizes(pictures)
    return picture_matrix(torch.stack(pictures), tuple(notes))


def gather(items: Iterable[Any], size: PictureSize | None = None) -> Matrix | Texts:
    """Items as a matrix, or as texts.

    Args:
        items: pictures, vectors of numbers, or strings.
        size: to bring pictures to.
    """
    items = list(items)
    texts = sum(isinstance(item, str) for item in items)
    if texts and texts + items.count(None) == len(items):
        return Texts(items)
    return stack(items, size)


def _is_picture(item: Any) -> bool:
    """Whether an item is an encoded or a PIL picture, or an array of two or three axes."""
    if is_pil(item) or is_encoded(item):
        return True
    if isinstance(item, list | tuple):
        return bool(item) and isinstance(item[0], list | tuple | np.ndarray)
    return getattr(item, "ndim", 0) in (2, 3)


def _stack_vectors(items: list[Any]) -> Tensor:
    """Vectors of numbers as rows."""
    if isinstance(items[0], str | Mapping):
        raise ValueError(
            f"features are {type(items[0]).__name__}, not numbers or pictures; text goes through an embedder "
            "(text= of from_huggingface, otdd_flash.data.features)"
        )
    missing = next((position for position, item in enumerate(items) if item is None), None)
    if missing is not None:
        raise SampleError(missing, "{here} has no features (None); leave it out")
    if isinstance(items[0], list | tuple) and any(getattr(part, "ndim", 0) for part in items[0]):
        raise ValueError("the features of a sample are several arrays; choose one, or join them in a transform")
    rows = [as_tensor(item).reshape(-1) if np.ndim(item) == 0 else as_tensor(item) for item in items]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise ValueError(f"samples differ in shape: {sorted(shapes)[:4]}; bring them to one")
    return torch.stack(rows)


def _unit(picture: Tensor) -> Tensor:
    """8-bit values as floats in [0, 1]."""
    return picture.float().div(LEVELS) if picture.dtype == torch.uint8 else picture.float()


def _refuse_other_sizes(pictures: list[Tensor]) -> None:
    """All pictures must be of one shape."""
    shapes = [tuple(picture.shape) for picture in pictures]
    other = next((position for position, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise SampleError(
            other,
            f"pictures differ in size, (c, h, w) is {shapes[0]} first and {shapes[other]} in {{here}}; pass "
            "resize=(h, w) to bring them to one",
        )
