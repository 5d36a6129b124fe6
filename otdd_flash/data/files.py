"""Files of the user as rows: npz, csv, parquet, a folder of pictures, a Hugging Face data set by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.data.arrow import column_array, label_column
from otdd_flash.data.classes import refuse_repeats
from otdd_flash.data.frames import frame_rows
from otdd_flash.data.huggingface import open_picture, resolve, table_rows
from otdd_flash.data.pictures import stack
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import Request, not_found, read_table, reading
from otdd_flash.errors import optional_import

_PAIRS = (
    ("x_{split}", "y_{split}"), ("X_{split}", "y_{split}"), ("{split}_images", "{split}_labels"),
    ("x", "y"), ("X", "y"), ("features", "labels"), ("images", "labels"), ("data", "target"), ("data", "labels"),
)  # fmt: skip
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def read_npz(request: Request) -> Rows:
    """Arrays of an ``.npz`` file, by the usual names or those given as ``x=`` and ``y=``."""
    path = _path(request)
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


def read_csv(request: Request) -> Rows:
    """A table with a header, plain or compressed."""
    path = _path(request)
    frame = read_table(path, needed_for="reading csv")
    return frame_rows(frame, name=path.stem.removesuffix(".csv"), **_frame_options(request))


def read_parquet(request: Request) -> Rows:
    """A Parquet table: numeric columns, one column of arrays (``features=``), or encoded pictures (``image=``)."""
    path = _path(request)
    parquet = optional_import("pyarrow.parquet", needed_for="reading parquet", extra="dist")
    with reading(path, "a Parquet table"):
        table = parquet.read_table(path)
    options = _frame_options(request)
    column = _array_column(table, request.options)
    if column is None:
        return frame_rows(table.to_pandas(), name=path.stem, **options)
    label = options["label"] or "label"
    lost = [key for key in (column, label) if key not in table.column_names]
    if lost:
        raise ValueError(f"no column {lost[0]!r} in {path}: there are {table.column_names}")
    nested, resize = _is_list(table, column), request.options.get("resize")

    def fetch(index: np.ndarray) -> Any:
        part = table.column(column).take(index)
        return column_array(part, column) if nested else stack(map(_decoded, part.to_pylist()), resize)

    return Rows(
        labels=label_column(table.column(label), label),
        fetch=fetch,
        name=path.stem,
        class_names=refuse_repeats(options["class_names"]) or _stored_names(table, label),
        image_shape=options["image_shape"],
    )


def read_imagefolder(request: Request) -> Rows:
    """Pictures in one folder a class, under ``path/split`` where that is there, else under ``path``."""
    root = _path(request, folder=True)
    base = root / request.split if (root / request.split).is_dir() else root
    if base == root and request.split not in ("train", "all"):
        raise ValueError(f"{root} has no folder {request.split!r} for that split")
    folders = sorted(folder for folder in base.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [(path, folder.name) for folder in folders for path in sorted(folder.rglob("*")) if _is_picture(path)]
    if not files:
        raise ValueError(f"no pictures in class folders under {base}: expected {base.name}/<class>/<picture>.png")
    resize = request.options.get("resize")
    return Rows(
        labels=[label for _, label in files],
        fetch=lambda index: stack((_picture(files[i][0]) for i in index.tolist()), resize),
        name=root.name,
    )


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
    return table_rows(ds, columns, name=str(name).rstrip("/").rpartition("/")[2], resize=options.get("resize"))


def _path(request: Request, folder: bool = False) -> Path:
    """The path asked for, as given or under one of the data folders."""
    given = request.options.get("path")
    if given is None:
        raise ValueError(
            f"load({request.name!r}) needs a path: load({request.name!r}, path=...) or {request.name}:<path>"
        )
    for candidate in (Path(given).expanduser(), *(root / str(given) for root in request.roots)):
        if candidate.is_dir() if folder else candidate.is_file():
            return candidate
    kind = "folder" if folder else "file"
    raise FileNotFoundError(
        f"load({request.name!r}): there is no {kind} {str(given)!r}, here or under the data folders"
    )


def _archive(path: Path) -> Any:
    """The opened ``.npz`` file."""
    with reading(path, "an npz archive"):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is a single .npy array; store features and labels with numpy.savez(path, x=x, y=y)")
    return archive


def _frame_options(request: Request) -> dict[str, Any]:
    """Options that a table takes."""
    keys = ("label", "features", "text", "weights", "class_names", "image_shape")
    return {key: request.options.get(key) for key in keys}


def _stored(archive: Any, key: str, path: Path) -> np.ndarray:
    """An array of the archive with one entry a sample; pickled objects are refused."""
    with reading(path, f"an npz archive with an array {key!r} of numbers or strings"):
        array = archive[key]
        if not array.ndim:
            raise ValueError(f"{key!r} is a single value, not an array with one entry a sample")
    return array


def _array_column(table: Any, options: dict[str, Any]) -> str | None:
    """The one column that holds whole samples, pictures or arrays; ``None`` where the features are plain columns."""
    if options.get("image") is not None:
        return options["image"]
    features = options.get("features")
    if features is None and options.get("text") is None and "image" in table.column_names:
        return "image"
    names = [features] if isinstance(features, str) else list(features or [])
    return names[0] if len(names) == 1 and names[0] in table.column_names and _is_list(table, names[0]) else None


def _is_list(table: Any, column: str) -> bool:
    """Whether a column holds lists or arrays."""
    kind = table.schema.field(column).type
    return "list" in str(kind) or hasattr(kind, "storage_type")


def _stored_names(table: Any, label: str) -> list[str] | None:
    """Class names that Hugging Face wrote into the schema."""
    stored = (table.schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return None
    kind = json.loads(stored).get("info", {}).get("features", {}).get(label, {})
    return kind.get("names") if isinstance(kind, dict) else None


def _is_picture(path: Path) -> bool:
    """Whether a file looks like a picture."""
    return path.suffix.lower() in _PICTURES and path.is_file()


def _picture(path: Path) -> Any:
    """The decoded picture of a file."""
    with reading(path, "a picture"):
        return open_picture(path)


def _decoded(value: Any) -> Any:
    """An encoded picture: bytes, or a mapping with ``bytes`` or ``path``."""
    if isinstance(value, dict):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if value is None:
        raise ValueError("a picture is missing; drop the row")
    return open_picture(value)
