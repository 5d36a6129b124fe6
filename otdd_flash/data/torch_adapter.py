"""Torch data sets, loaders and streams as a data set."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from otdd_flash.checks import check_count, check_text, shown
from otdd_flash.data.rows import Draw, build
from otdd_flash.data.sizes import PictureSize
from otdd_flash.data.streams import stream_rows
from otdd_flash.data.torch_sets import ItemKeys, class_names_of, map_rows
from otdd_flash.data.unembedded import TextDataset
from otdd_flash.errors import warn
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

_RANDOM_TRANSFORMS = (
    "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "ColorJitter", "ElasticTransform", "GaussianBlur",
    "GaussianNoise", "ScaleJitter", "MixUp", "CutMix", "JPEG",
)  # fmt: skip


@plain_torch
def from_torch(
    dataset: Any,
    *,
    keys: tuple[Any, Any] = (0, 1),
    labels: Any = None,
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
    resize: Sequence[int] | None = None,
    fit: str = "stretch",
    name: str | None = None,
    stream_limit: int | None = None,
) -> LabeledDataset | TextDataset:
    """A data set from a torch ``Dataset``, ``DataLoader`` or ``IterableDataset``.

    Labels of map-style sets are found without reading a sample, through nested ``Subset``, ``random_split`` and
    ``ConcatDataset``; the draw is settled from them and only the drawn samples are read, each with its label checked.
    A ``DataLoader`` in any plain order stands for its data set; with another sampler or its own collating it is read as
    a stream. Streams are drawn by a seeded reservoir.

    Args:
        dataset: items are ``(features, label, ...)`` or mappings; features: pictures (PIL, arrays), vectors, texts. PIL
            pictures are turned upright by their EXIF orientation; arrays no longer know how the camera was held.
        keys: position or key of features and label in an item.
        labels: ``(n,)`` labels, where those of the set should not be used.
        max_samples: at most so many samples, drawn uniformly without replacement; ``None`` for all.
        seed: of the draw.
        classes: keep these classes only, by label or by name.
        resize: ``(h, w)`` for pictures whose sizes differ.
        fit: how they get there: ``stretch``, ``pad`` or ``pad:<margin>``, as :func:`otdd_flash.load` has it.
        name: for messages and results; default the class of the set.
        stream_limit: read at most so many samples of a stream; default 100,000, with a warning on reaching it, or an
            error where ``max_samples`` is not given either.

    Returns:
        The data set, of texts a :class:`TextDataset`; ``ids`` are positions in ``dataset``.

    Raises:
        ValueError: a stream without end and without limit, sizes that differ, labels that contradict the samples.
    """
    if hasattr(dataset, "set_format") or hasattr(dataset, "_ex_iterable"):
        raise ValueError(
            "this is a Hugging Face data set: use otdd_flash.from_huggingface(dataset, image=..., label=...)"
        )
    check_text("name", name, optional=True)
    if getattr(labels, "ndim", 1) == 0 or getattr(labels, "is_meta", False):
        raise TypeError(f"labels must be one a sample, got {type(labels).__name__} without any")
    check_count("stream_limit", stream_limit, optional=True)
    if not isinstance(keys, tuple | list) or len(keys) != 2:
        raise TypeError(f"keys must be two, of the features and of the label in an item, got {shown(keys)}")
    draw = Draw(max_samples, seed, classes, limit=stream_limit)
    size = PictureSize.asked(resize, fit)
    base, samples = _opened(dataset)
    _warn_random(base)
    if samples is not None:
        if labels is not None:
            raise ValueError("labels= is for map-style data sets; a stream must carry its labels in its items")
        pairs = (ItemKeys(*keys).split(sample) for sample in samples)
        title = name or type(base).__name__
        return build(stream_rows(pairs, draw, name=title, class_names=class_names_of(base), size=size))
    if isinstance(base, torch.Tensor | dict) or not hasattr(base, "__len__") or not hasattr(base, "__getitem__"):
        raise ValueError(f"dataset must be a torch Dataset, IterableDataset or DataLoader, got {type(base).__name__}")
    return build(map_rows(base, keys=ItemKeys(*keys), labels=labels, size=size, name=name), draw)


def random_transforms(dataset: Any) -> list[str]:
    """Names of the transforms of ``dataset`` and of the sets inside it that change from call to call."""
    inner = [getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or [])]
    found = [name for part in inner if part is not None for name in random_transforms(part)]
    for attribute in ("transform", "transforms", "target_transform"):
        found += _random_inside(getattr(dataset, attribute, None))
    return list(dict.fromkeys(found))


def _random_inside(transform: Any) -> list[str]:
    """Names of random transforms in a transform or a composition of them."""
    if transform is None or isinstance(transform, str):
        return []
    if isinstance(transform, Sequence):
        return [name for part in transform for name in _random_inside(part)]
    name = type(transform).__name__
    if name.startswith("Random") or name in _RANDOM_TRANSFORMS:
        return [name]
    inside = list(transform.children()) if isinstance(transform, torch.nn.Module) else []
    parts = [getattr(transform, attribute, None) for attribute in ("transforms", "transform", "target_transform")]
    return [name for part in (*inside, *parts) if part is not transform for name in _random_inside(part)]


def _warn_random(dataset: Any) -> None:
    """Random transforms make the data, and the distance, different at every reading."""
    found = random_transforms(dataset)
    if found:
        warn(
            f"random transforms ({', '.join(found)}) change the features at every reading: the distance will not "
            "repeat; take them out, or seed torch beforehand"
        )


def _opened(dataset: Any) -> tuple[Any, Iterable[Any] | None]:
    """The data set inside a loader, and the samples where they can only be read as a stream."""
    if not isinstance(dataset, DataLoader):
        return dataset, dataset if isinstance(dataset, IterableDataset) else None
    plain = _plain_order(dataset)
    return (dataset.dataset, _samples(dataset)) if plain is None else _opened(plain)


def _plain_order(loader: DataLoader) -> Any:
    """The data set a loader stands for, where it neither repeats, weights nor recombines samples; else ``None``."""
    default = loader.collate_fn in (torch.utils.data.default_collate, torch.utils.data.default_convert)
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset if default else None
    if not default or (loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler):
        return None
    sampler = loader.sampler
    dataset: Any = loader.dataset
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(dataset, sorted(int(i) for i in sampler.indices))
    random_order = isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(dataset)
    return dataset if isinstance(sampler, SequentialSampler) or random_order else None


def _samples(loader: DataLoader) -> Iterator[Any]:
    """Single samples of the batches of a loader."""
    for batch in loader:
        if loader.batch_size is None and loader.batch_sampler is None:
            yield batch
        elif isinstance(batch, Mapping):
            yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
        else:
            yield from zip(*batch, strict=True)
