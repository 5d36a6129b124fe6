"""The one picture decoder: encoded, PIL and array pictures as ``(c, h, w)``, upright, without alpha."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.matrix import NOTE_16_BIT, as_tensor, channels_first
from otdd_flash.errors import optional_import

# Pillow knows many more: some call other programs (PostScript calls Ghostscript), some have no mark to be known by.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
_ORIENTATION = 0x0112  # the EXIF tag
_GREY_WITH_ALPHA = ("LA", "La")
_COLOUR_WITH_ALPHA = ("RGBA", "RGBa", "PA")
_NOTE_ALPHA = "alpha dropped: pictures with an alpha channel"
_NOTE_TURNED = "pictures turned upright by their EXIF orientation"
_NOTE_FRAMES = "the first frame alone of pictures with several"
_HERE = "{here}"


class SampleError(ValueError):
    """A sample that cannot be used. The reader knows its place among those read, its caller where that was.

    Args:
        position: place among the samples that were read.
        reason: what is wrong and what to do, with ``{here}`` for the sample.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason.replace(_HERE, f"sample {position} of those read"))
        self.position, self.reason = position, reason

    def told(self, where: str) -> str:
        """The message of a sample that is called ``where``."""
        return self.reason.replace(_HERE, where)


@contextlib.contextmanager
def reading_sample(position: int, *, decoding: bool = False) -> Iterator[None]:
    """What goes wrong with one sample becomes an error that says which.

    Args:
        position: of the sample among those read.
        decoding: nothing but the picture decoder runs inside, so that every error is the picture's; else only those
            that Pillow raises on broken files are.

    Raises:
        SampleError: with the place, what is wrong and what to do.
    """
    try:
        yield
    except (SampleError, ImportError):
        raise
    except _picture_errors(decoding) as error:
        form = " as a picture" if decoding else ""
        raise SampleError(position, f"{_HERE} cannot be read{form}: {_complaint(error)}") from error


def decode(item: Any) -> tuple[Tensor, tuple[str, ...]]:
    """One picture as ``(c, h, w)`` without alpha, and notes on what that took.

    Args:
        item: encoded (bytes, a path, or the mapping of ``bytes`` and ``path`` that Hugging Face stores), PIL, or an
            array ``(h, w)``, ``(c, h, w)`` or ``(h, w, c)``.

    Raises:
        ValueError: no picture, one that is missing or damaged, or a format that is not read.
    """
    if is_encoded(item):
        with open_picture(item) as picture:
            return _from_pil(picture)
    if is_pil(item):
        return _from_pil(item)
    if item is None:
        raise ValueError("it is missing (None)")
    tensor = as_tensor(item)
    if tensor.ndim not in (2, 3):
        raise ValueError(f"a picture must be (h, w), (c, h, w) or (h, w, c), got shape {tuple(tensor.shape)}")
    pictures, notes = channels_first(tensor.unsqueeze(0))
    return pictures[0], tuple(_NOTE_ALPHA for _ in notes)


def is_pil(item: Any) -> bool:
    """Whether an item is a PIL picture."""
    return hasattr(item, "mode") and hasattr(item, "convert")


def is_encoded(item: Any) -> bool:
    """Whether an item is a picture that is still encoded: bytes, a path, or a mapping of both."""
    return isinstance(item, bytes | Path) or (isinstance(item, Mapping) and bool({"bytes", "path"} & set(item)))


def open_picture(source: Any) -> Any:
    """A PIL picture of encoded bytes, a path or a mapping of both, to be closed by the caller.

    Raises:
        ValueError: neither bytes nor a path.
    """
    if isinstance(source, Mapping):
        source = source.get("bytes") if source.get("bytes") is not None else _local(source.get("path"))
    if source is None:
        raise ValueError("it is missing (neither bytes nor a path)")
    if not isinstance(source, bytes | str | os.PathLike):
        raise ValueError(f"got {type(source).__name__}, not encoded bytes or a path")
    image = optional_import("PIL.Image", needed_for="reading pictures")
    return image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats())


def _local(path: Any) -> Any:
    """A path, or the bytes behind an address such as Hugging Face gives for streamed sets (``zip://...::hf://...``)."""
    if not isinstance(path, str) or "://" not in path:
        return path
    files = optional_import("datasets.utils.file_utils", needed_for="pictures behind an address")
    with files.xopen(path, "rb") as stream:
        return stream.read()


@cache
def picture_endings() -> frozenset[str]:
    """Endings of the files that are read as pictures, as ``.png``."""
    image = optional_import("PIL.Image", needed_for="reading pictures")
    return frozenset(ending for ending, form in image.registered_extensions().items() if form in _formats())


def within(values: Iterable[Any], folder: Path) -> list[Any]:
    """Encoded pictures of a table with their paths taken from ``folder``, and from nowhere else.

    Raises:
        SampleError: a path that leads out of ``folder``.
    """
    root, found = os.path.abspath(folder), []
    for position, value in enumerate(values):
        path = value.get("path") if isinstance(value, Mapping) and value.get("bytes") is None else value
        if isinstance(path, str):
            place = os.path.normpath(os.path.join(root, path))
            if os.path.commonpath([root, place]) != root:
                raise SampleError(
                    position,
                    f"{_HERE} names the picture {path!r}, which is not under {root}, the folder of the table; pass "
                    "picture_root= with the folder that pictures may be read from",
                )
            value = Path(place)
        found.append(value)
    return found


@cache
def _formats() -> tuple[str, ...]:
    """Those of :data:`FORMATS` that this Pillow reads: it refuses a list with others."""
    image = optional_import("PIL.Image", needed_for="reading pictures")
    image.init()
    return tuple(form for form in FORMATS if form in image.OPEN)


def _picture_errors(decoding: bool) -> tuple[type[Exception], ...]:
    """What Pillow raises on broken pictures; while it decodes, every error is its own."""
    pillow: Any = sys.modules.get("PIL.Image")
    bomb = () if pillow is None else (pillow.DecompressionBombError,)
    broken = (OSError, SyntaxError, EOFError, RuntimeError, struct.error, zlib.error, *bomb)
    return (Exception,) if decoding else broken


def _complaint(error: Exception) -> str:
    """What is wrong with a picture and what to do, in a line."""
    kind = type(error).__name__
    if kind == "DecompressionBombError":
        said = str(error).partition(",")[0]
        return f"{said}; make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS where you trust it"
    if kind == "UnidentifiedImageError":
        reason = f"it is damaged or of another format than {', '.join(_formats())}"
    elif isinstance(error, FileNotFoundError):
        reason = f"there is no file {str(error.filename)!r}"
    else:
        reason = next(iter(str(error).splitlines()), "") or kind
    return f"{reason}; replace it or leave it out"


def _from_pil(image: Any) -> tuple[Tensor, tuple[str, ...]]:
    """A PIL picture of any mode: 8-bit grey or colour, or float for deeper ones."""
    image.load()
    image, notes = _upright(image)
    if getattr(image, "is_animated", False):
        notes = (*notes, _NOTE_FRAMES)
    mode = image.mode
    if mode == "F":
        return torch.from_numpy(np.array(image)).unsqueeze(0), notes
    if mode == "I" or mode.startswith("I;16"):
        values = np.array(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() >= 2**16):
            raise ValueError(f"a picture of mode {mode} holds values outside 0..65535; convert it to float first")
        return torch.from_numpy(values).unsqueeze(0).float().div(2**16 - 1), (*notes, NOTE_16_BIT)
    if mode in (*_GREY_WITH_ALPHA, *_COLOUR_WITH_ALPHA) or (mode == "P" and "transparency" in image.info):
        notes = (*notes, _NOTE_ALPHA)
    if mode in ("1", *_GREY_WITH_ALPHA):
        image = (image.convert("LA") if mode == "La" else image).convert("L")
    elif mode not in ("L", "RGB"):
        through = image.convert("RGBA") if mode in ("P", "RGBa", "PA") else image
        image = through.convert("RGB")
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 2 else array.transpose(2, 0, 1)).reshape(-1, *array.shape[:2]), notes


def _upright(image: Any) -> tuple[Any, tuple[str, ...]]:
    """The picture as a viewer shows it: cameras store the sensor's rows and how they were held."""
    if image.getexif().get(_ORIENTATION, 1) not in range(2, 9):
        return image, ()
    operations = optional_import("PIL.ImageOps", needed_for="reading pictures")
    return operations.exif_transpose(image), (_NOTE_TURNED,)
