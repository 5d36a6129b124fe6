"""Files of the user as rows: npz archives, a Hugging Face data set by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.data.huggingface import resolve, table_rows
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import Request, find_path, not_found, reading
from otdd_flash.errors import optional_import

_PAIRS = (
    ("x_{split}", "y_{split}"), ("X_{split}", "y_{split}"), ("{split}_images", "{split}_labels"),
    ("x", "y"), ("X", "y"), ("features", "labels"), ("images", "labels"), ("data", "target"), ("data", "labels"),
)  # fmt: skip


def read_npz(request: Request) -> Rows:
    """Arrays of an ``.npz`` file, by the usual names or those given as ``x=`` and ``y=``."""
    path = find_path(request)
    given = (request.options.get("x"), request.options.get("y"))
    with _archive(path) as archive:
        pairs = [(x.format(split=request.split), y.format(split=request.split)) for x, y in _PAIRS]
        if given != (None, None):
            pairs = [tuple(str(key) for key in given)]  # type: ignore[list-item]
        elif request.split not in ("train", "all"):
            pairs = [pair for pair in pairs if request.split in pair[0]]
        found = next((pair for pair in pairs if pair[0] in archive and pair[1] in archive), None)
        if found is None:
            raise ValueError(
                f"{path} holds {archive.files}: no features and labels for split {request.split!r} under the names "
                f"{pairs[0]}; name them with x= and y="
            )
        features, labels = _stored(archive, found[0], path), _stored(archive, found[1], path)
        names = _stored(archive, "class_names", path).tolist() if "class_names" in archive else None
        weights = _stored(archive, "weights", path) if "weights" in archive and given == (None, None) else None
    if len(features) != len(labels):
        raise ValueError(f"{path}: {found[0]} has shape {features.shape}, {found[1]} has {labels.shape}")
    shape = request.options.get("image_shape")
    return Rows(labels, features.__getitem__, path.stem, names, weights=weights, image_shape=shape)


def read_huggingface(request: Request) -> Rows:
    """A data set of the Hugging Face hub, from its cache, a local folder, or downloaded."""
    datasets = optional_import("datasets", needed_for="load('hf:...')")
    name, options = request.options.get("path"), request.options
    if name is None:
        raise ValueError("load('hf') needs the data set's name: load('hf:<name>')")
    try:
        if (Path(name) / "state.json").is_file():
            ds = datasets.load_from_disk(str(name))
        elif (Path(name) / "dataset_dict.json").is_file():
            ds = datasets.load_from_disk(str(name))[request.split]
        else:
            ds = datasets.load_dataset(str(name), options.get("config"), split=request.split)
    except (OSError, RuntimeError) as error:
        reason = f"Hugging Face could not load it ({type(error).__name__}: {str(error).splitlines()[0]})"
        raise FileNotFoundError(not_found(request, reason)) from error
    columns = resolve(
        ds, options.get("image"), options.get("text"), options.get("features"), options.get("label", "label")
    )
    return table_rows(ds, columns, name=str(name).rstrip("/").rpartition("/")[2], size=options.get("resize"))


def _archive(path: Path) -> Any:
    """The opened ``.npz`` file."""
    with reading(path, "an npz archive"):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is a single .npy array; store features and labels with numpy.savez(path, x=x, y=y)")
    return archive


def _stored(archive: Any, key: str, path: Path) -> np.ndarray:
    """An array of the archive with one entry a sample; pickled objects are refused."""
    with reading(path, f"an npz archive with an array {key!r} of numbers or strings"):
        array = archive[key]
        if not array.ndim:
            raise ValueError(f"{key!r} is a single value, not an array with one entry a sample")
    return array
