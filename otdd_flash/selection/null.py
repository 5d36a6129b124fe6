"""The null values of a reference: what the statistic is when both samples come from it, kept between runs.

Under the null hypothesis a batch of ``m`` rows against ``n`` of the reference has the law of ``m`` rows of the
reference against ``n`` others. Random disjoint samples of ``n`` and ``m`` rows of the reference therefore stand for the
permuted splits of the pooled sample. They depend on the reference, the options and ``m`` alone, so that a gate that
sees many batches solves them once; the price is that the p-value is exact only in the limit of a large reference.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.data.features.cache import default_cache
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.selection.gate import CheckOptions
from otdd_flash.selection.permutation import drawn_weights, split_divergences
from otdd_flash.selection.pooled import epsilon_of, pooled_cost, squared_distances
from otdd_flash.selection.reservoir import Reservoir
from otdd_flash.types import LabeledDataset

_VERSION = 1  # raise it when the statistic changes
_POOL = 4  # rows that samples are drawn from, in units of max_samples


@dataclass(frozen=True, eq=False)
class NullStatistics:
    """Values ``(B,)`` of random splits, how well they are converged, and whether they were on the disk."""

    values: Tensor
    marginal_error: float
    iterations: int
    cached: bool = False


class ReferenceNull:
    """Splits of a reference, by the size of the batch.

    Args:
        reference: all of it; samples are drawn from at most four times ``max_samples`` of its rows.
        options: of the check.
        cache: folder, ``"default"`` or ``None``.
    """

    def __init__(self, reference: LabeledDataset, options: CheckOptions, cache: str | os.PathLike[str] | None) -> None:
        kept = Reservoir(_POOL * options.max_samples, f"null {options.seed}")
        kept.add(reference)
        rows = kept.dataset(reference.name)
        generator = torch.Generator().manual_seed(options.seed)
        self.rows = rows.subset(torch.randperm(rows.n, generator=generator))
        self._options = options
        folder = default_cache().with_name("checks") if cache == "default" else cache
        self._store = None if folder is None else Store(Path(folder).expanduser())
        self._known: dict[int, NullStatistics] = {}

    def sample(self, m: int) -> LabeledDataset:
        """The rows of the reference that a batch of ``m`` is compared with.

        Raises:
            ValueError: a reference that is not larger than the batch.
        """
        n = min(self._options.max_samples, self.rows.n - m)
        if n < 2:
            raise ValueError(
                f"null='reference' splits the reference into a sample and a batch of {m} rows: it has {self.rows.n}; "
                "give a larger reference, or take null='pooled'"
            )
        return self.rows.subset(range(n))

    def statistics(self, m: int) -> NullStatistics:
        """Values of random splits into a sample and a batch of ``m``, computed, remembered or read."""
        if m not in self._known:
            key = self._key(m)
            self._known[m] = self._read(key) or self._solve(m, key)
        return self._known[m]

    def _key(self, m: int) -> str:
        options = asdict(self._options)
        for gate in ("alpha", "threshold"):
            options.pop(gate)
        return content_key("null", _VERSION, self.rows.fingerprint, list(self.rows.class_names), m, options)

    def _solve(self, m: int, key: str) -> NullStatistics:
        n, weights = self.sample(m).n, self.rows.normalised_weights
        x = self.rows.x.to(torch.float64)
        x = x - x.mean(0)
        cost = pooled_cost(self.rows, squared_distances(x, x).fill_diagonal_(0.0), self._options)
        epsilon = epsilon_of(weights, cost, self._options)
        a, b = drawn_weights(weights, n, m, self._options.permutations, self._options.seed)
        found = split_divergences(cost, a, b, epsilon, tol=self._options.tol)
        null = NullStatistics(found.values.cpu(), found.marginal_error, found.iterations)
        if self._store is not None:
            record = {
                "values": null.values.tolist(),
                "marginal_error": null.marginal_error,
                "iterations": null.iterations,
            }
            try:
                self._store.write("null", key, record)
            except OSError as error:
                warnings.warn(f"null values could not be kept in {str(self._store.folder)!r}: {error}", stacklevel=4)
        return null

    def _read(self, key: str) -> NullStatistics | None:
        record = None if self._store is None else self._store.read("null", key)
        if record is None or self._store is None:
            return None
        if not _whole(record, self._options.permutations):
            warnings.warn(f"{self._store.path('null', key)} is not what was written and is computed anew", stacklevel=4)
            return None
        values = torch.tensor(record["values"], dtype=torch.float64)
        return NullStatistics(values, record["marginal_error"], record["iterations"], cached=True)


def _whole(record: dict[str, Any], permutations: int) -> bool:
    """Whether a record has what a null needs."""
    numbers = record.get("values")
    kinds = isinstance(record.get("marginal_error"), float) and isinstance(record.get("iterations"), int)
    if not (kinds and isinstance(numbers, list) and len(numbers) == permutations):
        return False
    return all(isinstance(value, float) and math.isfinite(value) for value in numbers)
