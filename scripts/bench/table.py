"""Tables from a benchmark's JSON: to stdout, or into a Markdown file between its markers.

    python scripts/bench/table.py gpu.json                      # prints the Markdown
    python scripts/bench/table.py gpu.json --into docs/benchmarks.md
    python scripts/bench/table.py gpu.json more.json --only 'OTDD of|iteration, n = 60000'

The table goes between ``<!-- measured:gpu:begin -->`` and ``<!-- measured:gpu:end -->``; the name in the markers is the
device of the cases (``gpu`` or ``cpu``). A table is made only from reports in which no gate of ours is red; several
reports of one kind of machine make one table, a case that several have is the last one's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from verify import OURS, problems_of


def text_table(name: str, case: dict[str, Any]) -> str:
    """One case for the terminal."""
    lines = [f"{name} ({case['seconds']:.0f} s): {case['summary']}"]
    if "failed" in case:
        return "\n".join([*lines, f"  FAILED {case['failed']}"])
    for row in case["rows"]:
        time = f"{row['ms']:10.3f} ms" if "ms" in row else " " * 13
        mark = "" if row["gate"] else "  RED GATE"
        notes = ", ".join(f"{k} {_short(row[k])}" for k in ("marginal_error", "error", "of_roofline") if k in row)
        lines.append(f"  {row['problem']:58s} {row['solver']:34s} {time} {notes}{mark}")
    return "\n".join(lines)


def markdown(report: dict[str, Any], device: str, only: str = "") -> str:
    """Rows grouped by problem: time of each solver, its ratio to our fastest row of the problem, memory, roofline.

    Args:
        report: a run's JSON.
        device: whose cases.
        only: regular expression of the problems to show.
    """
    lines = [
        "| problem | solver | ms | times ours | marginal error | error | peak MiB | of the roofline |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in report["cases"].values():
        if case["device"] != device:
            continue
        rows = [row for row in case["rows"] if re.search(only, row["problem"])]
        for problem in dict.fromkeys(row["problem"] for row in rows):
            group = [row for row in rows if row["problem"] == problem]
            own = [row["ms"] for row in group if row["solver"].startswith(OURS) and "ms" in row]
            lines += [_line(row, min(own) if own else None, first=row is group[0]) for row in group]
    return "\n".join([*lines, "", _where(report["machine"])])


def _line(row: dict[str, Any], ours: float | None, *, first: bool) -> str:
    peer = ours is not None and not row["solver"].startswith(OURS)
    cells = [
        row["problem"] if first else "",
        row["solver"],
        _time(row),
        f"{row['ms'] / ours:.1f}" if peer and ours and "ms" in row else "",
        f"{row['marginal_error']:.1e}" if row.get("marginal_error") is not None else "",
        f"{row['error']:.1e}" if row.get("error") is not None else "",
        f"{row['peak_mib']:.0f}" if "peak_mib" in row else "",
        f"{100 * row['of_roofline']:.0f} %" if row.get("of_roofline") else "",
    ]
    return f"| {' | '.join(cells)} |"


def _time(row: dict[str, Any]) -> str:
    if not row["gate"]:
        return "wrong"
    if "ms" not in row:
        return ""  # checked, not timed
    return f"{row['ms']:.3g}" if row["ms"] < 1000 else f"{row['ms']:.0f}"


def _where(machine: dict[str, Any]) -> str:
    """The machine in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    place = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    return f"Medians on {place}; {versions}."


def insert(document: str, name: str, body: str) -> str:
    """``document`` with ``body`` between its markers of ``name``.

    Raises:
        ValueError: there are no such markers, or more than one pair.
    """
    begin, end = (f"<!-- measured:{name}:{side} -->" for side in ("begin", "end"))
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(document)) != 1:
        raise ValueError(f"the document needs one {begin} with its {end}")
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", document)


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Print or insert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="Markdown file with markers")
    parser.add_argument("--only", default="", help="regular expression of the problems to show")
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in arguments.reports]
    found = [line for report in reports for line in problems_of(report)]
    places = {(report["machine"].get("gpu"), json.dumps(report["machine"]["versions"])) for report in reports}
    if len(places) > 1:
        found.append("the reports are of different machines or versions")
    if found or any(report["small"] for report in reports):
        print("\n".join(["no table is made from this:", *found]), file=sys.stderr)
        return 1
    report = {**reports[0], "cases": {name: case for one in reports for name, case in one["cases"].items()}}
    for device in dict.fromkeys(case["device"] for case in report["cases"].values()):
        body = markdown(report, device, arguments.only)
        if arguments.into is None:
            print(body)
        else:
            document = arguments.into.read_text(encoding="utf-8")
            arguments.into.write_text(insert(document, device, body), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
