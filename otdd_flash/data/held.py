"""Features in memory, or mapped into it, of which only the rows that are kept are read, cast or made dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.arrow import table_array
from otdd_flash.data.frames import as_table, is_frame
from otdd_flash.data.matrix import as_tensor
from otdd_flash.memory import free_memory

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Held:
    """Features whose rows are taken when it is known which.

    Args:
        shape: of all of them.
        take: int64 positions (ascending) to what :func:`to_matrix` takes.
        device: where the rows are.
        notes: remarks.
    """

    shape: tuple[int, ...]
    take: Callable[[np.ndarray], Any]
    device: torch.device = _CPU
    notes: tuple[str, ...] = ()


def hold(features: Any) -> Held:
    """Features of any kind that :func:`otdd_flash.from_arrays` takes.

    Raises:
        ValueError: no numbers, ragged rows, or sparse rows that would not fit into memory.
    """
    if isinstance(features, Tensor) and features.layout != torch.strided and not features.is_nested:
        size = (features._nnz(), features.dtype.itemsize, features.device)
        return _sparse(features.shape, *size, _rows_of_sparse_tensor(features))
    if hasattr(features, "toarray") and hasattr(features, "nnz"):
        return _sparse(features.shape, features.nnz, features.dtype.itemsize, _CPU, _rows_of_sparse_matrix(features))
    if is_frame(features):
        return _frame(features)
    if not isinstance(features, np.ndarray) or features.dtype.kind == "O":
        features = as_tensor(features)
        device = features.device
        return Held(
            tuple(features.shape),
            lambda rows: features if len(rows) == len(features) else features[torch.as_tensor(rows, device=device)],
            device,
        )
    return Held(features.shape, lambda rows: features if len(rows) == len(features) else features[rows])


def _frame(frame: Any) -> Held:
    """All columns of a data frame."""
    table = as_table(frame)
    everything = list(range(len(table.names)))
    return Held((table.n, len(everything)), lambda rows: table_array(table.take(everything, rows), rows))


def _sparse(shape: Any, filled: int, itemsize: int, device: torch.device, take: Callable[[np.ndarray], Any]) -> Held:
    """Sparse rows, made dense where that fits into memory, with a note."""
    shape = tuple(map(int, shape))
    each = float(np.prod(shape[1:], dtype=float)) * itemsize

    def checked(rows: np.ndarray) -> Any:
        needed, free = len(rows) * each, free_memory(device)
        if needed > free:
            raise ValueError(
                f"X is sparse: {len(rows)} of its rows made dense, {tuple(shape[1:])} values each, take "
                f"{_size(needed)}, and {_size(free)} of memory are free; {_NARROWER}, and max_samples= draws fewer rows"
            )
        return take(rows)

    share = filled / max(1.0, float(np.prod(shape, dtype=float)))
    note = f"sparse X ({share:.2g} of its values are not zero) made dense: {_size(shape[0] * each)}; {_NARROWER}"
    return Held(shape, checked, device, (note,))


_NARROWER = "scikit-learn's TruncatedSVD (PCA of sparse rows) makes it narrower"


def _rows_of_sparse_matrix(features: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: (features if len(rows) == features.shape[0] else features.tocsr()[rows]).toarray()


def _rows_of_sparse_tensor(features: Tensor) -> Callable[[np.ndarray], Tensor]:
    def take(rows: np.ndarray) -> Tensor:
        if len(rows) == len(features):
            return features.to_dense()
        return features.to_sparse_coo().index_select(0, torch.as_tensor(rows, device=features.device)).to_dense()

    return take


def _size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
