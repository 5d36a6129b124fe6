from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from otdd_flash.cli import info

Command = Callable[..., SimpleNamespace]
ROOT = Path(__file__).resolve().parents[2]


def test_json_record(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("info", "output=json")
    record = json.loads(outcome.out)
    assert outcome.code == 0
    assert record["versions"]["torch"] == torch.__version__
    assert record["backends"]["torch"] == "available"
    assert record["data"]["digits"] == {"all": "scikit-learn"}
    assert [device["device"] for device in record["devices"]] == [
        "cpu",
        *(f"cuda:{index}" for index in range(torch.cuda.device_count())),
    ]
    assert list(tmp_path.iterdir()) == [], "info leaves no run folder behind"


def test_table_says_the_same(otdd: Command) -> None:
    outcome = otdd("info")
    assert outcome.code == 0
    rows = {line.split("  ")[0] for line in outcome.out.splitlines()}
    assert {"versions", "devices", "backends", "data", "extras"} <= rows
    assert "digits: all in scikit-learn" in outcome.out


def test_data_sets_are_found_in_their_folder(data_root: Path) -> None:
    found = info.data_sets(str(data_root))
    assert found["mnist"] == {"train": str(data_root), "test": str(data_root)}
    assert found["kmnist"].get("test") == str(data_root)


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTDD_DATA", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    found = info.data_sets(str(tmp_path))
    assert found["usps"] == {}
    assert found["iris"] == {"all": "scikit-learn"}
    assert list(tmp_path.iterdir()) == [], "looking makes no folders"


def test_unknown_folder_is_an_error(otdd: Command) -> None:
    outcome = otdd("info", "data_root=nowhere")
    assert (outcome.code, outcome.out) == (1, "")
    assert "data_root='nowhere' is not a folder" in outcome.err


def test_extras_are_those_of_the_project() -> None:
    try:
        metadata.version("otdd-flash")
    except metadata.PackageNotFoundError:
        assert info.extras() == {}
        pytest.skip("the library is not installed as a package")
    text = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    declared = {
        line.split(" = ")[0]: re.findall(r'"([\w.-]+)', line) for line in text.strip().splitlines() if " = " in line
    }
    assert {extra: list(packages) for extra, packages in info.extras().items()} == declared


def test_missing_extra_says_how_to_get_it() -> None:
    assert (
        info._extra_line("plots", {"matplotlib": None}) == "plots: lacks matplotlib (pip install 'otdd-flash[plots]')"
    )
    assert info._extra_line("plots", {"matplotlib": "3.9"}) == "plots: installed"
