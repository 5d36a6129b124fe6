"""Arrow columns as arrays: exact dtypes, nested lists as further axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from otdd_flash.errors import warn

_COUNTING = 20  # rows from which a column that counts them is no coincidence
ENCODE_ADVICE = (
    "encode categories as numbers (features=table on the command line, otdd_flash.data.features.table_pair in Python), "
    "and text with an embedder (text=)"
)


def table_array(table: Any, rows: np.ndarray) -> np.ndarray:
    """The columns of a ``pyarrow.Table`` side by side, ``(n, d)``; one column of arrays alone as ``(n, ...)``.

    Args:
        table: columns of numbers, or of equally long (nested) lists of numbers.
        rows: ``(n,)`` numbers of the rows in their source, for messages.

    Raises:
        ValueError: columns that are not numbers, missing values, lists of different lengths.
    """
    odd = [name for name, kind in zip(table.column_names, table.schema.types, strict=True) if not is_numeric(kind)]
    if odd:
        told = _why_not_numeric(table.column(odd[0]), rows)
        raise ValueError(
            f"columns {odd[:5]} are not numeric: {odd[0]!r} holds {told}; choose others with features=, or "
            f"{ENCODE_ADVICE}"
        )
    arrays = [column_array(table.column(i), name, rows) for i, name in enumerate(table.column_names)]
    if len(arrays) == 1 and arrays[0].ndim > 1:
        return arrays[0]
    deep = next((i for i, array in enumerate(arrays) if array.ndim > 2), None)
    if deep is not None:
        raise ValueError(
            f"column {table.column_names[deep]!r} holds arrays of shape {arrays[deep].shape[1:]}, which do not go "
            "beside other columns: name it alone with features="
        )
    counting = [name for name, array in zip(table.column_names, arrays, strict=True) if _counts_rows(array, rows)]
    if counting:
        warn(
            f"column {counting[0]!r} counts the rows and is used as a feature: if it is an index, leave it out by "
            "naming the others with features="
        )
    kinds = {array.dtype for array in arrays}
    parts = [array.reshape(len(array), -1) for array in arrays]
    return np.concatenate(parts, axis=1, dtype=kinds.pop() if len(kinds) == 1 else np.float64)


def to_frame(table: Any) -> Any:
    """A ``pyarrow.Table`` as a pandas data frame, decimals as floats."""
    import pyarrow as pa

    floats = [field.with_type(pa.float64()) if pa.types.is_decimal(field.type) else field for field in table.schema]
    return table.cast(pa.schema(floats)).to_pandas()


def column_array(column: Any, name: str, rows: np.ndarray | None = None) -> np.ndarray:
    """A column of numbers, or of equally long (nested) lists of numbers, as ``(n, ...)`` in its own dtype.

    Args:
        column: ``pyarrow.Array`` or ``ChunkedArray``.
        name: for messages.
        rows: numbers of the rows in their source, for messages; default ``0..n-1``.

    Raises:
        ValueError: missing values, lists of different lengths, or values that are not numbers.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all, or too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    rows = np.arange(len(array)) if rows is None else rows
    shape: list[int] = [len(array)]
    while _is_list(array.type):
        _refuse_missing(array.is_null(), name, rows)
        flat = array.flatten()
        if len(array) and any(length != len(flat) // len(array) for length in set(_lengths(array))):
            raise ValueError(f"column {name!r} holds lists of different lengths; bring them to one")
        shape.append(len(flat) // max(1, len(array)))
        array = flat
    _refuse_missing(array.is_null(nan_is_null=pa.types.is_floating(array.type)), name, rows)
    if not is_numeric(array.type):
        raise ValueError(f"column {name!r} holds {array.type}, not numbers; text goes through text= and an embedder")
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
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
    if _is_list(kind):
        try:
            return column_array(column, name)
        except ValueError as error:
            raise ValueError(f"label column {name!r} holds lists that are not one-hot rows: {error}") from error
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_pylist()
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)


def agreed(column: Any, decimal: str = ".") -> Any:
    """A column of text as numbers where all of it agrees: every value reads as one, and different values differently.

    Labels such as ``01`` beside ``1``, or digits with one word among them, therefore stay text.

    Args:
        column: ``pyarrow.ChunkedArray`` of strings.
        decimal: point or comma of the numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = column if decimal == "." else pc.replace_substring(column, decimal, ".")
    values = numbers.unique().drop_null()
    whole, real = (
        len(values) > 0 and pc.all(pc.match_substring_regex(values, rf"^-?(0|[1-9]\d*){tail}$")).as_py()
        for tail in ("", r"(\.\d+)?([eE][+-]?\d+)?")
    )
    if not real:
        return column
    kind = pa.int64() if whole else pa.float64()
    try:
        return numbers.cast(kind) if len(values.cast(kind).unique()) == len(values) else column
    except pa.ArrowInvalid:  # integers beyond 64 bits
        return column


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is that of strings, of any of the three layouts."""
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_numeric(kind: Any) -> bool:
    """Whether values of an Arrow type are numbers, or (nested) lists of them; a column without any value may be."""
    import pyarrow as pa

    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    while _is_list(kind):
        kind = kind.value_type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _lengths(array: Any) -> np.ndarray:
    """Lengths of the lists."""
    import pyarrow.compute as pc

    return pc.list_value_length(array).to_numpy(zero_copy_only=False)


def _refuse_missing(missing: Any, name: str, rows: np.ndarray) -> None:
    """Features must be complete; ``missing`` is a mask over the values, as many for each row."""
    if not missing.true_count:
        return
    mask = missing.to_numpy(zero_copy_only=False).reshape(len(rows), -1).any(axis=1)
    count = int(mask.sum())
    if count == len(rows):
        raise ValueError(f"column {name!r} has no value in any row; leave it out by naming the others with features=")
    raise ValueError(
        f"column {name!r} has {count} missing values (empty, null or NaN), the first in row {rows[mask.argmax()]}; "
        "drop the rows or fill them"
    )


def _counts_rows(array: np.ndarray, rows: np.ndarray) -> bool:
    """Whether a column is the number of the row, up to its start."""
    if len(rows) < _COUNTING or array.ndim > 1 or array.dtype.kind not in "iu":
        return False
    if int(array[-1]) - int(array[0]) != rows[-1] - rows[0]:  # settles most
        return False
    return bool(np.array_equal(array.astype(np.int64) - int(array[0]), rows - rows[0]))


def _why_not_numeric(column: Any, rows: np.ndarray) -> str:
    """What a column that is not numeric holds, with the first value that is no number and a way out that fits it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_struct(kind):
        return f"structs with the fields {[field.name for field in kind]}: make each a column of its own"
    if not is_text(kind):
        return "categories" if pa.types.is_dictionary(kind) else str(kind)
    for row, value in zip(rows.tolist(), column.to_pylist(), strict=True):
        try:
            float(value or 0)
        except ValueError:
            hint = ""
            if value.lower() in ("na", "n/a", "nan", "null", "none", "?", "-", "."):
                hint = f" (for missing in a csv file: na_values=[{value!r}])"
            elif value.count(",") == 1 and value.replace(",", "").lstrip("-").isdigit():
                hint = " (for a decimal comma in a csv file: decimal=',')"
            return f"text, as {value[:40]!r} in row {row}{hint}"
    return "numbers written as text"
