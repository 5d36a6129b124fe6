"""The data sets of a task with many: from entries of the config to sources that workers load."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otdd_flash.cli.config import DatasetConfig, FeaturesConfig, ScreenConfig, SetFeaturesConfig
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
    if "as" in settings:
        settings["title"] = settings.pop("as")
    known = [field.name for field in fields(DatasetConfig) if field.name != "title"]
    unknown = sorted(map(str, set(settings) - {*known, "title"}))
    if unknown or not isinstance(settings.get("name"), str):
        what = f"has the unknown keys {unknown}" if unknown else "has no name"
        raise ValueError(f"the entry {given!r} of the data sets {what}; it takes {', '.join(('as', *known))}")
    config = _checked(settings)
    for key in ("max_samples", "data_root", "resize", "fit"):
        if getattr(config, key) is None:
            setattr(config, key, getattr(common, key))
    return title_of(config), config


def _checked(settings: dict[str, Any]) -> DatasetConfig:
    """The config of one entry, its values checked as those of source and target are.

    Raises:
        ValueError: a value of another type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetConfig), settings))
    except OmegaConfBaseException as error:
        raise ValueError(
            f"{error.full_key or error.key} of {settings['name']}: {str(error).splitlines()[0]}"
        ) from error
    assert isinstance(found, DatasetConfig)
    return found


def sources(
    entries: Sequence[Any],
    common: Common,
    features: SetFeaturesConfig,
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
    if isinstance(features, FeaturesConfig) and (features.fit_on != "source" or features.target_embedder is not None):
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
    leading = settings.get("as") or settings.get("title")
    if leading:  # many files cannot share one name: it leads theirs
        short = [f"{leading} {title}" for title in short]
    settings.pop("title", None)
    return [{**settings, "name": kind, "path": path, "as": title} for path, title in zip(found, short, strict=True)]


def target_source(config: DatasetConfig, common: Common, features: SetFeaturesConfig, device: str) -> SetSource:
    """The set that others are compared with; features are fitted on it."""
    from otdd_flash.matrix import SetSource

    kind, colon, path = config.name.partition(":")
    if colon:
        config = replace(config, name=kind, path=path)
    return SetSource(title_of(config), Loader(config, common.seed, features, None, device))


def make_screen(config: ScreenConfig) -> Screen | None:
    """The screen that the config asks for, if any.

    Raises:
        ValueError: settings of a screen that is not asked for.
    """
    from otdd_flash.screening import Screen

    if config.keep is not None:
        return Screen(**asdict(config))
    changed = [key for key, value in asdict(config).items() if value != getattr(ScreenConfig(), key)]
    if changed:
        raise ValueError(f"screen.{changed[0]} needs screen.keep, which says how many get the full distance")
    return None


@dataclass(frozen=True)
class Loader:
    """Loads one set and makes its features; small enough to be sent to workers."""

    config: DatasetConfig
    seed: int
    features: SetFeaturesConfig
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


def _fits(features: SetFeaturesConfig) -> bool:
    """Whether the features depend on a set that they are fitted on."""
    chain = features.embedder if isinstance(features.embedder, list) else [features.embedder]
    fitted = any("pca" in str(part) or part == "table" for part in chain)
    return fitted or (features.scaling == "standardize" and features.mean is None)


def title_of(config: DatasetConfig) -> str:
    """A name from what the entry chooses: its title, or the file or set with split and classes."""
    if config.title is not None:
        return config.title
    classes = None if config.classes is None else "classes " + ",".join(map(str, config.classes))
    name = config.name if config.path is None else _file_title(config.path)
    return " ".join(part for part in (name, config.split, classes) if part)


def _file_title(path: str) -> str:
    """What load calls a set from ``path``: the file's name without the ending of its kind."""
    return re.sub(r"\.(npz|csv|parquet)(\.\w+)?$", "", Path(path).name) or path
