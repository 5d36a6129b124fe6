"""What a registry entry is, where files are looked for, and readers of the forms that come without torchvision."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.data.rows import Rows
from otdd_flash.data.unembedded import Texts
from otdd_flash.errors import optional_import


@dataclass(frozen=True)
class Request:
    """What is asked of a source: the split, the folders to look in, whether to download, and its own options."""

    name: str
    split: str
    roots: tuple[Path, ...]
    download: bool = True
    options: dict[str, Any] = field(default_factory=dict)


Reader = Callable[[Request], "Rows | None"]


@dataclass(frozen=True)
class Source:
    """One loadable set: its readers are tried in turn, and the first that finds the data gives the rows.

    Args:
        about: one line for listings.
        readers: each gives rows, or ``None`` where its form is not there.
        splits: those that exist; ``("all",)`` for a set without splits, empty where the source itself knows.
        options: keyword arguments that :func:`otdd_flash.load` passes on.
    """

    about: str
    readers: tuple[Reader, ...]
    splits: tuple[str, ...] = ("train", "test")
    options: tuple[str, ...] = ()


def search_roots(data_root: str | Path | None) -> tuple[Path, ...]:
    """Folders to look in, first to last: ``data_root``, ``$OTDD_DATA``, torch's cache, Debian's data sets.

    Raises:
        ValueError: a ``data_root`` that is not a folder.
    """
    roots = []
    if data_root is not None:
        roots.append(Path(data_root).expanduser())
        if not roots[0].is_dir():
            raise ValueError(f"data_root={str(data_root)!r} is not a folder")
    if os.environ.get("OTDD_DATA"):
        roots.append(Path(os.environ["OTDD_DATA"]).expanduser())
    return (*roots, cache_root(), Path("/usr/share/datasets"))


def cache_root() -> Path:
    """Where downloads go: ``$TORCH_HOME/datasets``, by default ``~/.cache/torch/datasets``."""
    home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch"
    return Path(home).expanduser() / "datasets"


def not_found(request: Request, reason: str = "downloading is off") -> str:
    """One line: what is missing, where it was looked for, why no download helped, what works offline."""
    places = ", ".join(str(root) for root in request.roots)
    return (
        f"{request.name} (split {request.split!r}) is not under {places}, and {reason}; put its files into one of "
        "these folders (data_root= or $OTDD_DATA), or take digits, wine, iris, breast_cancer, which come with "
        "scikit-learn"
    )


def find_file(roots: Sequence[Path], folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """The first of ``root/folder/name`` that exists; the root itself counts as a folder too."""
    for root in roots:
        for folder in (*folders, "."):
            for name in names:
                if (root / folder / name).is_file():
                    return root / folder / name
    return None


def find_path(request: Request, folder: bool | None = False) -> Path:
    """The path asked for, as given or under one of the data folders.

    Args:
        request: with the path.
        folder: whether it is a folder; ``None`` for either.

    Raises:
        ValueError: no path was given.
        FileNotFoundError: nothing is there.
    """
    given = request.options.get("path")
    if given is None:
        raise ValueError(
            f"load({request.name!r}) needs a path: load({request.name!r}, path=...) or {request.name}:<path>"
        )
    for candidate in (Path(given).expanduser(), *(root / str(given) for root in request.roots)):
        if (folder is not True and candidate.is_file()) or (folder is not False and candidate.is_dir()):
            return candidate
    kind = {True: "folder", False: "file", None: "file or folder"}[folder]
    raise FileNotFoundError(
        f"load({request.name!r}): there is no {kind} {str(given)!r}, here or under the data folders"
    )


@contextlib.contextmanager
def reading(path: Path, form: str) -> Iterator[None]:
    """Whatever a parser makes of a broken file becomes one error that names the file.

    Raises:
        ValueError: with the path, the form expected, what is wrong and what to do.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError):  # clear already
        raise
    except (OSError, EOFError, ValueError, KeyError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read as {form}: {_complaint(error)}; check that it is whole (size, checksum) and of "
            "that form, and write or fetch it again"
        ) from error


def _complaint(error: Exception) -> str:
    """What is wrong with a file, in a line, without a parser's advice to unpickle it."""
    line = next(iter(str(error).splitlines()), "")
    if "pickle" in line:
        return "it is damaged, of another form, or holds pickled objects, which are not read"
    if isinstance(error, MemoryError):
        return f"it asks for more memory than there is ({line or 'out of memory'})"
    return f"it has no entry {line}" if isinstance(error, KeyError) else line or type(error).__name__


def npz_file_reader(folder: str, file: str, note: str) -> Reader:
    """Reader of ``folder/file`` with ``x_{split}``, ``y_{split}`` and perhaps ``class_names``."""

    def read(request: Request) -> Rows | None:
        path = find_file(request.roots, [folder], [file])
        if path is None:
            return None
        with reading(path, "an npz archive"), np.load(path, allow_pickle=False) as archive:
            pictures, labels = archive[f"x_{request.split}"], archive[f"y_{request.split}"]
            names = archive["class_names"].tolist() if "class_names" in archive else None
        return Rows(labels, pictures.__getitem__, class_names=names, notes=(note,))

    return read


def text_reader(file: str, class_names: Sequence[str] | None = None, splits: dict[str, str] | None = None) -> Reader:
    """Reader of ``text/file``, gzipped JSON lines with ``label``, ``text`` and perhaps ``title`` and ``split``.

    Args:
        file: name.
        class_names: by label.
        splits: name in the file by split, where they differ.
    """

    def read(request: Request) -> Rows | None:
        path = find_file(request.roots, ["text"], [file])
        if path is None:
            return None
        stored = (splits or {}).get(request.split, request.split)
        with reading(path, "gzipped JSON lines"), gzip.open(path, "rt", encoding="utf-8") as stream:
            lines = [row for row in map(json.loads, stream) if request.split == "all" or row["split"] == stored]
        texts = [f"{row['title']} . {row['text']}" if row.get("title") else row["text"] for row in lines]
        note = (f"split {request.split!r} is the file's {stored!r}",) if stored != request.split else ()
        return Rows(
            labels=[row["label"] for row in lines],
            fetch=lambda index: Texts(texts[i] for i in index.tolist()),
            class_names=class_names,
            notes=note,
        )

    return read


def sklearn_reader(loader: str) -> Reader:
    """Reader of a set bundled with scikit-learn; the pictures of ``digits`` (0..16) are divided by 16."""

    def read(request: Request) -> Rows | None:
        bundle = getattr(optional_import("sklearn.datasets", needed_for=f"load({request.name!r})"), loader)()
        if "images" in bundle:
            pictures = (bundle.images / 16).astype(np.float32)
            return Rows(bundle.target, pictures.__getitem__, notes=("values 0..16 divided by 16",))
        return Rows(bundle.target, bundle.data.__getitem__, class_names=[str(name) for name in bundle.target_names])

    return read
