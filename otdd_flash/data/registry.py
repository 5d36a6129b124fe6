"""Data sets by name: the registry and :func:`load`."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from otdd_flash.checks import check_flag, check_path, check_text
from otdd_flash.data.catalogue import SOURCES
from otdd_flash.data.rows import Draw, build, build_table
from otdd_flash.data.sizes import PictureSize, resize_pictures
from otdd_flash.data.sources import Request, Source, not_found, search_roots
from otdd_flash.data.unembedded import TableDataset, TextDataset
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


def sources() -> dict[str, str]:
    """Names that :func:`load` knows, with one line on each."""
    return {name: source.about for name, source in SOURCES.items()}


@plain_torch
def load(
    name: str,
    *,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
    data_root: str | Path | None = None,
    download: bool = True,
    **options: Any,
) -> LabeledDataset | TextDataset | TableDataset:
    """A data set by name, or one of the user's own files by kind: ``load("csv:path", label="species")``.

    Files are looked for under ``data_root``, ``$OTDD_DATA``, ``$TORCH_HOME/datasets`` (``~/.cache/torch/datasets``) and
    ``/usr/share/datasets``; what is in none of them is downloaded last.

    >>> load("iris")
    LabeledDataset('iris', n=150, d=4, classes=3)

    Args:
        name: one of :func:`sources`, in any case, with or without hyphens; ``npz``, ``csv``, ``parquet``, ``idx``,
            ``imagefolder`` and ``hf`` take a path or name behind a colon or as ``path=``.
        split: ``train``, ``test`` or what else the set has; scikit-learn's sets have no splits, there the default gives
            all rows (``all``), which a note says.
        max_samples: at most so many rows, drawn uniformly without replacement (not stratified) after ``classes`` took
            effect; their order is that of the source. The draw is a function of the data's labels and ``seed``, so the
            same data gives the same rows on both sides of a distance.
        seed: of the draw.
        classes: keep these classes only, by label or by name.
        data_root: folder of data sets, looked in first.
        download: whether to fetch what is not there.
        options: ``min_class_size`` (drop smaller classes, with a warning and a count); ``table=True`` (the columns of
            csv and Parquet tables keep their kinds, for the embedder ``table``); ``resize=(h, w)`` brings pictures to
            that size, by ``fit="stretch"``, ``"pad"`` (a picture keeps its pixels and gets a border of zeros) or
            ``"pad:4"`` (it is brought, with its aspect ratio, to the size that leaves 4 pixels all round, as MNIST's
            digits stand in their pictures); and those of the set: ``label``, ``features``, ``text``, ``weights``,
            ``image_shape`` for tables, ``sep``, ``decimal``, ``encoding`` and ``na_values`` (texts that mean missing,
            besides an empty field) for csv, ``image`` and ``picture_root`` (the folder that its paths may point into,
            by default the table's own) for Parquet, ``labels`` (the file of the labels, where it is not the one beside
            ``images-idx3`` that is called ``labels-idx1``) for idx.

    Returns:
        The data set, of texts a :class:`TextDataset` and with ``table=True`` a :class:`TableDataset`, which an embedder
        makes one; ``ids`` are positions in the split.

    Raises:
        TypeError: a name that is not a string.
        ValueError: an unknown name, split, class or option; a file that cannot be read.
        FileNotFoundError: the data are not there and could not be downloaded.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"name must be a string such as 'mnist' or 'csv:<path>' (see otdd_flash.sources()), got {name!r}"
        )
    check_text("split", split)
    check_path("data_root", data_root, optional=True)
    check_flag("download", download)
    kind, _, path = name.partition(":")
    key = _find(kind)
    if path:
        options.setdefault("path", path)
    source = SOURCES[key]
    draw = Draw(max_samples, seed, classes, options.pop("min_class_size", None))
    make = build_table if options.pop("table", False) else build
    size = PictureSize.asked(options.pop("resize", None), options.pop("fit", "stretch"))
    if size is not None and "resize" in source.options:
        options["resize"] = size  # sizes differ within the set: the reader needs it
    unknown = sorted(set(options) - set(source.options))
    if unknown:
        known = sorted({*source.options, "min_class_size", "resize", "fit", "table"})
        raise ValueError(f"load({name!r}) does not take {unknown}; its options are {known}")
    split, notes = _resolve_split(key, split, source)
    request = Request(key, split, search_roots(data_root), download, options)
    for reader in source.readers:
        rows = reader(request)
        if rows is not None:
            title = rows.name if "path" in source.options else key
            dataset = make(replace(rows, name=title, notes=(*notes, *rows.notes)), draw)
            return dataset if size is None else _resized(dataset, size)
    raise FileNotFoundError(not_found(request))


def _resized(dataset: LabeledDataset | TextDataset | TableDataset, size: PictureSize) -> LabeledDataset:
    """Pictures at the size asked for; texts and tables have none."""
    if not isinstance(dataset, LabeledDataset):
        kind = "texts" if isinstance(dataset, TextDataset) else "a table"
        raise ValueError(f"resize is for pictures, {dataset.name} holds {kind}")
    return resize_pictures(dataset, size)


def _find(name: str) -> str:
    """The registry's spelling of ``name``: case, hyphens and underscores do not matter."""
    spellings = {key.replace("_", ""): key for key in SOURCES}
    asked = name.lower().replace("-", "").replace("_", "")
    if asked in spellings:
        return spellings[asked]
    close = [spellings[match] for match in difflib.get_close_matches(asked, spellings, n=3)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    raise ValueError(f"no data set named {name!r}; {guess}There are {', '.join(SOURCES)}")


def _resolve_split(name: str, split: str, source: Source) -> tuple[str, tuple[str, ...]]:
    """The split to read; the default ``train`` of a set without splits is all of it, with a note."""
    if split in source.splits or not source.splits:
        return split, ()
    if source.splits == ("all",) and split == "train":
        return "all", ("no splits: all rows",)
    raise ValueError(f"{name} has the splits {list(source.splits)}, got split={split!r}")
