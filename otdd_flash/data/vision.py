"""Data sets that torchvision knows, read from its folders or downloaded by it."""

from __future__ import annotations

import contextlib
import inspect
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from otdd_flash.data.rows import Rows
from otdd_flash.data.sizes import PictureSize
from otdd_flash.data.sources import Reader, Request, cache_root, not_found
from otdd_flash.data.torch_sets import map_rows
from otdd_flash.errors import MissingDependencyError, optional_import

_TIMEOUT_S = 20.0


def torchvision_reader(
    cls: str,
    splits: Mapping[str, Mapping[str, Any]],
    *,
    note: str | None = None,
    only_under: str | None = None,
    then: Reader | None = None,
    makes: str | None = None,
) -> Reader:
    """Reader of a torchvision data set.

    Args:
        cls: name of the class in ``torchvision.datasets``.
        splits: constructor arguments by split; ``"{option}"`` values are filled from the request's options.
        note: remark for the data set.
        only_under: read what is in this folder of a root and never download (a later reader has a better idea).
        makes: folder that the class makes in whatever root it looks in: it looks in none without one.
        then: reads the downloaded files instead of torchvision (which, for EMNIST, gives transposed pictures).
    """

    def read(request: Request) -> Rows | None:
        keywords = _filled(splits[request.split], request.options)
        roots = [root for root in request.roots if only_under is None or (root / only_under).is_dir()]
        if not roots:
            return None
        try:
            module = optional_import("torchvision.datasets", needed_for=f"load({request.name!r})")
        except MissingDependencyError as error:
            raise FileNotFoundError(not_found(request, f"it cannot be downloaded: {error}")) from error
        dataset = getattr(module, cls)
        size = request.options.get("resize")
        for root in roots if then is None else []:
            if makes is not None and not (root / makes).is_dir():
                continue
            with contextlib.suppress(RuntimeError, OSError):
                return _rows(dataset, root, keywords, note, size)
        if only_under is not None or not request.download:
            return None
        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        try:
            with _quick_timeout(), contextlib.redirect_stdout(sys.stderr):
                rows = _rows(dataset, root, {**keywords, "download": True}, note, size)
            return rows if then is None else then(request)
        except (RuntimeError, OSError) as error:
            line = str(error).splitlines()[0] if str(error) else ""
            raise FileNotFoundError(
                not_found(request, f"the download failed ({type(error).__name__}: {line})")
            ) from error

    return read


def _rows(cls: Any, root: Path, keywords: Mapping[str, Any], note: str | None, size: PictureSize | None = None) -> Rows:
    """Rows of the torchvision set under ``root``; nothing is downloaded unless ``keywords`` say so."""
    takes = inspect.signature(cls.__init__).parameters
    downloads = "download" in takes or any(kind.kind is kind.VAR_KEYWORD for kind in takes.values())
    if "download" in keywords and not downloads:
        raise RuntimeError(f"torchvision cannot download {cls.__name__}: its files must be fetched by hand")
    if "download" in takes:
        keywords = {"download": False, **keywords}
    rows = map_rows(cls(root=str(root), **keywords), size=size)
    return replace(rows, notes=(*rows.notes, note)) if note else rows


def _filled(keywords: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments with ``"{option}"`` replaced by the option's value."""
    return {key: value.format(**options) if isinstance(value, str) else value for key, value in keywords.items()}


@contextlib.contextmanager
def _quick_timeout() -> Iterator[None]:
    """A blocked network must fail in seconds, not hang."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
