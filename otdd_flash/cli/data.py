"""The data sets of a config: loaded, named in few words, and brought to comparable features."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from otdd_flash.cli.config import DatasetConfig, SetFeaturesConfig
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.data import TableDataset, TextDataset
    from otdd_flash.data.features import FeatureRecord, Features

log = logging.getLogger("otdd")


def load_side(
    side: DatasetConfig, seed: int, features: SetFeaturesConfig
) -> LabeledDataset | TextDataset | TableDataset:
    """The data set that one side of the config describes, under its title; a table where ``features`` begin with that.

    Raises:
        ValueError: a key given twice.
    """
    from otdd_flash.data import load

    own = ("name", "title", "options")
    given = {key: value for key, value in asdict(side).items() if key not in own and value is not None}
    repeated = sorted(given.keys() & side.options.keys())
    if repeated:
        raise ValueError(f"options.{repeated[0]} of {side.name} is a key of its own: give {repeated[0]} once")
    dataset = load(side.name, seed=seed, table=takes_tables(features), **given, **side.options)
    log.info("%r", dataset)
    return dataset if side.title is None else replace(dataset, name=side.title)


def side_title(dataset: LabeledDataset, side: DatasetConfig) -> str:
    """What a side is, in few words: its title, or its name with the split and classes that the config chooses."""
    if side.title is not None:
        return side.title
    classes = None if side.classes is None else "classes " + ",".join(map(str, side.classes))
    return " ".join(part for part in (dataset.name, side.split, classes) if part)


def takes_tables(config: SetFeaturesConfig) -> bool:
    """Whether the first embedder is that of tables."""
    return _listed(config.embedder)[:1] == ["table"]


def make_features(
    config: SetFeaturesConfig, device: str, progress: bool, *, seen: Sequence[Any] = (), fixed: bool = False
) -> Features:
    """What the config does to the features of both sides; ``weight`` belongs to the cost.

    Args:
        config: of the features.
        device: of models.
        progress: whether models show it.
        seen: further sets with categories that tables must know.
        fixed: tables are encoded as ``seen`` has them, whatever they are compared with.
    """
    from otdd_flash.data.features import Batching, Features, TableEmbedder

    given = {key: value for key, value in asdict(config).items() if key not in ("weight", "batch_size")}
    given["picture_size"] = None if config.picture_size is None else tuple(config.picture_size)
    for side in ("embedder", "target_embedder"):
        if given.get(side) is not None:
            given[side] = [_model(part) if _is_model(part) else part for part in _listed(given[side])]
    if seen and takes_tables(config):
        table = TableEmbedder().fitted(*seen) if fixed else TableEmbedder().seen(*seen)
        given["embedder"] = [table, *given["embedder"][1:]]
    return Features(**given, batching=Batching(config.batch_size, device, progress))


def _listed(embedder: Any) -> list[Any]:
    """The embedders in turn."""
    return list(embedder) if isinstance(embedder, list) else [embedder]


def _is_model(name: Any) -> bool:
    """Whether an embedder has weights to be read."""
    models = ("torchvision", "timm", "sentence-transformers", "efficientnet-lite0")
    return isinstance(name, str) and name.partition(":")[0] in models


@lru_cache(maxsize=4)
def _model(name: str) -> Any:
    """A model by its name, read once however many sets it embeds."""
    from otdd_flash.data.features.embedders import resolve_embedder

    (found,) = resolve_embedder(name)
    return found


def features_row(record: FeatureRecord) -> str | None:
    """What was done to the features, for the table; ``None`` for nothing."""
    sides = [", ".join(record.embedders[side]) or "raw" for side in ("source", "target")]
    kept = [side for side, cached in record.cached.items() if cached]
    words = [] if sides == ["raw", "raw"] else [" and ".join(dict.fromkeys(sides))]
    if record.scaling != "none":
        words.append(f"scaling {record.scaling}")
    if kept:
        words.append(f"{' and '.join(kept)} from the cache")
    return ", ".join(words) or None
