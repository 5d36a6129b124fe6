"""Draws rows from streams of samples of unknown length by a seeded reservoir."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from otdd_flash.data.classes import is_missing, plain
from otdd_flash.data.decoding import SampleError, reading_sample
from otdd_flash.data.pictures import gather
from otdd_flash.data.rows import Draw, Rows
from otdd_flash.data.sizes import PictureSize
from otdd_flash.errors import warn

STREAM_LIMIT = 100_000


def stream_rows(
    pairs: Iterable[tuple[Any, Any]],
    draw: Draw,
    *,
    name: str,
    class_names: Sequence[str] | Mapping | None = None,
    size: PictureSize | None = None,
    join: Callable[[list[Any], np.ndarray], Any] | None = None,
) -> Rows:
    """Rows drawn from a stream of (features, label) by reservoir sampling (Vitter 1985, algorithm R).

    Every labelled sample that is read has the same chance; the draw is a function of ``seed`` and of the order of the
    stream. At most ``max_samples`` samples are in memory.

    Args:
        pairs: features and label, one sample at a time.
        draw: size of the reservoir (``None`` keeps all, up to the limit), seed, limit and classes.
        name: for messages and results.
        class_names: by label.
        size: to bring pictures to.
        join: features of samples, and their positions, to what :func:`build` takes; default :func:`gather`.

    Raises:
        ValueError: a stream that is still going at the limit although neither ``max_samples`` nor ``limit`` was given.
    """
    wanted = _class_filter(draw.classes, class_names)
    chance = random.Random(draw.seed)
    kept: list[tuple[int, Any, Any]] = []
    seen = unlabelled = 0
    for position, (features, label) in enumerate(_limited(pairs, draw, name)):
        label = plain(label)
        if is_missing(label):
            unlabelled += 1
            continue
        if not wanted(label):
            continue
        seen += 1
        if draw.max_samples is None or len(kept) < draw.max_samples:
            kept.append((position, features, label))
            continue
        slot = int(chance.random() * seen)
        if slot < draw.max_samples:
            kept[slot] = (position, features, label)
    if not kept:
        raise ValueError(f"{name}: the stream gave no labelled sample of the wanted classes ({unlabelled} unlabelled)")
    kept.sort(key=lambda sample: sample[0])
    positions = np.array([position for position, _, _ in kept])

    def fetch(index: np.ndarray) -> Any:
        items = [kept[i][1] for i in index.tolist()]
        return gather(items, size) if join is None else join(items, positions[index])

    drawn = f"{len(kept)} of {seen} streamed samples drawn by a reservoir (seed {draw.seed})"
    return Rows(
        labels=[label for _, _, label in kept],
        fetch=fetch,
        name=name,
        class_names=class_names,
        positions=positions,
        dropped={"unlabelled": unlabelled} if unlabelled else {},
        notes=(drawn,) if seen > len(kept) else (),
    )


def _limited(pairs: Iterable[Any], draw: Draw, name: str) -> Iterator[Any]:
    """The stream up to the limit; what happens there depends on what was asked for."""
    limit = draw.limit or STREAM_LIMIT
    stream = _named(pairs, name)
    yield from itertools.islice(stream, limit)
    if draw.limit is not None or next(stream, None) is None:
        return
    if draw.max_samples is None:
        raise ValueError(
            f"{name}: the stream has not ended after {limit} samples and no limit was given; pass max_samples= (a "
            "seeded draw), or stream_limit= (how many samples to read)"
        )
    warn(f"{name}: the draw covers the first {limit} samples of a stream that goes on; stream_limit= reads further")


def _named(pairs: Iterable[Any], name: str) -> Iterator[Any]:
    """The stream, whose error at a sample that cannot be read says which."""
    stream = iter(pairs)
    for position in itertools.count():
        try:
            with reading_sample(position):
                item = next(stream)
        except StopIteration:
            return
        except SampleError as error:
            raise ValueError(f"{name}: {error.told(f'row {position}')}") from error
        yield item


def _class_filter(
    classes: Sequence[Hashable] | None, class_names: Sequence[str] | Mapping | None
) -> Callable[[Any], bool]:
    """Whether a label is among the asked classes, by value or by name."""
    if classes is None:
        return lambda label: True
    asked = set(classes)
    names = class_names if isinstance(class_names, Mapping) else dict(enumerate(class_names or ()))
    return lambda label: label in asked or names.get(label, label) in asked
