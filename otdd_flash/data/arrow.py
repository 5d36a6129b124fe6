"""Arrow columns as arrays: exact dtypes, nested lists as further axes."""

from __future__ import annotations

from typing import Any

import numpy as np


def column_array(column: Any, name: str) -> np.ndarray:
    """A column of numbers, or of equally long (nested) lists of numbers, as ``(n, ...)`` in its own dtype.

    Args:
        column: ``pyarrow.Array`` or ``ChunkedArray``.
        name: for messages.

    Raises:
        ValueError: missing values, lists of different lengths, or values that are not numbers.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all, or too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    shape: list[int] = [len(array)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        _refuse_missing(array, name)
        flat = array.flatten()
        if len(array) and any(length != len(flat) // len(array) for length in set(_lengths(array))):
            raise ValueError(f"column {name!r} holds lists of different lengths; bring them to one")
        shape.append(len(flat) // max(1, len(array)))
        array = flat
    _refuse_missing(array, name)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"column {name!r} holds {kind}, not numbers; text goes through text= and an embedder")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def label_column(column: Any, name: str) -> Any:
    """A label column as an array, or as Python values where some are missing or it holds strings or lists.

    Raises:
        ValueError: lists of different lengths (several labels a sample).
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        try:
            return column_array(column, name)
        except ValueError as error:
            raise ValueError(f"label column {name!r} holds lists that are not one-hot rows: {error}") from error
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_pylist()
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)


def _lengths(array: Any) -> np.ndarray:
    """Lengths of the lists."""
    import pyarrow.compute as pc

    return pc.list_value_length(array).to_numpy(zero_copy_only=False)


def _refuse_missing(array: Any, name: str) -> None:
    """Features must be complete."""
    if array.null_count:
        row = array.is_null().to_pylist().index(True)
        raise ValueError(
            f"column {name!r} has {array.null_count} missing values, the first at {row}; drop or fill them"
        )
