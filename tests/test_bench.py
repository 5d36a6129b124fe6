"""The benchmark's own rules: no time on a red gate, tables only from green reports, every case registered."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
GREEN = {"problem": "P", "solver": "otdd-flash fp16", "gate": True, "ms": 2.0, "q20": 1.9, "q80": 2.1}
PEER = {**GREEN, "solver": "peer", "ms": 9.0, "q20": 8.0, "q80": 9.5, "marginal_error": 0.25}


def report(*rows: dict, **more: object) -> dict:
    case = {"summary": "s", "device": "gpu", "seconds": 1.0, "rows": list(rows)}
    machine = {"gpu": "G", "versions": {"torch": "9.9"}, "processor": "p", "threads": 1}
    return {"machine": machine, "small": False, "cases": {"c": case}, **more}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("registry", "table", "verify"):
        sys.modules.pop(name, None)


def test_a_red_gate_drops_the_time(bench) -> None:
    made = bench("registry").row("P", "S", {"ms": 1.0}, gate=False, error=0.5)
    assert made == {"problem": "P", "solver": "S", "gate": False, "error": 0.5}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (report({**GREEN, "gate": False}), "a time on a red gate"),
        (report({**GREEN, "ms": float("nan")}), "impossible times"),
        (report(), "no rows"),
        (report(GREEN, gate=[{"mode": "fp16", "gate": False}]), "gate: "),
        ({"cases": {}}, "no case was run"),
        ({"cases": {"c": {"failed": "RuntimeError: x"}}}, "failed with RuntimeError"),
    ],
)
def test_verify_finds_what_is_wrong(bench, broken: dict, message: str) -> None:
    verify = bench("verify")
    assert any(message in line for line in verify.problems_of(broken))
    assert verify.problems_of(report(GREEN, PEER)) == []


def test_the_table_goes_between_its_markers(bench, tmp_path: Path) -> None:
    table = bench("table")
    body = table.markdown(report(GREEN, PEER), "gpu")
    assert "|  | peer | 9 | 4.5 | 2.5e-01 |  |  |  |" in body
    wrong = {"problem": "P", "solver": "lost", "gate": False, "error": 380.0}
    assert "|  | lost | wrong |  |  | 3.8e+02 |  |  |" in table.markdown(report(GREEN, wrong), "gpu")
    document = "a\n<!-- measured:gpu:begin -->\nold\n<!-- measured:gpu:end -->\nb\n"
    once = table.insert(document, "gpu", body)
    assert "old" not in once
    assert table.insert(once, "gpu", body) == once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    with pytest.raises(ValueError, match="measured:cpu:begin"):
        table.insert(document, "cpu", body)
    assert "P" not in table.markdown(report(GREEN), "gpu", only="^Q").split("|---|")[1]


def test_no_table_from_a_red_report(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report({**GREEN, "gate": False})))
    command = [sys.executable, str(BENCH / "table.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "red gate" in done.stderr


def test_several_reports_make_one_table(tmp_path: Path) -> None:
    """A peer that is wrong stops nothing; another machine does."""
    wrong = {"problem": "P", "solver": "lost", "gate": False, "error": 380.0}
    first, second = report(GREEN, wrong), report({**GREEN, "problem": "Q"})
    second["cases"] = {"d": second["cases"].pop("c")}
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, made in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(made))
    command = [sys.executable, str(BENCH / "table.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| P |" in done.stdout
    assert "| Q |" in done.stdout
    second["machine"]["gpu"] = "another"
    paths[1].write_text(json.dumps(second))
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "different machines" in done.stderr


def test_every_case_is_listed_with_a_summary() -> None:
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, str(BENCH / "run.py"), "--list"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert {"many_small", "cpu_peers", "iteration", "otdd_full", "gradient", "same_error", "fixed_work"} <= set(listed)
    assert all(len(line.split()) > 4 for line in listed.values())


def test_the_page_has_both_pairs_of_markers(bench) -> None:
    page = (BENCH.parent.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for device in ("gpu", "cpu"):
        assert "new" in bench("table").insert(page, device, "new")
