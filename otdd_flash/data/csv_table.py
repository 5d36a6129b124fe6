"""A csv file as a table, read by pyarrow: missing values, numbers and labels are settled column by column."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otdd_flash.data.arrow import agreed, is_text
from otdd_flash.data.columns import Columns, Table, choose_columns
from otdd_flash.data.frames import arrow_table
from otdd_flash.data.sources import reading
from otdd_flash.errors import optional_import

_BLOCK = 2**24  # bytes read at a time; a row must fit


@dataclass(frozen=True)
class CsvForm:
    r"""How a csv file is written.

    Args:
        sep: between fields, one character; ``"\\t"`` for a tab.
        decimal: ``"."`` or ``","`` in numbers.
        encoding: of the file, as Python names it: ``latin-1``, ``cp1252``, ``utf-16``.
        na_values: texts that mean missing, besides an empty field.
    """

    sep: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    na_values: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.sep == "\\t":
            object.__setattr__(self, "sep", "\t")
        if not isinstance(self.sep, str) or len(self.sep) != 1 or self.sep in '"\r\n' or not self.sep.isascii():
            raise ValueError(f"sep must be one character such as ',' or ';' or '\\t', got {self.sep!r}")
        if self.decimal not in (".", ","):
            raise ValueError(f"decimal must be '.' or ',', got {self.decimal!r}")
        if self.sep == self.decimal:
            raise ValueError(f"sep and decimal are both {self.sep!r}: with a decimal comma, sep is ';' as a rule")
        try:
            "".encode(self.encoding)
        except (LookupError, TypeError) as error:
            raise ValueError(f"encoding must be one that Python knows, as 'latin-1', got {self.encoding!r}") from error
        values = [self.na_values] if isinstance(self.na_values, str) else list(self.na_values)
        object.__setattr__(self, "na_values", tuple(map(str, values)))


def read_csv_table(path: Path, form: CsvForm, **asked: Any) -> tuple[Table, Columns]:
    """A csv file with a header, and which of its columns hold what.

    Missing is an empty field and nothing else. Columns are numbers, or true and false, where all of a column is; labels
    and texts stay as they are written, but for labels that :func:`agreed` makes numbers.

    Args:
        path: of the file, compressed or not by its ending.
        form: how it is written.
        asked: as :func:`choose_columns` takes it.

    Raises:
        ValueError: a file that is none, rows with more or fewer fields than the header, columns that do not fit.
    """
    names = _header(path, form)
    named = max((i + 1 for i, name in enumerate(names) if name), default=0)
    columns = choose_columns(names[:named], **asked)
    as_text = {names[columns.label], *([names[columns.features[0]]] if columns.text else [])}
    table = _read(path, form, as_text, size=max(_BLOCK, 8 * sum(map(len, names))))
    with reading(path, "a csv table"):
        if not table.num_rows:
            raise ValueError("it has a header and no rows")
        full = [i for i in range(named, len(names)) if table.column(i).null_count < table.num_rows]
        if full:
            raise ValueError(f"column {full[0]} (counted from 0) has values and no name in the header")
    label = table.column(columns.label)
    if is_text(label.type):
        table = table.set_column(columns.label, names[columns.label], agreed(label, form.decimal))
    return arrow_table(table), columns


def _header(path: Path, form: CsvForm) -> list[str]:
    """The fields of the first line that is not empty."""
    encoding = "utf-8-sig" if form.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else form.encoding
    with reading(path, "a csv table"), _decoding(form), _opened(path) as stream:
        lines = csv.reader(io.TextIOWrapper(stream, encoding, newline=""), delimiter=form.sep)
        try:
            names = next((line for line in lines if line), [])
        except csv.Error as error:
            raise ValueError(f"its header is none ({error})") from error
        if not names:
            raise ValueError("it is empty")
    if len(names) == 1:
        other = [sep for sep in ";\t|," if sep != form.sep and sep in names[0]]
        if other:
            raise ValueError(
                f"{path} has one column, {names[0][:60]!r}, with sep={form.sep!r}; give sep={other[0]!r} where that is "
                "what separates the fields"
            )
    return names


def _read(path: Path, form: CsvForm, as_text: set[str], size: int) -> Any:
    """The file as an Arrow table; a row of another length than the header's is told with its line and counts."""
    arrow = optional_import("pyarrow.csv", needed_for="reading csv")
    string = optional_import("pyarrow", needed_for="reading csv").string()
    odd: list[Any] = []

    def keep(row: Any) -> str:
        odd.append(row)
        return "error"

    try:
        with reading(path, "a csv table"), _decoding(form), _opened(path) as stream:
            table = arrow.read_csv(
                stream,
                arrow.ReadOptions(use_threads=False, block_size=size, encoding=form.encoding),  # threads lose the line
                arrow.ParseOptions(delimiter=form.sep, newlines_in_values=True, invalid_row_handler=keep),
                arrow.ConvertOptions(
                    column_types=dict.fromkeys(as_text, string),
                    null_values=["", *form.na_values],
                    strings_can_be_null=True,
                    decimal_point=form.decimal,
                ),
            )
            raw = [field.name for field in table.schema if str(field.type) == "binary"]
            if raw:
                raise UnicodeDecodeError(form.encoding, b"", 0, 1, f"column {raw[0]!r} holds other bytes")
    except ValueError:
        if not odd:
            raise
        raise ValueError(_uneven(path, odd[0], form.sep)) from None
    return table


def _uneven(path: Path, row: Any, sep: str) -> str:
    """What is wrong with a row of another length than the header's, and what to do."""
    advice = f"quote fields that hold {sep!r}, or name another separator with sep="
    if row.actual_columns == row.expected_columns + 1:
        last_is_empty = row.text.rstrip("\r\n").endswith(sep)
        advice = (
            f"take the {sep!r} off the end of the lines, or put one at the end of the header as well"
            if last_is_empty
            else f"if lines begin with a row name, give that column a name in the header; else {advice}"
        )
    text = row.text if len(row.text) <= 60 else f"{row.text[:60]}..."
    return (
        f"{path}: line {row.number} has {row.actual_columns} fields, the header has {row.expected_columns} "
        f"({text!r}): {advice}"
    )


@contextlib.contextmanager
def _decoding(form: CsvForm) -> Iterator[None]:
    """Bytes that are not text of the encoding become an error that names the option."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, UnicodeError) or "invalid UTF8" in str(error):
            raise ValueError(
                f"{error}: it is not {form.encoding} text; name the encoding it was written in, as encoding='latin-1'"
            ) from error
        raise


def _opened(path: Path) -> Any:
    """The file, decompressed by its ending."""
    known = optional_import("fsspec.utils", needed_for="reading csv").infer_compression(path.name)
    if known is None:
        return path.open("rb")
    return optional_import("fsspec.compression", needed_for="reading csv").compr[known](path.open("rb"), mode="rb")
