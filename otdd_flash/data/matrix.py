"""Features of any kind as one float matrix, with the 8-bit grid of pictures remembered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.arrow import ENCODE_ADVICE

LEVELS = 255
NOTE_16_BIT = "16-bit pictures divided by 65535"
_CHANNELS = (1, 2, 3, 4)
_PLAIN_CHANNELS = (1, 3)  # without alpha
_EXACT_FLOAT32 = 2**24  # integers up to here are float32 numbers


@dataclass(frozen=True)
class Matrix:
    """Features ready for a data set.

    Args:
        x: ``(n, d)`` float features.
        levels: ``255`` where all values are multiples of ``1/255``, else ``None``.
        image_shape: ``(h, w)`` or ``(c, h, w)`` of a flattened picture.
        notes: remarks on what was done.
    """

    x: Tensor
    levels: int | None = None
    image_shape: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def as_tensor(features: Any) -> Tensor:
    """``features`` as a tensor of a numeric dtype, sharing memory where that is possible.

    Raises:
        ValueError: text, ragged or complex features.
    """
    if isinstance(features, Tensor):
        tensor = _plain_tensor(features)
    elif isinstance(features, list | tuple) and features and isinstance(features[0], Tensor):
        shapes = {tuple(getattr(row, "shape", ())) for row in features}
        if len(shapes) > 1 or not all(isinstance(row, Tensor) for row in features):
            raise ValueError(f"X has rows of different lengths or kinds: {sorted(shapes)[:4]}; bring them to one")
        tensor = torch.stack(list(features))
    else:
        tensor = torch.as_tensor(_numeric(features))
    if tensor.is_complex():
        raise ValueError("X is complex; give real and imaginary parts as separate columns")
    return tensor


def _plain_tensor(tensor: Tensor) -> Tensor:
    """A tensor of numbers in rows: sparse ones dense, quantised ones as the numbers that they stand for.

    Raises:
        ValueError: nested tensors and those without data.
    """
    if tensor.is_nested:
        raise ValueError("X is a nested tensor, whose rows may differ in length: pad or cut them, as a plain tensor")
    if tensor.is_meta:
        raise ValueError("X is a tensor on the device meta, which holds no data: give it on cpu or cuda")
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def to_matrix(features: Any, image_shape: Sequence[int] | None = None) -> Matrix:
    """Rows of numbers or stacked pictures as a float matrix.

    ``(n, d)`` numbers are cast to float and kept as they are (float64 stays, narrower floats become float32). Pictures
    ``(n, h, w)``, ``(n, c, h, w)`` or ``(n, h, w, c)`` are brought to channels-first order and flattened; 8-bit
    pictures are divided by 255. Floats that lie on the grid ``k/255`` are recognised as 8-bit.

    Args:
        features: ``(n, ...)`` tensor, array, data frame or nested lists.
        image_shape: ``(h, w)``, ``(c, h, w)`` or ``(h, w, c)`` where the rows are flattened pictures.

    Raises:
        ValueError: a shape that is neither, or features that are not numbers.
    """
    tensor = as_tensor(features)
    if image_shape is not None:
        several = isinstance(image_shape, Iterable) and getattr(image_shape, "ndim", 1) == 1
        shape: tuple[Any, ...] = tuple(image_shape) if several else (image_shape,)
        tensor = _unflatten(tensor, shape)
    if tensor.ndim in (3, 4):
        return picture_matrix(*channels_first(tensor))
    if tensor.ndim != 2:
        raise ValueError(
            f"X must be (n, d), or pictures (n, h, w), (n, c, h, w), (n, h, w, c); got shape {tuple(tensor.shape)}"
            + ("; use X.reshape(-1, 1) for a single feature" if tensor.ndim == 1 else "")
        )
    notes: tuple[str, ...] = ()
    if tensor.dtype == torch.uint8:
        notes = ("uint8 rows kept as 0..255: pass pictures as (n, h, w) or with image_shape to have them in [0, 1]",)
    x = _float(tensor)
    return Matrix(x, LEVELS if on_grid(x) else None, None, notes)


def channels_first(tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Pictures ``(n, h, w)`` or with a channel axis on either side as ``(n, c, h, w)``, alpha dropped, with notes.

    Raises:
        ValueError: both outer axes could be channels with alpha, so that dropping one would lose part of the pictures.
    """
    if tensor.ndim == 3:
        return tensor.unsqueeze(1), ()
    if _channels_are_last(tuple(tensor.shape)):
        tensor = tensor.movedim(3, 1)
    colours = tensor.shape[1]
    if colours not in (2, 4):
        return tensor, ()
    return tensor[:, : colours - 1], (f"alpha dropped: pictures with {colours} channels",)


def _channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether pictures are ``(n, h, w, c)``: grey or colour on one side wins over a count with alpha on the other."""
    first, last = shape[1], shape[3]
    if first not in _CHANNELS:
        return last in _CHANNELS or last < first
    if first in _PLAIN_CHANNELS or last not in _CHANNELS:
        return False
    if last in _PLAIN_CHANNELS or (first, last) == (2, 4):
        return True
    raise ValueError(
        f"pictures of shape {shape} could have their channels, with alpha, on either side; leave out the alpha "
        f"channel: X[..., :{last - 1}] where channels are last, X[:, :{first - 1}] where they are first"
    )


def on_grid(x: Tensor) -> bool:
    """Whether every value is ``k / 255`` for an integer ``0 <= k <= 255``, up to rounding of the dtype.

    Zero must be exact: values far below one level are data of a small scale, not rounded zeros.
    """
    x = x.detach()
    limit = 2 * torch.finfo(x.dtype).eps
    step = max(1, 2**22 // max(1, x.shape[1]))
    starts = [0, *range(min(16, step), len(x), step)]  # a few rows settle most cases
    for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
        block = x[start:end]
        nearest = (block * LEVELS).round()
        inside = ((nearest >= 0) & (nearest <= LEVELS)).all()
        if not inside or not ((block - nearest / LEVELS).abs() <= limit).all() or block[nearest == 0].any():
            return False
    return True


def picture_matrix(pictures: Tensor, notes: tuple[str, ...] = ()) -> Matrix:
    """Pictures ``(n, c, h, w)`` as rows, flattened in channels-first order."""
    shape = tuple(pictures.shape[2:]) if pictures.shape[1] == 1 else tuple(pictures.shape[1:])
    flat = pictures.reshape(len(pictures), -1)
    if flat.dtype in (torch.uint16, torch.int32, torch.int64, torch.int16, torch.int8) and flat.numel():
        flat = flat.to(torch.int64)
        low, high = int(flat.min()), int(flat.max())
        if pictures.dtype == torch.uint16:
            return Matrix(flat.float().div(2**16 - 1), None, shape, (*notes, NOTE_16_BIT))
        if low >= 0 and high <= LEVELS:
            flat = flat.to(torch.uint8)
        else:
            notes = (*notes, f"integer pictures from {low} to {high} kept in their range, not in [0, 1]")
    if flat.dtype == torch.uint8:
        return Matrix(flat.float().div(LEVELS), LEVELS, shape, notes)
    x = _float(flat)
    if not on_grid(x):
        least, most = (float(x.detach().min()), float(x.detach().max())) if x.numel() else (0.0, 0.0)
        if least < 0 or most > 1:
            notes = (*notes, f"pictures from {least:.4g} to {most:.4g} kept in their range, not in [0, 1]")
        return Matrix(x, None, shape, notes)
    # a multiplication by 1/255 is off the grid by an ulp: the same picture must be the same row whichever way it came
    return Matrix(x if x.requires_grad else (x * LEVELS).round().div(LEVELS), LEVELS, shape, notes)


def _unflatten(tensor: Tensor, image_shape: tuple[int, ...]) -> Tensor:
    """Flattened rows as pictures of ``image_shape``."""
    if len(image_shape) not in (2, 3) or not all(isinstance(side, Integral) and side > 0 for side in image_shape):
        raise ValueError(f"image_shape must be (h, w), (c, h, w) or (h, w, c), positive integers, got {image_shape!r}")
    if tensor.ndim == 2 and math.prod(image_shape) == tensor.shape[1]:
        return tensor.reshape(len(tensor), *image_shape)
    if tuple(tensor.shape[1:]) == image_shape:
        return tensor
    raise ValueError(f"image_shape={image_shape} does not fit X of shape {tuple(tensor.shape)}")


def _float(tensor: Tensor) -> Tensor:
    """Cast to float32, keeping float64; integers beyond float32's exact range become float64."""
    if tensor.dtype == torch.float64 or tensor.dtype == torch.float32:
        return tensor
    if tensor.is_floating_point() or tensor.dtype == torch.bool or not tensor.numel():
        return tensor.float()
    wide = tensor.to(torch.int64)
    exact = int(wide.max()) <= _EXACT_FLOAT32 and int(wide.min()) >= -_EXACT_FLOAT32
    return tensor.to(torch.float32 if exact else torch.float64)


def _numeric(features: Any) -> np.ndarray:
    """``features`` as a native, writable numpy array of a dtype that torch knows."""
    if isinstance(features, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in features):
        features = np.ma.stack(features)
    try:
        array = _unmasked(features) if isinstance(features, np.ma.MaskedArray) else np.asarray(features)
    except ValueError as error:
        raise ValueError(f"X has rows of different lengths or kinds: {error}") from error
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"X holds values that are not numbers ({error}); {ENCODE_ADVICE}") from error
    if array.dtype.kind not in "biufc":
        raise ValueError(f"X has dtype {array.dtype}, which is not numeric; {ENCODE_ADVICE}")
    if (array.dtype.kind == "f" and array.dtype.itemsize > 8) or array.dtype == np.uint64:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.uint32:
        array = array.astype(np.int64)
    # torch takes neither negative strides nor read-only memory
    return np.array(array) if not array.flags.writeable or min(array.strides, default=1) < 0 else array


def _unmasked(features: np.ma.MaskedArray) -> np.ndarray:
    """Masked floats as NaN, which is refused where the row is kept; other dtypes have no such value."""
    if not np.ma.is_masked(features):
        return features.data
    if features.dtype.kind == "f":
        return features.filled(np.nan)
    mask = np.ma.getmaskarray(features)
    raise ValueError(
        f"X has {int(mask.sum())} masked values, the first in row {int(np.argwhere(mask)[0][0])}; drop or impute them"
    )
