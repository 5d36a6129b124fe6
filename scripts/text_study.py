"""AG News against other text sets, and half against half of itself as the floor; see docs/text.md.

python scripts/text_study.py DATA_ROOT [--max-samples 1000] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import otdd_flash as otdd
from otdd_flash.data import TextDataset
from otdd_flash.data.features import Features
from otdd_flash.labels import ClassNames

Row = dict[str, Any]

OTHERS = {"trec": "train", "sst2": "train", "subj": "all", "banking77": "train"}
NAMES = {"subj": ("subjective", "objective")}  # the file numbers its two classes
METHODS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "names": {"label_distance": ClassNames()},
    "features alone": {"label_distance": None},
    "gaussian, epsilon 0.1": {"relative_epsilon": 0.1},
}


def texts(name: str, count: int, split: str, seed: int, root: Path) -> TextDataset:
    data = otdd.load(name, data_root=root, split=split, max_samples=count, seed=seed)
    return replace(data, class_names=NAMES.get(name, data.class_names))


def measure(count: int, seed: int, root: Path) -> Iterator[Row]:
    """One row a target and label distance: half of a draw of AG News against the other half, then the other sets."""
    both = texts("ag_news", 2 * count, "train", seed, root)
    order = torch.randperm(both.n, generator=torch.Generator().manual_seed(seed))
    source, half = both.subset(order[:count]), both.subset(order[count:])
    targets = {"ag_news (other half)": half}
    targets |= {name: texts(name, count, split, seed, root) for name, split in OTHERS.items()}
    for name, target in targets.items():
        a, b, _ = Features("sentence-transformers", scaling="l2").apply(source, target)
        for method, options in METHODS.items():
            found = otdd.dataset_distance(a, b, **options)
            yield {
                "target": name, "classes": b.num_classes, "labels": method, "seed": seed, "value": found.value,
                "mean_cost": found.mean_cost, "converged": found.converged, "n": found.n, "m": found.m,
            }  # fmt: skip


def markdown(rows: list[Row]) -> str:
    """Mean over seeds, and the range."""
    lines = ["| target | classes | " + " | ".join(METHODS) + " |", "| --- " * (len(METHODS) + 2) + "|"]
    for target in dict.fromkeys(row["target"] for row in rows):
        part = [row for row in rows if row["target"] == target]
        cells = []
        for method in METHODS:
            values = [row["value"] for row in part if row["labels"] == method]
            cells.append(f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        lines.append(f"| {target} | {part[0]['classes']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--max-samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for seed in range(arguments.seeds):
        for row in measure(arguments.max_samples, seed, arguments.data_root):
            print(json.dumps(row), flush=True)
            rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
