"""A dataset gradient flow at full size on one GPU: seconds and memory of a step, and how far fifty steps go.

python scripts/bench/flow.py --data DIR --steps 50 --output flow.json
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path

import torch

import otdd_flash as otdd
from otdd_flash.flows import Box, Callback, Flow, FlowState, LineSearch, transfer_check


class Stopwatch(Callback):
    """Time after every step."""

    def __init__(self, stamps: list[float]) -> None:
        self.stamps = stamps

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Take the time."""
        self.stamps.append(time.perf_counter())


def main() -> None:
    """Flow MNIST to Fashion-MNIST and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--n", type=int, default=60000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sets = [otdd.load(name, data_root=arguments.data) for name in ("mnist", "fashion_mnist")]
    source, target = (s.subset(torch.arange(min(arguments.n, s.n))).to(arguments.device) for s in sets)
    cuda = source.x.is_cuda
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    stamps = [time.perf_counter()]
    options = otdd.DistanceOptions(memory="streamed")
    result = otdd.gradient_flow(
        source, target, steps=arguments.steps, options=options, stepper=LineSearch(), projection=Box(0.0, 1.0),
        callbacks=[Stopwatch(stamps)],
    )  # fmt: skip
    values = [row["value"] for row in result.history]
    report = {
        "n": source.n,
        "steps": len(values) - 1,
        "seconds": [b - a for a, b in itertools.pairwise(stamps)],
        "values": values,
        "fall": 1 - values[-1] / values[0],
        "monotone": all(b <= a for a, b in itertools.pairwise(values)),
        "peak_MiB": torch.cuda.max_memory_allocated() / 2**20 if cuda else None,
    }
    few = torch.arange(0, source.n, max(1, source.n // 5000))
    moved, goal, start = (side.subset(few) for side in (result.data, target, source))
    report["transfer"] = dataclasses.asdict(transfer_check(start, moved, goal))
    print(json.dumps(report))
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
