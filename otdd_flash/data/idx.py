"""Files in LeCun's idx form, as MNIST and its relatives are stored: known sets, and any file of the user."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from otdd_flash.data.classes import refuse_repeats
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import Reader, Request, find_file, find_path, reading

_KINDS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIXES = {"train": ("train",), "test": ("test", "t10k")}


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, gzipped (``.gz``) or plain: bytes, integers or floats, of any number of axes.

    Raises:
        ValueError: another form, or a length that does not fit the header.
    """
    with reading(path, "an idx file"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        content = stream.read()
    kind = _KINDS.get(content[2]) if len(content) >= 4 and content[:2] == b"\x00\x00" else None
    if kind is None or not content[3] or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{path} is not an idx file: two zero bytes, one for the type, one for the number of axes")
    shape = np.frombuffer(content, dtype=">u4", count=content[3], offset=4).tolist()
    dtype, start = np.dtype(kind), 4 + 4 * content[3]
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        size = (len(content) - start) // dtype.itemsize
        raise ValueError(f"{path} is damaged: {size} values where the header says {shape}")
    data = np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)
    return data.astype(dtype.newbyteorder("="), copy=False)


def read_idx_files(request: Request) -> Rows:
    """An idx file of samples and the one of their labels: ``path`` is the first, or a folder with a pair a split.

    In a folder the files are called ``train-images-idx3-ubyte``, ``test-images-...`` or ``t10k-images-...``, with or
    without ``.gz``. Labels are those given as ``labels=``, else the file whose name says ``labels`` and ``idx1`` where
    that of the samples says ``images`` and ``idx3``.

    Raises:
        ValueError: other numbers of samples and of labels, or a split of a single file.
        FileNotFoundError: no such split, or no labels.
    """
    path = find_path(request, folder=None)
    if path.is_file() and request.split not in ("train", "all"):
        raise ValueError(f"{path} is one file, of one split: name the file of the split {request.split!r}, or a folder")
    images = path if path.is_file() else _of_split(path, request.split)
    labels = _labels_of(images, request)
    x, y = read_idx(images), read_idx(labels)
    if len(x) != len(y):
        raise ValueError(f"{images} holds {len(x)} samples, {labels} {len(y)} labels: take those of one set and split")
    name = re.sub(r"[-_.]?images|[-.]idx\d|-ubyte|\.gz$", "", images.name) or path.name
    names = refuse_repeats(request.options.get("class_names"))
    shape = request.options.get("image_shape")
    samples = x.reshape(len(x), 1) if x.ndim == 1 else x
    return Rows(y, samples.__getitem__, name, names, image_shape=shape, notes=(f"labels from {labels.name}",))


def _of_split(folder: Path, split: str) -> Path:
    """The file of samples of a split."""
    for prefix in _PREFIXES.get(split, (split,)):
        for path in sorted(folder.glob(f"{prefix}-images-idx?-ubyte*")):
            if path.name.endswith(("-ubyte", "-ubyte.gz")):
                return path
    there = sorted(path.name for path in folder.glob("*-images-idx?-ubyte*"))
    raise FileNotFoundError(
        f"{folder} has no idx file {split}-images-idx3-ubyte, plain or .gz, for split={split!r}; it has "
        f"{there or 'no file of that form: name the file of the samples itself'}"
    )


def _labels_of(images: Path, request: Request) -> Path:
    """The file of labels that was asked for, or the one that belongs to ``images`` by its name."""
    asked = request.options.get("labels")
    if asked is not None:
        given = Path(str(asked)).expanduser()
        found = find_file([Path(), images.parent, *request.roots], ["."], [str(given)])
        if found is None:
            raise FileNotFoundError(f"load({request.name!r}): there is no file labels={str(asked)!r}")
        return found
    name = re.sub(r"idx\d", "idx1", images.name.replace("images", "labels")).removesuffix(".gz")
    beside = find_file([images.parent], ["."], [name, f"{name}.gz"])
    if beside is None or beside == images:
        raise FileNotFoundError(f"the labels of {images} are not beside it as {name}: name their file with labels=")
    return beside


def idx_reader(
    folders: Sequence[str],
    prefixes: dict[str, str],
    class_names: Sequence[str] | None = None,
    transpose: bool = False,
) -> Reader:
    """Reader of a pair of idx files ``{prefix}-images-idx3-ubyte[.gz]`` and ``{prefix}-labels-idx1-ubyte[.gz]``.

    Args:
        folders: names under a root.
        prefixes: file prefix by split; ``{option}`` fields are filled from the request's options.
        class_names: by label.
        transpose: pictures are stored column by column (EMNIST).
    """

    def read(request: Request) -> Rows | None:
        stem = prefixes[request.split].format(**request.options)
        images = find_file(request.roots, folders, [f"{stem}-images-idx3-ubyte.gz", f"{stem}-images-idx3-ubyte"])
        if images is None:
            return None
        beside = [f"{stem}-labels-idx1-ubyte.gz", f"{stem}-labels-idx1-ubyte"]
        labels = find_file([images.parent], ["."], beside)
        if labels is None:
            raise ValueError(f"{images} is there but its labels {beside[0]} are not")
        pictures = read_idx(images)
        if transpose:
            pictures = pictures.transpose(0, 2, 1)
        return Rows(read_idx(labels), pictures.__getitem__, class_names=class_names)

    return read
