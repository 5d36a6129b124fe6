from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from otdd_flash.cli.output import check_format, emit, format_bytes, format_seconds, format_table, to_json, write_json


def test_table_aligns_and_indents_further_lines() -> None:
    table = format_table("a -> b", [("value", "1.5"), ("marginal error", "1e-4"), ("notes", "one\ntwo")])
    assert table.splitlines() == [
        "a -> b",
        "",
        "value           1.5",
        "marginal error  1e-4",
        "notes           one",
        "                two",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1.02e+03 B"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (5 << 40, "5.12e+03 GiB"),
    ],
)
def test_bytes(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.004, "0.00 s"), (9.994, "9.99 s"), (59.96, "60.0 s"), (4000.4, "4000 s")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_json_is_strict_and_on_one_line_when_asked() -> None:
    record = {"value": 1.0, "names": ["a"]}
    assert json.loads(to_json(record)) == record
    assert "\n" in to_json(record)
    assert "\n" not in to_json(record, one_line=True)
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": math.nan})


def test_emit_writes_one_form_only(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"value": 2}, "title", [("value", "2")], fmt="json", one_line=True)
    assert capsys.readouterr().out == '{"value": 2}\n'
    emit({"value": 2}, "title", [("value", "2")], fmt="table", one_line=False)
    assert capsys.readouterr().out.splitlines() == ["title", "", "value  2", ""]


def test_write_json_leaves_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "run" / "result.json"
    write_json({"value": 1}, path)
    with pytest.raises(ValueError, match="JSON"):
        write_json({"value": math.inf}, path)
    assert json.loads(path.read_text()) == {"value": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"output\.format must be table or json, got 'xml'"):
        check_format("xml")
