"""Random problems against an independent float64 reference: is what the library certifies true?

Every problem follows from family, seed and index. The reference (:mod:`fuzzing.reference`, numpy and scipy alone) gives
an interval that holds the true value; an answer that is called converged must lie within its stated error of it, and
within 1e-3 (or tol) of the truth on the scale ``max(|value|, 0.01 mean cost)``.

    python scripts/fuzz.py --count 1000                       # of every family
    python scripts/fuzz.py --family separated --count 500 --seed 1 --output fuzz.jsonl
    python scripts/fuzz.py --family separated --seed 1 --index 37

Failures are printed as the command that repeats them; the exit status is one where there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch: the matrices are small

from fuzzing.families import FAMILIES
from fuzzing.verdicts import OUTCOMES, Verdict, judge


def tasks(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    indices = args.index if args.index else range(args.start, args.start + args.count)
    return [(family, args.seed, i) for family in args.family for i in indices]


def verdicts(work: list[tuple[str, int, int]], jobs: int) -> Iterator[list[Verdict]]:
    """In the order of the work."""
    if jobs == 1:
        yield from (judge(*task) for task in work)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judge, *zip(*work, strict=True), chunksize=8)


def table(found: Iterable[Verdict]) -> str:
    """Outcomes, passes and time by family."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in found:
        groups.setdefault(verdict.family, []).append(verdict)
    head = (
        f"{'family':<12}"
        + "".join(f"{name:>12}" for name in OUTCOMES)
        + f"{'passes':>10}{'library ms':>12}{'reference ms':>14}"
    )
    lines = [head]
    for family, group in groups.items():
        counts = Counter(verdict.outcome for verdict in group)
        passes = sum(verdict.passes or 0 for verdict in group)
        times = [
            1e3 * sum(getattr(v, f"seconds_{side}") for v in group) / len(group) for side in ("library", "reference")
        ]
        cells = "".join(f"{counts[name]:>12}" for name in OUTCOMES)
        lines.append(f"{family:<12}{cells}{passes:>10}{times[0]:>12.1f}{times[1]:>14.1f}")
    return "\n".join(lines)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=100, help="problems of each family")
    parser.add_argument("--start", type=int, default=0, help="index of the first")
    parser.add_argument("--index", type=int, nargs="+", help="these problems alone, all that is known of them printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, help="JSON lines, one a value")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    found: list[Verdict] = []
    for group in verdicts(tasks(args), args.jobs):
        found += group
        for verdict in group:
            if args.index:
                print(json.dumps(verdict.record(), indent=1))
            elif verdict.failed or verdict.outcome == "unresolved":
                print(f"{verdict.outcome}: {verdict.detail} [{verdict.way}, {verdict.note}]\n    {verdict.command}")
    print(table(found))
    if args.output is not None:
        args.output.write_text("".join(json.dumps(verdict.record()) + "\n" for verdict in found))
    return int(any(verdict.failed for verdict in found))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
