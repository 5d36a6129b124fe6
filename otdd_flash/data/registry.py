"""Data sets by name: the registry and :func:`load`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from otdd_flash.data.rows import Selection, build
from otdd_flash.data.sources import (
    Request,
    Source,
    idx_reader,
    not_found,
    npz_file_reader,
    search_roots,
    sklearn_reader,
)
from otdd_flash.data.vision import torchvision_reader
from otdd_flash.types import LabeledDataset

_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_MNIST_FILES = {"train": "train", "test": "t10k"}
_TRAIN_FLAG = {"train": {"train": True}, "test": {"train": False}}

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "handwritten digits, 28 x 28",
        (idx_reader(("mnist", "MNIST", "MNIST/raw"), _MNIST_FILES), torchvision_reader("MNIST", _TRAIN_FLAG)),
    ),
    "fashion_mnist": Source(
        "clothes, 28 x 28",
        (
            idx_reader(("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"), _MNIST_FILES, _FASHION),
            torchvision_reader("FashionMNIST", _TRAIN_FLAG),
        ),
    ),
    "kmnist": Source(
        "Japanese characters, 28 x 28",
        (
            idx_reader(("kmnist", "KMNIST", "KMNIST/raw"), _MNIST_FILES, _KUZUSHIJI),
            torchvision_reader("KMNIST", _TRAIN_FLAG),
        ),
    ),
    "usps": Source(
        "digits from envelopes, 16 x 16",
        (
            npz_file_reader("usps", "usps.npz", "zip.train/zip.test pictures (ESL)"),
            torchvision_reader("USPS", _TRAIN_FLAG, note="LIBSVM's smoother pictures, not those of zip.train/zip.test"),
        ),
    ),
    "cifar10": Source(
        "colour photographs, 3 x 32 x 32",
        (
            torchvision_reader("CIFAR10", _TRAIN_FLAG, only_under="cifar-10-batches-py"),
            npz_file_reader(
                "cifar10", "cifar10_train1000_test500.npz", "excerpt: the first 1,000 training and 500 test pictures"
            ),
            torchvision_reader("CIFAR10", _TRAIN_FLAG),
        ),
    ),
    "digits": Source("digits, 8 x 8 (scikit-learn)", (sklearn_reader("load_digits"),), ("all",)),
    "wine": Source("178 x 13 table (scikit-learn)", (sklearn_reader("load_wine"),), ("all",)),
    "iris": Source("150 x 4 table (scikit-learn)", (sklearn_reader("load_iris"),), ("all",)),
    "breast_cancer": Source("569 x 30 table (scikit-learn)", (sklearn_reader("load_breast_cancer"),), ("all",)),
}


def sources() -> dict[str, str]:
    """Names that :func:`load` knows, with one line on each."""
    return {name: source.about for name, source in SOURCES.items()}


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
) -> LabeledDataset:
    """A data set by name.

    Files are looked for under ``data_root``, ``$OTDD_DATA``, ``$TORCH_HOME/datasets`` (``~/.cache/torch/datasets``) and
    ``/usr/share/datasets``; what is in none of them is downloaded last.

    >>> load("iris")
    LabeledDataset('iris', n=150, d=4, classes=3)

    Args:
        name: one of :func:`sources`, upper case and hyphens allowed.
        split: ``train``, ``test`` or what else the set has; scikit-learn's sets have no splits, there the default gives
            all rows (``all``), which a note says.
        max_samples: at most so many rows, drawn uniformly without replacement (not stratified) after ``classes`` took
            effect; their order is that of the source. The draw is a function of the data's labels and ``seed``, so the
            same data gives the same rows on both sides of a distance.
        seed: of the draw.
        classes: keep these classes only, by label or by name.
        data_root: folder of data sets, looked in first.
        download: whether to fetch what is not there.
        options: of the set, and ``min_class_size`` (drop smaller classes, with a warning and a count).

    Returns:
        The data set; ``ids`` are positions in the split.

    Raises:
        ValueError: an unknown name, split, class or option.
        FileNotFoundError: the data are not there and could not be downloaded.
    """
    key = name.lower().replace("-", "_")
    source = SOURCES.get(key)
    if source is None:
        raise ValueError(f"no data set named {name!r}; there are {', '.join(SOURCES)}")
    selection = Selection(max_samples, seed, classes, options.pop("min_class_size", None))
    unknown = sorted(set(options) - set(source.options))
    if unknown:
        raise ValueError(f"load({name!r}) does not take {unknown}; its options are {list(source.options) or 'none'}")
    split, notes = _resolve_split(key, split, source)
    request = Request(key, split, search_roots(data_root), download, options)
    for reader in source.readers:
        rows = reader(request)
        if rows is not None:
            return build(replace(rows, name=key, notes=(*notes, *rows.notes)), selection)
    raise FileNotFoundError(not_found(request))


def _resolve_split(name: str, split: str, source: Source) -> tuple[str, tuple[str, ...]]:
    """The split to read; the default ``train`` of a set without splits is all of it, with a note."""
    if split in source.splits:
        return split, ()
    if source.splits == ("all",) and split == "train":
        return "all", (f"{name} has no splits: all rows",)
    raise ValueError(f"{name} has the splits {list(source.splits)}, got split={split!r}")
