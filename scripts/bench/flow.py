"""A dataset gradient flow at full size on one GPU: seconds, passes and memory of a step, and how far fifty steps go.

    python scripts/bench/flow.py --data DIR --steps 50 --output flow.json

The value that the flow ends with is checked against a cold solve to a tenth of the flow's tolerance: ``gate``, by their
difference as a part of the value at the start. The peak of memory counts all on the device, the two sets included.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import otdd_flash as otdd
from otdd_flash.flows import Box, Callback, DatasetTransport, Flow, FlowResult, FlowState, LineSearch, transfer_check
from otdd_flash.types import LabeledDataset

GATE = 2e-3  # of the value at the start: what the last value may be wrong by


class Stopwatch(Callback):
    """Time, device memory and passes after every step."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.peaks: list[float] = []
        self.passes: list[int] = []

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """The first solve, of both self terms too, is not a step."""
        self._look(state)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Take the time."""
        self._look(state)

    def _look(self, state: FlowState) -> None:
        x = state.variables["x"]
        if x.is_cuda:
            torch.cuda.synchronize()
            self.peaks.append(torch.cuda.max_memory_allocated() / 2**20)
            torch.cuda.reset_peak_memory_stats()
        self.stamps.append(time.perf_counter())
        self.passes.append(state.at.record["iterations"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--n", type=int, default=60000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--labels", default="gaussian_diag", choices=("gaussian_diag", "gaussian", "means"))
    parser.add_argument("--tol", type=float, default=1e-2, help="marginal error of a step's solves")
    parser.add_argument("--precision", default="fp16", help="of the kernels on a GPU")
    parser.add_argument("--rate", type=float, default=0.1, help="first one that the line search tries")
    parser.add_argument("--grow", type=float, default=1.0, help="of the rate from step to step")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def report(arguments: argparse.Namespace, result: FlowResult, watch: Stopwatch) -> dict[str, Any]:
    """What the flow took and where it led."""
    values = [row["value"] for row in result.history]
    seconds = [b - a for a, b in itertools.pairwise(watch.stamps)]
    return {
        "n": result.data.n, "labels": arguments.labels, "tol": arguments.tol,
        "precision": arguments.precision, "steps": len(values) - 1,
        "reason": result.reason, "seconds": seconds, "median_seconds": statistics.median(seconds),
        "passes": watch.passes, "peak_MiB": watch.peaks,
        "largest_peak_MiB": max(watch.peaks, default=None), "values": values, "fall": 1 - values[-1] / values[0],
        "monotone": all(b <= a for a, b in itertools.pairwise(values)),
    }  # fmt: skip


def gate(arguments: argparse.Namespace, result: FlowResult, target: LabeledDataset) -> dict[str, Any]:
    """The last value against a cold solve at the flow's epsilon, ten times as exact."""
    cold = otdd.dataset_distance(
        result.data, target, label_distance=arguments.labels, epsilon=float(result.state.at.memory["epsilon"]),
        tol=arguments.tol / 10, memory="streamed",
    )  # fmt: skip
    error = abs(result.value - cold.value) / result.history[0]["value"]
    return {"cold_value": cold.value, "cold_converged": cold.converged, "error": error, "gate": error < GATE}


def main() -> None:
    """Flow MNIST to Fashion-MNIST and print what it took."""
    arguments = parse()
    sets = [otdd.load(name, data_root=arguments.data) for name in ("mnist", "fashion_mnist")]
    source, target = (s.subset(torch.arange(min(arguments.n, s.n))).to(arguments.device) for s in sets)
    precision = arguments.precision if arguments.device != "cpu" else "auto"
    options = otdd.DistanceOptions(
        memory="streamed", label_distance=arguments.labels, tol=arguments.tol, precision=precision
    )
    stepper = LineSearch(arguments.rate, grow=arguments.grow)
    watch = Stopwatch()
    flow = Flow(DatasetTransport(target, options), stepper=stepper, projection=Box())
    result = flow.run(source, steps=arguments.steps, callbacks=[watch])
    found = report(arguments, result, watch) | gate(arguments, result, target)
    few = torch.arange(0, source.n, max(1, source.n // 5000))
    moved, goal, start = (side.subset(few) for side in (result.data, target, source))
    found["transfer"] = dataclasses.asdict(transfer_check(start, moved, goal))
    print(json.dumps(found))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
