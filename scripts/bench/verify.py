"""Check a benchmark's JSON: every case ran, our gates are green, no ratio or time stands on a red one.

A peer that comes out wrong is a result, and is reported without a time.

    python scripts/bench/verify.py gpu.json [cpu.json ...]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

OURS = "otdd-flash"


def problems_of(report: dict[str, Any]) -> list[str]:
    """What is wrong with a report, one line each."""
    found = [f"gate: {entry}" for entry in report.get("gate", []) if not entry["gate"]]
    if not report.get("cases"):
        found.append("no case was run")
    for name, case in report.get("cases", {}).items():
        if "failed" in case:
            found.append(f"{name}: failed with {case['failed']}")
            continue
        if not case["rows"]:
            found.append(f"{name}: no rows")
        for row in case["rows"]:
            where = f"{name}: {row['problem']}, {row['solver']}"
            if not row["gate"]:
                if row["solver"].startswith(OURS):
                    found.append(f"{where}: red gate")
                if "ms" in row:
                    found.append(f"{where}: a time on a red gate")
            elif "ms" in row and not (0 < row["ms"] < math.inf and row["q20"] <= row["ms"] <= row["q80"]):
                found.append(f"{where}: impossible times {row['q20']}, {row['ms']}, {row['q80']}")
    return found


def main() -> int:
    """Check the files named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    bad = 0
    for path in parser.parse_args().files:
        found = problems_of(json.loads(path.read_text()))
        bad += len(found)
        print(f"{path}: {'all gates green' if not found else f'{len(found)} problems'}")
        for line in found:
            print(f"  {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
