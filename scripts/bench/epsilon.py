"""What epsilon does to the distance: value and time of MNIST x Fashion-MNIST, and of MNIST x MNIST, against epsilon.

The second pair, two halves of MNIST's training set, says what a distance of nothing but sampling looks like: an epsilon
is of use where the first value stands well above it. Prints the README's table; a solve that is not converged is
marked, never left out.

    OTDD_DATA=... python scripts/bench/epsilon.py --samples 2000 --output epsilon.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import otdd_flash as otdd
from otdd_flash.data import subsample

Pair = tuple[otdd.LabeledDataset, otdd.LabeledDataset]


def pairs(samples: int, seed: int) -> tuple[Pair, Pair]:
    """MNIST x Fashion-MNIST and the two halves of MNIST, ``samples`` drawn from each."""
    mnist = otdd.load("mnist")
    half = mnist.n // 2
    first, second = mnist.subset(torch.arange(half)), mnist.subset(torch.arange(half, mnist.n))
    fashion = otdd.load("fashion_mnist")
    a, b, c = (subsample(side, samples, seed=seed) for side in (first, second, fashion))
    return (a, c), (a, b)


def measure(pair: Pair, relative_epsilon: float, label_distance: str, options: dict[str, Any]) -> dict[str, Any]:
    """One solve."""
    result = otdd.dataset_distance(*pair, relative_epsilon=relative_epsilon, label_distance=label_distance, **options)
    keys = (
        "value",
        "converged",
        "marginal_error",
        "iterations",
        "epsilon",
        "mean_cost",
        "precision",
        "memory",
        "seconds",
    )
    return {key: getattr(result, key) for key in keys}


def row(
    both: tuple[Pair, Pair], relative_epsilon: float, label_distance: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Both pairs at one epsilon."""
    apart, alike = (measure(pair, relative_epsilon, label_distance, options) for pair in both)
    return {
        "relative_epsilon": relative_epsilon,
        "label_distance": label_distance,
        "apart": apart,
        "alike": alike,
        "ratio": apart["value"] / alike["value"],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = [
        "| label distance | epsilon / mean cost | MNIST x Fashion-MNIST | iterations | time | MNIST x MNIST | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for item in rows:
        apart, alike = item["apart"], item["alike"]
        values = [f"{side['value']:.4g}{'' if side['converged'] else ' (not converged)'}" for side in (apart, alike)]
        seconds = apart["seconds"]["labels"] + apart["seconds"]["solve"]
        lines.append(
            f"| {item['label_distance']} | {item['relative_epsilon']:g} | {values[0]} | {apart['iterations']} "
            f"| {seconds:.1f} s | {values[1]} | {item['ratio']:.3g} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.03, 0.01, 0.003, 0.001])
    parser.add_argument("--labels", nargs="+", default=["gaussian"], help="label distances, measured at every epsilon")
    parser.add_argument("--also", nargs="+", default=["sinkhorn"], help="label distances measured at 0.01 alone")
    parser.add_argument("--max-iterations", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON file")
    args = parser.parse_args()
    options = {"device": args.device, "max_iterations": args.max_iterations, "seed": args.seed}
    both = pairs(args.samples, args.seed)
    wanted = [(name, epsilon) for name in args.labels for epsilon in args.epsilons]
    wanted += [(name, 0.01) for name in args.also]
    rows = []
    for name, epsilon in wanted:
        rows.append(row(both, epsilon, name, options))
        print(f"{name} at {epsilon:g} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(markdown(rows))
    if args.output is not None:
        machine = {"processor": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        record = {"samples": args.samples, "seed": args.seed, "device": args.device, "machine": machine, "rows": rows}
        args.output.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
