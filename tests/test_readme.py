"""What the README shows can be typed: its Python runs, its commands are understood, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import otdd_flash

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The lines that call ``otdd``, as a shell would split them."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("otdd ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_python_runs() -> None:
    (block,) = blocks("python")
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    result = names["result"]
    assert result.converged
    assert result.label_distances.source_target.shape == (5, 5)
    assert result.plan.map(names["target"].x).shape == names["source"].x.shape


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_are_understood(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra")
    from otdd_flash.cli.main import main

    if "--multirun" in command:  # the first job of the sweep
        command = [word.split(",")[0] for word in command if word != "--multirun"]
    shown = "" if "--help" in command else "seed: "
    assert main([*command, "--cfg", "job"]) == 0
    assert shown in capsys.readouterr().out


def test_links_lead_to_files() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).is_file(), link


def test_options_in_the_tables_exist() -> None:
    for group in ("features", "labels"):
        (table,) = re.findall(rf"^\| `{group}=` .*?\n\n", README, flags=re.MULTILINE | re.DOTALL)
        rows = [row.split("|")[1] for row in table.splitlines()[2:] if row]
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


def test_names_in_python_exist() -> None:
    for name in set(re.findall(r"`otdd\.(\w+)", README)):
        assert hasattr(otdd_flash, name), name
