"""The data sets of a task with many: from entries of the config to sources that workers load."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from otdd_flash.cli.config import DatasetConfig, FeaturesConfig, ScreenConfig
from otdd_flash.cli.data import load_side, make_features
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.matrix import SetSource
    from otdd_flash.screening import Screen


@dataclass(frozen=True)
class Common:
    """What all entries share unless they have their own.

    Args:
        max_samples: at most so many.
        data_root: folder to look in first.
        resize: of pictures.
        seed: of draws.
        fit: how pictures are brought to ``resize``.
    """

    max_samples: int | None
    data_root: str | None
    resize: Any
    seed: int
    fit: str | None = None


def entry(given: Any, common: Common) -> tuple[str, DatasetConfig]:
    """The name in the matrix and the config of one entry: ``mnist``, ``csv:path`` or ``{name: ..., as: ..., ...}``.

    Raises:
        ValueError: an entry of another form, or an unknown key.
    """
    settings = dict(given) if isinstance(given, dict) else {"name": given}
    known = [field.name for field in fields(DatasetConfig)]
    title = settings.pop("as", None)
    unknown = sorted(set(settings) - set(known))
    if unknown or not isinstance(settings.get("name"), str):
        what = f"has the unknown keys {unknown}" if unknown else "has no name"
        raise ValueError(f"the entry {given!r} of datasets {what}; it takes {', '.join(('as', *known))}")
    config = DatasetConfig(**settings)
    for key in ("max_samples", "data_root", "resize", "fit"):
        if getattr(config, key) is None:
            setattr(config, key, getattr(common, key))
    return str(title or _title(config)), config


def sources(
    entries: Sequence[Any],
    common: Common,
    features: FeaturesConfig,
    device: str,
    *,
    fitted_on: DatasetConfig | None = None,
) -> list[SetSource]:
    """All sets of a task, each loaded and brought to its features by whoever needs it.

    Args:
        entries: as :func:`entry` takes them; a path with ``*`` is one entry for each file that matches.
        common: what they share.
        features: of all sets; what is fitted (``pca``, ``standardize`` without constants) is fitted once, for all.
        device: of embedders.
        fitted_on: the set that features are fitted on; default the first of ``entries``.

    Raises:
        ValueError: no entries, or features that name a side.
    """
    from otdd_flash.matrix import SetSource

    if not entries:
        raise ValueError("there are no data sets: name some, as [mnist,usps]")
    if features.fit_on != "source" or features.target_embedder is not None:
        raise ValueError("many sets have no sides: leave features.fit_on and features.target_embedder as they are")
    named = [entry(single, common) for given in entries for single in _matches(given)]
    first = (fitted_on or named[0][1]) if _fits(features) else None
    return [SetSource(name, Loader(config, common.seed, features, first, device)) for name, config in named]


def _matches(given: Any) -> list[Any]:
    """An entry whose path has a ``*`` as entries for the files that match, named without what their names share.

    An ``as`` of the entry leads their names.

    Raises:
        ValueError: nothing matches.
    """
    settings = dict(given) if isinstance(given, dict) else {"name": given}
    kind, colon, path = str(settings.get("name")).partition(":")
    pattern = path if colon else str(settings.get("path"))
    if "*" not in pattern:
        return [given]
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise ValueError(f"no file matches {pattern!r}")
    folder, ending = os.path.dirname(pattern.partition("*")[0]), pattern.rpartition("*")[2]
    titles = [os.path.relpath(path, folder or ".") for path in found]
    short = [title.removesuffix(ending) or title for title in titles]
    if settings.get("as"):  # many files cannot share one name: it leads theirs
        short = [f"{settings['as']} {title}" for title in short]
    return [{**settings, "name": kind, "path": path, "as": title} for path, title in zip(found, short, strict=True)]


def target_source(config: DatasetConfig, common: Common, features: FeaturesConfig, device: str) -> SetSource:
    """The set that others are compared with; features are fitted on it."""
    from otdd_flash.matrix import SetSource

    return SetSource(_title(config), Loader(config, common.seed, features, None, device))


def make_screen(config: ScreenConfig) -> Screen | None:
    """The screen that the config asks for, if any."""
    from otdd_flash.screening import Screen

    return None if config.keep is None else Screen(**asdict(config))


@dataclass(frozen=True)
class Loader:
    """Loads one set and makes its features; small enough to be sent to workers."""

    config: DatasetConfig
    seed: int
    features: FeaturesConfig
    first: DatasetConfig | None
    device: str

    def __call__(self) -> LabeledDataset:
        """The set with its features."""
        loaded = load_side(self.config, self.seed, self.features)
        if isinstance(loaded, LabeledDataset) and self.features.embedder == "raw" and self.features.scaling == "none":
            return loaded
        reference = loaded if self.first is None else load_side(self.first, self.seed, self.features)
        device = "cuda" if self.device.startswith("cuda") else self.device
        features = make_features(self.features, device, progress=False, seen=[reference], fixed=True)
        return features.apply(reference, loaded)[1]


def _fits(features: FeaturesConfig) -> bool:
    """Whether the features depend on a set that they are fitted on."""
    chain = features.embedder if isinstance(features.embedder, list) else [features.embedder]
    fitted = any("pca" in str(part) or part == "table" for part in chain)
    return fitted or (features.scaling == "standardize" and features.mean is None)


def _title(config: DatasetConfig) -> str:
    """A name from what the entry chooses."""
    classes = None if config.classes is None else "classes " + ",".join(map(str, config.classes))
    return " ".join(part for part in (config.name, config.split, classes) if part)
