"""The registry: one entry a data set."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from otdd_flash.data.files import read_huggingface, read_npz
from otdd_flash.data.folders import read_imagefolder
from otdd_flash.data.idx import idx_reader, read_idx_files
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import (
    Reader,
    Request,
    Source,
    npz_file_reader,
    sklearn_reader,
    text_reader,
)
from otdd_flash.data.table_files import read_csv, read_parquet, table_reader
from otdd_flash.data.vision import torchvision_reader

_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_TREC = ("description", "entity", "abbreviation", "human", "location", "number")
_IDX = {"train": "train", "test": "t10k"}
_FLAG: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_WHOLE: dict[str, dict[str, Any]] = {"all": {}}


def _named(*splits: str) -> dict[str, dict[str, Any]]:
    """Splits that torchvision takes by their own names."""
    return {split: {"split": split} for split in splits}


def _vision(about: str, cls: str, splits: Mapping[str, Mapping[str, Any]], *, makes: str | None = None) -> Source:
    """A set that torchvision alone knows; ``makes`` is the folder that its class would make only to look for it."""
    return Source(about, (torchvision_reader(cls, splits, makes=makes),), tuple(splits), ("resize", "fit"))


def _emnist_names(subset: str) -> list[str]:
    """Characters by label of an EMNIST subset; merged ones are those whose two cases look alike."""
    digits, upper = list(string.digits), list(string.ascii_uppercase)
    if subset in ("digits", "mnist"):
        return digits
    if subset == "letters":
        return ["N/A", *string.ascii_lowercase]
    lower = [letter for letter in string.ascii_lowercase if subset == "byclass" or letter not in "cijklmopsuvwxyz"]
    return [*digits, *upper, *lower]


def _emnist_reader() -> Reader:
    """EMNIST from its idx files, upright (they are stored transposed, and torchvision leaves them so)."""
    subsets = ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")
    prefixes = {split: "emnist-{subset}-" + split for split in ("train", "test")}
    files = idx_reader(("emnist", "EMNIST", "EMNIST/raw"), prefixes, transpose=True)
    splits = {split: {"split": "{subset}", **flag} for split, flag in _FLAG.items()}
    fallback = torchvision_reader("EMNIST", splits, then=files)

    def read(request: Request) -> Rows | None:
        subset = request.options.setdefault("subset", "balanced")
        if subset not in subsets:
            raise ValueError(f"emnist has the subsets {list(subsets)}, got subset={subset!r}")
        rows = files(request) or fallback(request)
        return rows and replace(rows, class_names=_emnist_names(subset))

    return read


_PICTURES = {
    "mnist": Source(
        "handwritten digits, 28 x 28",
        (idx_reader(("mnist", "MNIST", "MNIST/raw"), _IDX), torchvision_reader("MNIST", _FLAG)),
    ),
    "fashion_mnist": Source(
        "clothes, 28 x 28",
        (
            idx_reader(("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"), _IDX, _FASHION),
            torchvision_reader("FashionMNIST", _FLAG),
        ),
    ),
    "kmnist": Source(
        "Japanese characters, 28 x 28",
        (idx_reader(("kmnist", "KMNIST", "KMNIST/raw"), _IDX, _KUZUSHIJI), torchvision_reader("KMNIST", _FLAG)),
    ),
    "emnist": Source("handwritten characters, 28 x 28, upright", (_emnist_reader(),), options=("subset",)),
    "usps": Source(
        "digits from envelopes, 16 x 16",
        (
            npz_file_reader("usps", "usps.npz", "zip.train/zip.test pictures (ESL)"),
            torchvision_reader("USPS", _FLAG, note="LIBSVM's smoother pictures, not those of zip.train/zip.test"),
        ),
    ),
    "cifar10": Source(
        "photographs, 3 x 32 x 32",
        (
            torchvision_reader("CIFAR10", _FLAG, only_under="cifar-10-batches-py"),
            npz_file_reader(
                "cifar10", "cifar10_train1000_test500.npz", "excerpt: the first 1,000 training and 500 test pictures"
            ),
            torchvision_reader("CIFAR10", _FLAG),
        ),
    ),
    "cifar100": _vision("photographs, 3 x 32 x 32, 100 classes", "CIFAR100", _FLAG),
    "svhn": _vision("house numbers, 3 x 32 x 32", "SVHN", _named("train", "test", "extra")),
    "stl10": _vision("photographs, 3 x 96 x 96", "STL10", _named("train", "test")),
    "semeion": _vision("handwritten digits, 16 x 16", "SEMEION", _WHOLE),
    "omniglot": _vision("characters of 50 alphabets, 105 x 105", "Omniglot", {
        "train": {"background": True}, "test": {"background": False},
    }),
    "fer2013": _vision("faces by emotion, 48 x 48", "FER2013", _named("train", "test")),
    "eurosat": _vision("satellite pictures, 3 x 64 x 64", "EuroSAT", _WHOLE),
    "pcam": _vision("tissue, 3 x 96 x 96", "PCAM", _named("train", "val", "test")),
    "gtsrb": _vision("traffic signs, sizes differ", "GTSRB", _named("train", "test")),
    "food101": _vision("dishes, sizes differ", "Food101", _named("train", "test")),
    "flowers102": _vision("flowers, sizes differ", "Flowers102", _named("train", "val", "test")),
    "oxford_pet": _vision("cats and dogs by breed, sizes differ", "OxfordIIITPet", {
        "train": {"split": "trainval"}, "test": {"split": "test"},
    }),
    "dtd": _vision("textures, sizes differ", "DTD", _named("train", "val", "test")),
    "fgvc_aircraft": _vision("aircraft, sizes differ", "FGVCAircraft", _named("train", "val", "trainval", "test")),
    "stanford_cars": _vision("cars, sizes differ", "StanfordCars", _named("train", "test")),
    "country211": _vision("photographs by country, sizes differ", "Country211", {
        "train": {"split": "train"}, "val": {"split": "valid"}, "test": {"split": "test"},
    }),
    "rendered_sst2": _vision("sentences as pictures, 448 x 448", "RenderedSST2", _named("train", "val", "test")),
    "imagenette": _vision("ten classes of ImageNet, sizes differ", "Imagenette", _named("train", "val")),
    "imagenet": _vision("1,000 classes of photographs, sizes differ", "ImageNet", _named("train", "val")),
    "sun397": _vision("scenes, sizes differ", "SUN397", _WHOLE),
    "caltech101": _vision("objects, sizes differ", "Caltech101", _WHOLE, makes="caltech101"),
    "caltech256": _vision("objects, sizes differ", "Caltech256", _WHOLE, makes="caltech256"),
    "places365": _vision("scenes, sizes differ", "Places365", {
        "train": {"split": "train-standard"}, "val": {"split": "val"},
    }),
    "lfw_people": _vision("faces by person, 3 x 250 x 250", "LFWPeople", _named("train", "test")),
}  # fmt: skip


def _table(about: str, reader: Reader) -> Source:
    """A table without splits."""
    return Source(about, (reader,), ("all",))


_TABLES = {
    "digits": _table("digits, 8 x 8 (scikit-learn)", sklearn_reader("load_digits")),
    "wine": _table("178 x 13 table (scikit-learn)", sklearn_reader("load_wine")),
    "iris": _table("150 x 4 table (scikit-learn)", sklearn_reader("load_iris")),
    "breast_cancer": _table("569 x 30 table (scikit-learn)", sklearn_reader("load_breast_cancer")),
    "letter": _table("20,000 x 16 table, 26 letters", table_reader("LetterRecognition.csv.gz", "lettr")),
    "shuttle": _table("58,000 x 9 table", table_reader("Shuttle.csv.gz", "Class")),
    "satellite": _table("6,435 x 36 table", table_reader("Satellite.csv.gz", "classes")),
    "vowel": _table("990 x 10 table", table_reader("Vowel.csv.gz", "Class")),
    "vehicle": _table("846 x 18 table", table_reader("Vehicle.csv.gz", "Class")),
    "glass": _table("214 x 9 table", table_reader("Glass.csv.gz", "Type")),
    "sonar": _table("208 x 60 table", table_reader("Sonar.csv.gz", "Class")),
    "ionosphere": _table("351 x 34 table", table_reader("Ionosphere.csv.gz", "Class")),
    "pima": _table("768 x 8 table", table_reader("PimaIndiansDiabetes.csv.gz", "diabetes")),
    "musk": _table("476 x 166 table", table_reader("musk.csv.gz", "Class")),
    "spam": _table("4,601 x 57 table", table_reader("spam.csv.gz", "type")),
}

_TEXTS = {
    "ag_news": Source(
        "news by topic",
        (text_reader("ag_news.jsonl.gz", ("World", "Sports", "Business", "Sci/Tech"), {"train": "train10k"}),),
    ),
    "trec": Source("questions by kind of answer", (text_reader("trec.jsonl.gz", _TREC),)),
    "banking77": Source("bank customers' questions by intent", (text_reader("banking77.jsonl.gz"),)),
    "sst2": Source(
        "sentences of film reviews",
        (text_reader("sst2.jsonl.gz", ("negative", "positive")),),
        ("train", "dev", "test"),
    ),
    "subj": Source("subjective and objective sentences", (text_reader("subj.jsonl.gz"),), ("all",)),
}

_FRAME = ("path", "label", "features", "text", "weights", "class_names", "image_shape")
_FILES = {
    "npz": Source("arrays in an .npz file", (read_npz,), (), ("path", "x", "y", "image_shape")),
    "csv": Source("a table, csv", (read_csv,), ("all",), (*_FRAME, "sep", "decimal", "encoding", "na_values")),
    "parquet": Source(
        "a table, Parquet (a file, or a folder of parts)",
        (read_parquet,),
        ("all",),
        (*_FRAME, "image", "picture_root", "resize", "fit"),
    ),
    "idx": Source(
        "samples and labels in idx files, as MNIST's are",
        (read_idx_files,),
        (),
        ("path", "labels", "class_names", "image_shape"),
    ),
    "imagefolder": Source("pictures, one folder a class", (read_imagefolder,), (), ("path", "resize", "fit")),
    "hf": Source(
        "a Hugging Face data set by name",
        (read_huggingface,),
        (),
        ("path", "config", "image", "text", "features", "label", "resize", "fit"),
    ),
}

SOURCES: dict[str, Source] = {**_PICTURES, **_TABLES, **_TEXTS, **_FILES}
