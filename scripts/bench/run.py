"""Run benchmark cases: the gate first, then the times; JSON out, a table on stdout.

    python scripts/bench/run.py --list
    OTDD_DATA=DIR python scripts/bench/run.py --device gpu --output gpu.json
    python scripts/bench/run.py --cases many_small --output small.json

The JSON is written after every case, so a run that is cut short keeps what it has. Exit code 1 where a case failed or
a gate is red (scripts/bench/verify.py says which).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import cpu
import gpu
import job_cases
import kernel_cases
import losses
import peer_cases
import torch
from registry import CASES, Case, Row, Settings, machine
from table import text_table
from verify import problems_of

MODULES = (cpu, gpu, job_cases, kernel_cases, losses, peer_cases)  # importing them registers their cases


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases to run."""
    if arguments.cases:
        return [CASES[name] for name in arguments.cases]
    have_data = arguments.data is not None or "OTDD_DATA" in os.environ
    found = [c for c in CASES.values() if c.device == arguments.device and (have_data or not c.data)]
    left_out = [c.name for c in CASES.values() if c.device == arguments.device and c not in found]
    if left_out:
        print(f"left out, they need --data or OTDD_DATA: {', '.join(left_out)}", file=sys.stderr)
    return found


def run_case(one: Case, settings: Settings) -> Row:
    """Rows of one case, or why there are none."""
    start = time.perf_counter()
    try:
        result: Row = {"rows": one.run(settings)}
    except (RuntimeError, ValueError, MemoryError, ImportError) as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"summary": one.summary, "device": one.device, "seconds": time.perf_counter() - start, **result}


def main() -> int:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="all cases of this device")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="these cases instead")
    parser.add_argument("--data", type=Path, help="folder of the real data sets (default: $OTDD_DATA)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    if arguments.list:
        for one in CASES.values():
            print(f"{one.name:20s} {one.device:4s} {one.summary}")
        return 0
    settings = Settings(arguments.data, arguments.repeats, arguments.small)
    report: Row = {"machine": machine(), "small": settings.small, "cases": {}}
    cases = chosen(arguments)
    if any(one.device == "gpu" for one in cases):
        report["gate"] = kernel_cases.gate()
        if not all(entry["gate"] for entry in report["gate"]):
            print("the kernels are wrong: nothing is timed", file=sys.stderr)
            cases = []
    for one in cases:
        report["cases"][one.name] = run_case(one, settings)
        print(text_table(one.name, report["cases"][one.name]), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    found = problems_of(report)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
