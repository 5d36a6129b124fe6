"""Tables in files as rows: csv, plain or compressed, and Parquet, one file or a folder of parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.data.arrow import agreed, is_numeric
from otdd_flash.data.columns import choose_columns, table_rows
from otdd_flash.data.csv_table import CsvForm, read_csv_table
from otdd_flash.data.decoding import within
from otdd_flash.data.frames import arrow_table, pandas_index
from otdd_flash.data.pictures import stack_pictures
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import Reader, Request, find_file, find_path, reading
from otdd_flash.errors import optional_import

_COLUMNS = ("label", "features", "text", "weights")
_FORM = ("sep", "decimal", "encoding", "na_values")


def read_csv(request: Request) -> Rows:
    """A table with a header, plain or compressed."""
    path = find_path(request)
    form = CsvForm(**{key: request.options[key] for key in _FORM if request.options.get(key) is not None})
    table, columns = read_csv_table(path, form, **{key: request.options.get(key) for key in _COLUMNS})
    rest: dict[str, Any] = {key: request.options.get(key) for key in ("class_names", "image_shape")}
    return table_rows(table, columns, name=path.stem.removesuffix(".csv"), **rest)


def table_reader(file: str, label: str) -> Reader:
    """Reader of ``tabular/file``, a csv table whose other columns are all numbers."""

    def read(request: Request) -> Rows | None:
        path = find_file(request.roots, ["tabular"], [file])
        if path is None:
            return None
        return table_rows(*read_csv_table(path, CsvForm(), label=label), name=request.name)

    return read


def read_parquet(request: Request) -> Rows:
    """A Parquet table: columns of numbers, one column of arrays (``features=``), or encoded pictures (``image=``)."""
    path, options = find_path(request, folder=None), request.options
    dataset, partitions = _parquet(path)
    names = tuple(dataset.schema.names)
    image = _image(names, options)
    asked = {key: options.get(key) for key in _COLUMNS} | ({} if image is None else {"features": image})
    columns = choose_columns(names, index=pandas_index(dataset.schema), **asked)
    used = {columns.label, *columns.features} | ({columns.weights} if columns.weights is not None else set())
    with reading(path, "a Parquet table"):
        table = dataset.to_table(columns=[names[i] for i in sorted(used)])
    for i, name in enumerate(table.column_names):
        if name in partitions:  # folder names are text, as the fields of a csv file are
            table = table.set_column(i, name, agreed(table.column(i)))
    label = names[columns.label]
    rows = table_rows(
        arrow_table(table, names),
        columns,
        name=path.stem,
        class_names=options.get("class_names") or _stored_names(dataset.schema, label),
        image_shape=options.get("image_shape"),
    )
    if image is None or is_numeric(table.schema.field(image).type):
        return rows
    pictures, size = table.column(image), options.get("resize")
    folder = Path(options.get("picture_root") or (path.parent if path.is_file() else path)).expanduser()

    def fetch(index: np.ndarray) -> Any:
        return stack_pictures(within(pictures.take(index).to_pylist(), folder), size)

    return replace(rows, fetch=fetch, columns=None)


def _parquet(path: Path) -> tuple[Any, tuple[str, ...]]:
    """A Parquet file, or a folder of parts in the order of their names, and the columns that are names of folders.

    Raises:
        ValueError: no part, parts that are no Parquet, or parts whose columns differ in kind.
    """
    arrow = optional_import("pyarrow", needed_for="reading parquet")
    source = optional_import("pyarrow.dataset", needed_for="reading parquet")
    if path.is_file():
        with reading(path, "a Parquet table"):
            return source.dataset(str(path), format="parquet", partitioning=None), ()
    with reading(path, "a folder of Parquet parts"):
        found = source.dataset(str(path), format="parquet", partitioning=source.HivePartitioning.discover())
        keys = tuple(
            {
                key: None
                for part in found.get_fragments()
                for key in source.get_partition_keys(part.partition_expression)
            }
        )
        text = arrow.schema([(key, arrow.string()) for key in keys])
        found = source.dataset(str(path), format="parquet", partitioning=source.partitioning(text, flavor="hive"))
        parts = [part.physical_schema for part in found.get_fragments()]
        if not parts:
            raise ValueError("it holds no file")
        try:
            schema = arrow.unify_schemas([*parts, text], promote_options="permissive")
        except arrow.ArrowTypeError as error:
            raise ValueError(f"its parts do not agree: {error}") from error
        return found.replace_schema(schema.with_metadata(parts[0].metadata)), keys


def _image(names: tuple[str, ...], options: dict[str, Any]) -> str | None:
    """The column of pictures: the one asked for, or one called so where nothing else is asked for."""
    others = [key for key in ("features", "text") if options.get(key) is not None]
    if options.get("image") is None:
        return "image" if "image" in names and not others else None
    if others:
        raise ValueError(f"give one of image=, text=, features=; got image and {others[0]}")
    return str(options["image"])


def _stored_names(schema: Any, label: str) -> list[str] | None:
    """Class names that Hugging Face wrote into the schema."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return None
    kind = json.loads(stored).get("info", {}).get("features", {}).get(label, {})
    return kind.get("names") if isinstance(kind, dict) else None
