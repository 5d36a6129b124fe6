"""The pool of a selection: several sources as one set, how many samples of each class, and the weights that allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from otdd_flash.arguments import check_datasets
from otdd_flash.checks import check_count, check_share, shown
from otdd_flash.selection.relaxed import Constraints
from otdd_flash.types import LabeledDataset

Balance = str | Mapping[str, int] | None


def count_of(n_to_select: int | float, n: int) -> int:
    """The count that ``n_to_select`` means for a pool of ``n``; a fraction is rounded down, but never to zero.

    Raises:
        ValueError: not a positive count within the pool, nor a fraction in (0, 1).
    """
    share = check_share("n_to_select", n_to_select)
    count = share if isinstance(share, int) else max(1, math.floor(share * n))
    if not 1 <= count <= n:
        raise ValueError(f"n_to_select must lie between 1 and the {n} samples of the pool, got {count}")
    return count


def stack(pool: LabeledDataset | Sequence[LabeledDataset]) -> tuple[LabeledDataset, tuple[str, ...], Any]:
    """One data set of all sources with ids ``0..n-1``, their names, and (source, original row) of each sample."""
    parts = check_datasets("pool", [pool] if isinstance(pool, LabeledDataset) else pool)
    widths = [(part.name, part.d) for part in parts]
    if len({d for _, d in widths}) > 1:
        raise ValueError(f"the sources of the pool differ in width: {widths}; bring them to one first")
    names = [part.name for part in parts]
    sources = tuple(name if names.count(name) == 1 else f"{name} {i}" for i, name in enumerate(names))
    source_of = torch.cat([torch.full((part.n,), i) for i, part in enumerate(parts)])
    row_of = torch.cat([torch.arange(part.n) if part.ids is None else part.ids.cpu() for part in parts])
    ids = torch.arange(len(source_of), device=parts[0].x.device)
    if len(parts) == 1:
        return replace(parts[0], ids=ids), sources, (source_of, row_of)
    total = len(source_of)
    weights = None
    if any(part.weights is not None for part in parts):
        weights = torch.cat([part.normalised_weights * part.n / total for part in parts])
    offsets = [sum(part.num_classes for part in parts[:i]) for i in range(len(parts))]
    return (
        LabeledDataset(
            x=torch.cat([part.x for part in parts]),
            y=torch.cat([part.y + offset for part, offset in zip(parts, offsets, strict=True)]),
            class_names=tuple(f"{s}/{c}" for s, part in zip(sources, parts, strict=True) for c in part.class_names),
            weights=weights, ids=ids, name=" + ".join(sources),
            levels=parts[0].levels if len({part.levels for part in parts}) == 1 else None,
            image_shape=parts[0].image_shape if len({part.image_shape for part in parts}) == 1 else None,
        ),
        sources,
        (source_of, row_of),
    )  # fmt: skip


def constrain(pool: LabeledDataset, count: int, balance: Balance) -> tuple[Constraints, list[int]]:
    """Caps that make a choice of ``count`` samples a vertex, with its number of samples from each group."""
    a = pool.normalised_weights
    quotas = _quotas(pool, count, balance)
    groups = torch.zeros_like(pool.y) if balance is None else pool.y
    mean = torch.zeros(len(quotas), dtype=a.dtype, device=a.device).index_add_(0, groups, a)
    mean /= torch.bincount(groups, minlength=len(quotas))
    masses = torch.tensor(quotas, dtype=a.dtype, device=a.device) / count
    return Constraints(a / mean[groups] / count, groups, masses), quotas


def _quotas(pool: LabeledDataset, count: int, balance: Balance) -> list[int]:
    """How many samples each group gives."""
    sizes = pool.class_counts.tolist()
    if balance is None:
        return [count]
    if isinstance(balance, Mapping):
        unknown = sorted(map(str, set(balance) - set(pool.class_names)))
        if unknown:
            raise ValueError(f"balance names classes that the pool has not: {unknown}; it has {pool.class_names}")
        quotas = [check_count(f"balance of {name}", balance.get(name, 0), least=0) for name in pool.class_names]
        if sum(quotas) != count or any(q < 0 or q > s for q, s in zip(quotas, sizes, strict=True)):
            raise ValueError(
                f"balance asks for {dict(zip(pool.class_names, quotas, strict=True))}, which must sum to n_to_select = "
                f"{count} and stay within {dict(zip(pool.class_names, sizes, strict=True))}"
            )
        return quotas
    if not isinstance(balance, str) or balance != "classes":
        raise ValueError(f"balance must be None, 'classes' or counts by class name, got {shown(balance)}")
    quotas = [0] * len(sizes)
    while sum(quotas) < count:
        # one more for the class that has given least so far: equal shares, the small classes' rest goes to the others
        open_classes = [c for c, size in enumerate(sizes) if quotas[c] < size]
        quotas[min(open_classes, key=lambda c: (quotas[c], c))] += 1
    return quotas
