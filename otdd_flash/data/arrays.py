"""Arrays in memory as a data set."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from otdd_flash.checks import check_text, shown
from otdd_flash.data.classes import dense, refuse_repeats
from otdd_flash.data.held import hold
from otdd_flash.data.rows import Draw, Rows, build
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


@plain_torch
def from_arrays(
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    class_names: Sequence[str] | Mapping | None = None,
    name: str = "arrays",
    image_shape: Sequence[int] | None = None,
    min_class_size: int | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[Hashable] | None = None,
) -> LabeledDataset:
    """A labelled data set from features and labels in memory.

    Class ids are ``0..c-1`` in the sorted order of the labels. Memory is shared with ``X`` where no cast is needed, and
    a tensor that requires a gradient keeps its graph.

    >>> data = from_arrays([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], ["dog", "cat", None])
    >>> data.y.tolist(), data.class_names, data.dropped
    ([1, 0], ('cat', 'dog'), {'unlabelled': 1})

    Args:
        X: ``(n, d)`` features, or pictures ``(n, h, w)``, ``(n, c, h, w)``, ``(n, h, w, c)``; torch, numpy, sparse
            matrices of scipy, data frames of any library, or lists, any strides. Only the rows that are kept are read
            (of a ``numpy.memmap``, say) or made dense. Integers are cast, float64 stays, narrower floats become
            float32. 8-bit pictures become floats in [0, 1] with ``levels=255``; with two or four channels the last is
            alpha and dropped with a note. Channels are taken to be first where both outer axes are 1 or 3.
        y: ``(n,)`` labels: any hashable values, or ``(n, c)`` one-hot rows. ``-1``, ``None``, NaN and masked
            entries are unlabelled: these rows are dropped and counted in ``dropped``.
        weights: ``(n,)`` non-negative weights, normalised in float64; rows of weight zero, also after that, are
            dropped with a count.
        class_names: names by label: a sequence indexed by integer label or a mapping; default the labels themselves.
        name: for messages and results.
        image_shape: ``(h, w)``, ``(c, h, w)`` or ``(h, w, c)`` where the rows of ``X`` are flattened pictures.
        min_class_size: drop classes with fewer samples, with a warning and a count; default none is dropped.
        max_samples: at most so many rows, drawn uniformly without replacement; ``None`` for all.
        seed: of the draw.
        classes: keep these classes only, by label or by name.

    Returns:
        The data set, on the device of ``X``; of numpy, pandas and lists on the CPU.

    Raises:
        ValueError: zero rows, NaN or infinite features, lengths that differ, real-valued or multi-label targets,
            weights of the wrong length, negative, NaN or all zero, ``class_names`` with repeats.
    """
    check_text("name", name)
    if getattr(class_names, "ndim", 1) != 1:
        raise TypeError(f"class_names must be a list or a mapping of names, got {shown(class_names)}")
    features = hold(X)
    labels = dense(_beside(y, features.device))
    count = len(labels) if hasattr(labels, "__len__") and getattr(labels, "ndim", 1) != 0 else None
    if not features.shape or (count is not None and count != features.shape[0]):
        raise ValueError(f"X and y differ in length: X has shape {features.shape}, y has {count} labels")
    rows = Rows(
        labels=labels,
        fetch=features.take,
        name=name,
        class_names=refuse_repeats(class_names),
        weights=_beside(weights, features.device),
        image_shape=image_shape,
        notes=features.notes,
    )
    return build(rows, Draw(max_samples, seed, classes, min_class_size))  # type: ignore[return-value]


def _beside(values: Any, device: torch.device) -> Any:
    """A tensor on another device than the features is brought over, or refused naming both."""
    if not isinstance(values, torch.Tensor) or values.device == device:
        return values
    if "meta" in (values.device.type, device.type):
        raise ValueError(f"features are on {device} and labels or weights on {values.device}: no data to move")
    return values.to(device)
