"""Pictures in one folder a class: which folders are the classes, which files are read, what was left out by reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from otdd_flash.data.decoding import FORMATS, picture_endings
from otdd_flash.data.pictures import stack_pictures
from otdd_flash.data.rows import Rows
from otdd_flash.data.sources import Request, find_path
from otdd_flash.errors import warn

_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
_SYSTEM = ("@eadir", "#recycle", "__macosx", "thumbs.db", "desktop.ini", "$recycle.bin", "system volume information")


@dataclass
class Walk:
    """A walk over folders that follows links and counts what it leaves out.

    Args:
        left_out: files that are not read, by reason.
        endings: endings of the files that are no pictures.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)

    def pictures(self, folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
        """The pictures in a folder and in the folders inside it, in the order of their names.

        Args:
            folder: where to start.
            above: device and inode of the folders that lead here.
        """
        about = folder.stat()
        here = (about.st_dev, about.st_ino)
        if here in above:
            self.left_out["link to a folder above it"] += 1
            return
        for path in self.visible(folder):
            if path.is_dir():
                yield from self.pictures(path, (*above, here))
            elif self.is_picture(path):
                yield path

    def visible(self, folder: Path) -> list[Path]:
        """What is in a folder, in the order of names, but hidden entries and those that systems keep for themselves."""
        shown = []
        for name in sorted(os.listdir(folder)):
            path = folder / name
            if name.startswith(".") or name.lower() in _SYSTEM:
                inside = sum(len(files) for _, _, files in os.walk(path)) if path.is_dir() else 1
                self.left_out["hidden or system file"] += inside
            else:
                shown.append(path)
        return shown

    def is_picture(self, path: Path) -> bool:
        """Whether a file is read; if not, it is counted."""
        ending = path.suffix.lower()
        if not path.is_file():
            self.left_out["broken link" if path.is_symlink() else "no plain file"] += 1
        elif ending not in picture_endings():
            self.left_out["no picture file"] += 1
            self.endings[ending or "no ending"] += 1
        else:
            return True
        return False

    def add(self, other: Walk) -> None:
        """Count what another walk left out as well."""
        self.left_out += other.left_out
        self.endings += other.endings

    def told(self) -> str:
        """What was left out, in words."""
        rest = Counter({reason: count for reason, count in self.left_out.items() if reason != "no picture file"})
        counts = [*self.endings.most_common(5), *rest.items()]
        others = self.left_out.total() - sum(count for _, count in counts)
        return ", ".join(f"{count} {what}" for what, count in [*counts, ("others", others)] if count) or "no file"


def read_imagefolder(request: Request) -> Rows:
    """Pictures in one folder a class, under ``path/split`` where that is a split, else under ``path``.

    Raises:
        ValueError: no pictures, or folders that could be splits as well as classes.
    """
    root = find_path(request, folder=True)
    base = _class_root(root, request.split)
    walk, files, bare = Walk(), [], {}
    for path in walk.visible(base):
        if path.is_dir():
            inside = Walk()
            found = [(picture, path.name) for picture in inside.pictures(path)]
            files += found
            if not found:
                bare[path.name] = inside.told()
            walk.add(inside)
        elif walk.is_picture(path):
            walk.left_out["picture outside the class folders"] += 1
    notes = _notes(base, bare, walk, bool(files))
    size = request.options.get("resize")
    return Rows(
        labels=[label for _, label in files],
        fetch=lambda index: stack_pictures((files[i][0] for i in index.tolist()), size),
        name=root.name,
        origins=[str(path) for path, _ in files],
        dropped=dict(walk.left_out),
        notes=notes,
    )


def _notes(base: Path, bare: dict[str, str], walk: Walk, found: bool) -> tuple[str, ...]:
    """Remarks on what was left out; a class folder that gives no picture is worth a warning.

    Raises:
        ValueError: no picture at all.
    """
    empty = ", ".join(f"{name!r} ({told})" for name, told in bare.items())
    if not found:
        there = f"; there are {empty}" if bare else f"; it holds {walk.told()}" if walk.left_out else ""
        raise ValueError(
            f"no pictures in class folders under {base}: expected {base.name}/<class>/<picture>.png{there} (formats "
            f"that are read: {', '.join(FORMATS)})"
        )
    notes = (f"left out of {base.name}: {walk.told()}",) if walk.left_out else ()
    if not bare:
        return notes
    said = f"{len(bare)} class folders without a picture that is read: {empty}"
    warn(f"{base}: {said}; convert their files, or take the folders away")
    return (*notes, said)


def _class_root(root: Path, split: str) -> Path:
    """The folder whose folders are the classes: ``root/split`` where that is a split, or ``root`` itself.

    Raises:
        ValueError: no such split, or a folder of that name that could be a split as well as a class.
    """
    held = {path.name: _holds(path) for path in Walk().visible(root) if path.is_dir()}
    others = [name for name, (beside, below) in held.items() if (beside or below) and name.lower() not in _SPLITS]
    splits = [name for name, (_, below) in held.items() if below and name.lower() in _SPLITS]
    if split == "all":
        if splits and not others:
            warn(
                f"{root}: with split='all' the classes are its folders {sorted(held)}, which look like splits; name "
                "one of them as the split to have the folders inside it as classes"
            )
        return root
    if split not in held:
        if split == "train" and (others or not splits):
            return root
        raise ValueError(f"{root} has no folder {split!r} for that split" + (f"; it has {splits}" if splits else ""))
    beside, below = held[split]
    if split != "train" or (below and (not others or splits != [split])):
        return root / split
    if others and (beside or not below):
        return root
    if not others and not beside:
        return root / split
    raise ValueError(
        f"{root}: is {split!r} a split or a class? {_ambiguous(split, others)}; pass split='all' to have the folders "
        f"{sorted(held)} as the classes, or path={str(root / split)!r} to read that folder alone"
    )


def _ambiguous(split: str, others: list[str]) -> str:
    """Why a folder could be both."""
    if others:
        return f"It holds folders of pictures, and {others} beside it hold pictures as well"
    return "It holds pictures, but no class folders with pictures"


def _holds(folder: Path) -> tuple[bool, bool]:
    """Whether pictures are in a folder itself, and in folders inside it; no further than the first of each."""
    walk = Walk()
    entries = walk.visible(folder)
    beside = any(not path.is_dir() and walk.is_picture(path) for path in entries)
    return beside, any(next(walk.pictures(path), None) is not None for path in entries if path.is_dir())
