"""The null statistics of a reference: what they are when both samples come from it, kept between runs.

Under the null hypothesis a reference's sample of ``n`` rows and a batch of ``m`` have the law of ``n + m`` rows of the
reference, split at random. A few such samples are drawn from the reference and each is split many times, by the very
function that tests a batch: epsilon, class distances and neighbors are those of ``n + m`` rows here and there. The
values depend on the reference, the options, ``n`` and ``m`` alone, so that a gate that sees many batches solves them
once.

They are exact only in the limit of a large reference. Where a feature has a heavy tail, a batch may hold rows farther
out than any of the reference; a comparison with the reference alone then rejects too often (10 % instead of 5 %, with
tables of diamonds). Therefore they only clear batches; see :class:`~otdd_flash.selection.check.DriftCheck`.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.data.features.cache import default_cache
from otdd_flash.errors import warn
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.selection.gate import CheckOptions
from otdd_flash.selection.parts import split_statistics
from otdd_flash.types import LabeledDataset

_VERSION = 2  # raise it when the statistics change
_SAMPLES = 10  # of n + m rows; the splits are shared among them


@dataclass(frozen=True, eq=False)
class NullStatistics:
    """Values ``(B,)`` of random splits by part, how well they are converged, and whether they were on the disk."""

    parts: dict[str, Tensor]
    marginal_error: float
    iterations: int
    cached: bool = False


class ReferenceNull:
    """Splits of samples of a reference, by size of sample and batch.

    Args:
        rows: of the reference.
        options: of the check.
        cache: folder, ``"default"`` or ``None``.
    """

    def __init__(self, rows: LabeledDataset, options: CheckOptions, cache: str | os.PathLike[str] | None) -> None:
        self._rows = rows
        self._options = options
        folder = default_cache().with_name("checks") if cache == "default" else cache
        self._store = None if folder is None else Store(Path(folder).expanduser())
        self._known: dict[tuple[int, int], NullStatistics] = {}

    def statistics(self, n: int, m: int) -> NullStatistics:
        """Statistics of ``B`` random splits into ``n`` and ``m`` rows, computed, remembered or read."""
        if (n, m) not in self._known:
            key = self._key(n, m)
            self._known[n, m] = self._read(key) or self._solve(n, m, key)
        return self._known[n, m]

    def _key(self, n: int, m: int) -> str:
        options = asdict(self._options)
        for gate in ("alpha", "threshold", "new_classes", "strict"):
            options.pop(gate)
        return content_key("null", _VERSION, self._rows.fingerprint, list(self._rows.class_names), n, m, options)

    def _solve(self, n: int, m: int, key: str) -> NullStatistics:
        wanted, seed = self._options.permutations, self._options.seed
        generator = torch.Generator().manual_seed(seed)
        found = []
        for k in range(min(_SAMPLES, wanted)):
            rows = torch.randperm(self._rows.n, generator=generator)[: n + m]
            splits = len(range(k, wanted, _SAMPLES))  # the first is as random as the others
            pooled = self._rows.subset(rows)
            found.append(split_statistics(pooled, n, self._options, permutations=splits - 1, seed=seed))
        parts = {name: torch.cat([sample.parts[name] for sample in found]).cpu() for name in found[0].parts}
        error = max(sample.distance.marginal_error for sample in found)
        null = NullStatistics(parts, error, max(sample.distance.iterations for sample in found))
        self._keep(null, key)
        return null

    def _keep(self, null: NullStatistics, key: str) -> None:
        if self._store is None:
            return
        parts = {name: values.tolist() for name, values in null.parts.items()}
        record = {"parts": parts, "marginal_error": null.marginal_error, "iterations": null.iterations}
        try:
            self._store.write("null", key, record)
        except OSError as error:
            warn(f"null values could not be kept in {str(self._store.folder)!r}: {error}")

    def _read(self, key: str) -> NullStatistics | None:
        record = None if self._store is None else self._store.read("null", key)
        if record is None or self._store is None:
            return None
        if not _whole(record, self._options.permutations):
            warn(f"{self._store.path('null', key)} is not what was written and is computed anew")
            return None
        parts = {name: torch.tensor(values, dtype=torch.float64) for name, values in record["parts"].items()}
        return NullStatistics(parts, record["marginal_error"], record["iterations"], cached=True)


def _whole(record: dict[str, Any], permutations: int) -> bool:
    """Whether a record has what a null needs."""
    parts = record.get("parts")
    kinds = isinstance(record.get("marginal_error"), float) and isinstance(record.get("iterations"), int)
    if not (kinds and isinstance(parts, dict) and "distance" in parts):
        return False
    return all(
        isinstance(values, list)
        and len(values) == permutations
        and all(isinstance(value, float) and math.isfinite(value) for value in values)
        for values in parts.values()
    )
