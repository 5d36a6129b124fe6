"""Features of a pair: one embedder and one scaling for both sides, recorded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_path, check_size, check_type
from otdd_flash.data.features import cache as store
from otdd_flash.data.features.embedders import AnyDataset, Batching, Embedder, resolve_embedder
from otdd_flash.data.features.modules import ModuleEmbedder
from otdd_flash.data.features.scaling import ScalingName, Standardizer, unit_rows
from otdd_flash.data.unembedded import TableDataset, TextDataset
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

_SIDES = ("source", "target", "both")
_SHOWN = 16


@dataclass
class FeatureRecord:
    """What was done to the features of a pair.

    Args:
        embedders: names by side, in the order they were applied.
        keys: content keys of the embedders by side, ``None`` where there is none.
        cached: by side, whether every embedding came from the disk.
        scaling: ``none``, ``standardize`` or ``l2``.
        standardizer: the constants of ``standardize``; give them to :class:`Features` to repeat the scaling.
        zero_rows: rows that had no direction under ``l2``, by side.
    """

    embedders: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, list[str | None]] = field(default_factory=dict)
    cached: dict[str, bool] = field(default_factory=dict)
    scaling: str = "none"
    standardizer: Standardizer | None = None
    zero_rows: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types; constants of more than 16 columns as their digest."""
        plain: dict[str, Any] = {"embedders": self.embedders, "keys": self.keys, "cached": self.cached}
        plain["scaling"] = {"name": self.scaling}
        if self.zero_rows:
            plain["scaling"]["zero_rows"] = self.zero_rows
        if self.standardizer is not None:
            constants = {"mean": self.standardizer.mean, "std": self.standardizer.std}
            plain["scaling"] |= {
                "fitted_on": self.standardizer.fitted_on,
                "constant_columns": self.standardizer.constant,
                **{name: _shown(tensor) for name, tensor in constants.items()},
            }
        return plain


@plain_torch_methods
@dataclass(frozen=True)
class Features:
    """How the features of two data sets are made comparable: embed, then scale.

    Args:
        embedder: ``raw``, ``table``, ``pca:<k>``, ``torchvision:<model>``, ``timm:<model>``,
            ``sentence-transformers:<model>``, a torch module, a callable, a transformer or pipeline of scikit-learn, or
            several to be applied in turn; see :func:`resolve_embedder`.
        target_embedder: for the target alone; default the same as for the source.
        picture_size: ``(h, w)`` at which picture models see their pictures; ``None`` for each model's own size.
        scaling: ``none``; ``standardize`` (zero mean, unit deviation a column); ``l2`` (unit rows: the cosine cost).
        fit_on: side that ``pca``, ``standardize`` and unfitted transformers are fitted on: ``source``, ``target``, or
            ``both`` with equal mass (transformers: rows together). A fit on one side makes the distance depend on
            which side is which.
        mean: constants for ``standardize`` instead of a fit: one number, one a channel or one a feature.
        std: the same.
        batching: batch size, device and progress of models.
        cache: folder of embeddings; ``None`` stores none, ``"default"`` is ``$OTDD_CACHE/features`` or
            ``~/.cache/otdd_flash/features``.
    """

    embedder: Any = "raw"
    target_embedder: Any = None
    picture_size: tuple[int, int] | None = None
    scaling: ScalingName = "none"
    fit_on: Literal["source", "target", "both"] = "source"
    mean: Any = None
    std: Any = None
    batching: Batching = field(default_factory=Batching)
    cache: str | Path | None = "default"

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, ("none", "standardize", "l2"))
        check_choice("fit_on", self.fit_on, ("source", "target", "both"))
        check_type("batching", self.batching, Batching, "give Batching(size=...)")
        check_path("cache", self.cache, optional=True)
        check_size("picture_size", self.picture_size)
        if (self.mean is None) != (self.std is None):
            raise ValueError("give mean and std together, or neither")
        if self.mean is not None and self.scaling != "standardize":
            raise ValueError(f"mean and std are for scaling='standardize', got scaling={self.scaling!r}")

    def apply(self, source: AnyDataset, target: AnyDataset) -> tuple[LabeledDataset, LabeledDataset, FeatureRecord]:
        """Both data sets with their new features, and the record.

        Raises:
            TypeError: a side that is no data set.
            ValueError: texts without a text embedder, widths that differ, features that are not finite.
        """
        for side, dataset in (("source", source), ("target", target)):
            if not isinstance(dataset, AnyDataset):
                raise TypeError(
                    f"{side} must be a LabeledDataset, a TextDataset or a TableDataset, got {type(dataset).__name__}: "
                    "make one with otdd_flash.from_arrays(X, y) and its like, or otdd_flash.load"
                )
        record = FeatureRecord(scaling=self.scaling)
        first = self._chain(self.embedder, "embedder")
        second = first if self.target_embedder is None else self._chain(self.target_embedder, "target_embedder")
        a, b = self._embed_pair(source, target, first, second, record)
        if a.d != b.d:
            raise ValueError(
                f"{a.name} has {a.d} features and {b.name} has {b.d}: use one embedder for both, load pictures with "
                "resize=(h, w), or project each side on components of its own (embedder and target_embedder 'pca:<k>', "
                "which matches axes by their rank alone)"
            )
        if self.scaling == "standardize":
            scale = self._standardizer(a, b)
            record.standardizer = scale
            return scale(a), scale(b), record
        if self.scaling == "l2":
            a, record.zero_rows["source"] = unit_rows(a)
            b, record.zero_rows["target"] = unit_rows(b)
        return a, b, record

    def _chain(self, spec: Any, argument: str) -> list[Embedder]:
        """The embedders of one side; picture models among them at ``picture_size``.

        Raises:
            ValueError: a ``picture_size`` without a model that takes it.
        """
        chain = resolve_embedder(spec, argument=argument)
        if self.picture_size is None:
            return chain
        models = [embedder for embedder in chain if isinstance(embedder, ModuleEmbedder)]
        if not models:
            raise ValueError(f"picture_size={self.picture_size} is for picture models, got {argument}={spec!r}")
        return [e.at_size(self.picture_size) if e is models[0] else e for e in chain]

    def _embed_pair(
        self,
        source: AnyDataset,
        target: AnyDataset,
        first: list[Embedder],
        second: list[Embedder],
        record: FeatureRecord,
    ) -> tuple[LabeledDataset, LabeledDataset]:
        """Both sides through their embedders; one that learns does so on the side ``fit_on``."""
        sides: dict[str, AnyDataset] = {"source": source, "target": target}
        chains = {"source": list(first), "target": list(second)}
        for side in sides:
            record.embedders[side], record.keys[side], record.cached[side] = [], [], bool(chains[side])
        for position in range(max(len(first), len(second))):
            current = {side: chains[side][position] for side in sides if position < len(chains[side])}
            for side, embedder in current.items():
                _usable(sides[side], embedder)
            if first is second:
                fit_on = sides.values() if self.fit_on == "both" else [sides[self.fit_on]]
                current = dict.fromkeys(sides, current["source"].seen(*sides.values()).fitted(*fit_on))
            else:
                current = {side: embedder.fitted(sides[side]) for side, embedder in current.items()}
            for side, embedder in current.items():
                sides[side], hit = embed_one(sides[side], embedder, self.batching, self._folder())
                record.embedders[side].append(embedder.name)
                record.keys[side].append(embedder.key)
                record.cached[side] &= hit
        a, b = (_with_numbers(dataset) for dataset in sides.values())
        return a, b

    def _standardizer(self, a: LabeledDataset, b: LabeledDataset) -> Standardizer:
        """Constants that were given, or fitted on the named side."""
        if self.mean is not None:
            return Standardizer.given(self.mean, self.std, a)
        chosen = {"source": [a], "target": [b], "both": [a, b]}[self.fit_on]
        return Standardizer.fit(chosen, self.fit_on)

    def _folder(self) -> Path | None:
        """Where embeddings are kept."""
        return store.default_cache() if self.cache == "default" else None if self.cache is None else Path(self.cache)


def embed_one(
    dataset: AnyDataset, embedder: Embedder, batching: Batching, folder: Path | None
) -> tuple[LabeledDataset, bool]:
    """``dataset`` through one fitted embedder, and whether the result came from the disk.

    Raises:
        ValueError: texts for a picture model or the reverse, a width that the model does not take, or vectors that are
            not finite.
    """
    _usable(dataset, embedder)
    key = None
    if folder is not None and embedder.stored and embedder.key is not None and not isinstance(dataset, TableDataset):
        shape = getattr(dataset, "image_shape", None)
        content = f"{dataset.fingerprint}|{shape}|{embedder.name}|{embedder.key}"
        key = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    x = store.read(folder, key, len(dataset)) if folder is not None and key is not None else None
    hit = x is not None
    if x is None:
        x = _run(embedder, dataset, batching)
        if not store.is_storable(x):
            raise ValueError(f"embedder {embedder.name} gave NaN or infinite features for {dataset.name}")
        if folder is not None and key is not None:
            store.write(folder, key, x, {"embedder": embedder.name, "data": dataset.name})
    note = f"embedded by {embedder.name}: {x.shape[1]} features"
    if not isinstance(dataset, LabeledDataset):
        return dataset.with_features(x, note), hit
    moved = x.to(dataset.x.device)
    return replace(dataset, x=moved, levels=None, image_shape=None, notes=(*dataset.notes, note)), hit


def _run(embedder: Embedder, dataset: AnyDataset, batching: Batching) -> Tensor:
    """The embedder's vectors; torch's complaint about shapes becomes one that names the data set."""
    try:
        return embedder.embed(dataset, batching)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        rows = f"rows of {dataset.d} features" if isinstance(dataset, LabeledDataset) else "rows"
        shape = getattr(dataset, "image_shape", None)
        pictures = f", pictures {shape}" if shape else ""
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"embedder {embedder.name} failed on {dataset.name} ({dataset.n} {rows}{pictures}): {line}; where the "
            "shape does not fit, bring both sides to one that it takes (pictures: resize=(h, w)), or give "
            "target_embedder= too"
        ) from error


def _usable(dataset: AnyDataset, embedder: Embedder) -> None:
    """Refuse a data set of a kind that the embedder does not take."""
    texts = isinstance(dataset, TextDataset)
    if isinstance(dataset, TableDataset) and not embedder.tables:
        raise ValueError(f"{dataset.name} holds a table, {embedder.name} takes numbers: put the embedder table first")
    if texts and not embedder.texts:
        raise ValueError(f"{dataset.name} holds texts, {embedder.name} takes numbers: put a sentence embedder first")
    if embedder.texts and not texts:
        raise ValueError(
            f"{embedder.name} takes texts, {dataset.name} holds numbers: choose a picture model, pca or raw"
        )


def _with_numbers(dataset: AnyDataset) -> LabeledDataset:
    """The data set, or advice where it still holds texts."""
    if isinstance(dataset, TextDataset):
        raise ValueError(
            f"{dataset.name} holds texts: give embedder='sentence-transformers' (extra 'text'; features=sentence on "
            "the command line), which makes vectors of them"
        )
    if isinstance(dataset, TableDataset):
        raise ValueError(f"{dataset.name} holds a table: give embedder='table', which makes numbers of its columns")
    return dataset


def _shown(tensor: Tensor) -> list[float] | str:
    """Few constants as they are, many as a digest."""
    if len(tensor) <= _SHOWN:
        return tensor.tolist()
    return hashlib.blake2b(tensor.numpy().tobytes(), digest_size=16).hexdigest()
