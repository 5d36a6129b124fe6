"""Labels and classifiers carried from one data set to another by an optimal plan, without a label of the target.

The plan between the features of a labelled source and an unlabelled target gives two answers to "which digit is this?":

    through the plan    a target sample takes the label that most of its mass comes from
    barycentric map     every source sample moves to the mean of where its mass goes, and a k-nearest-neighbour
                        classifier is trained on the moved samples (Courty et al. 2017)

Both are compared with the same classifier trained on the unmoved source. The picture shows source samples, where the
map sends them, and the target sample nearest to that.

    python scripts/label_transfer.py --data-root DIR --picture map.png
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.flows.pictures import image_grid
from otdd_flash.flows.transfer import knn_predict
from otdd_flash.types import LabeledDataset

COLUMNS = 10


def load(name: str, args: argparse.Namespace) -> LabeledDataset:
    given = {"max_samples": args.n, "seed": args.seed, "data_root": args.data_root}
    return otdd.load(name, resize=args.resize, fit=args.fit, **given)


def target_labels(source: LabeledDataset, target: LabeledDataset) -> Tensor:
    """The target's labels as the source numbers them."""
    positions = {str(name): i for i, name in enumerate(source.class_names)}
    missing = [str(name) for name in target.class_names if str(name) not in positions]
    if missing:
        raise ValueError(f"the target has classes that the source lacks: {', '.join(missing)}")
    return torch.tensor([positions[str(name)] for name in target.class_names])[target.y]


def evaluate(source: LabeledDataset, target: LabeledDataset, epsilon: float, ks: list[int]) -> dict[str, Any]:
    """Accuracies at one epsilon, and the moved source."""
    truth = target_labels(source, target)
    found = otdd.dataset_distance(source, target, label_distance=None, relative_epsilon=epsilon)
    one_hot = torch.nn.functional.one_hot(source.y).to(torch.float64)
    votes = found.plan.apply_transposed(one_hot)  # mass that each target sample gets from each class
    moved = found.plan.map().to(source.x.dtype)

    def accuracy(labels: Tensor) -> float:
        return float((labels == truth).double().mean())

    return {
        "relative_epsilon": epsilon, "value": found.value, "converged": found.converged,
        "through_the_plan": accuracy(votes.argmax(1)),
        "map": {k: accuracy(knn_predict(moved, source.y, target.x, k=k)) for k in ks},
        "source": {k: accuracy(knn_predict(source.x, source.y, target.x, k=k)) for k in ks},
        "moved": moved,
    }  # fmt: skip


def picture(source: LabeledDataset, moved: Tensor, target: LabeledDataset) -> Any:
    """Three rows: a sample of each class, where it went, and the target sample nearest to that."""
    if source.image_shape is None:
        raise ValueError(f"{source.name!r} holds no pictures: leave --picture out")
    columns = range(min(COLUMNS, source.num_classes))
    chosen = torch.stack([(source.y == c).nonzero()[0, 0] for c in columns])
    nearest = torch.cdist(moved[chosen], target.x).argmin(1)
    stacked = torch.cat([source.x[chosen], moved[chosen], target.x[nearest]])
    rows = [[r * len(chosen) + c for c in range(len(chosen))] for r in range(3)]
    return image_grid(stacked, rows, source.image_shape, scale=3)


def table(records: list[dict[str, Any]], ks: list[int]) -> list[str]:
    """One line an epsilon; the last columns do not depend on it."""
    sides = [(side, k) for side in ("map", "source") for k in ks]
    heads = ["epsilon / mean cost", "through the plan", *[f"{k}-NN on the {side}" for side, k in sides]]
    lines = ["  ".join(heads)]
    for record in records:
        cells = [f"{record['relative_epsilon']:g}", f"{record['through_the_plan']:.1%}"]
        cells += [f"{record[side][k]:.1%}" for side, k in sides]
        lines.append("  ".join(f"{cell:>{len(head)}}" for cell, head in zip(cells, heads, strict=True)))
    return lines


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="mnist", help="labelled set")
    parser.add_argument("--target", default="usps", help="set whose labels are used to count right answers only")
    parser.add_argument("--n", type=int, default=1000, help="samples of each")
    parser.add_argument("--seed", type=int, default=0, help="of their draw")
    parser.add_argument("--resize", type=int, nargs=2, default=[28, 28], metavar=("H", "W"), help="of pictures")
    parser.add_argument("--fit", default="pad:4", help="how pictures get there: stretch, pad or pad:<margin>")
    parser.add_argument("--data-root", help="folder of the data sets")
    parser.add_argument("--relative-epsilon", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.2])
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5], help="neighbours")
    parser.add_argument("--picture", type=Path, help="PNG of the map at the epsilon of the best score")
    parser.add_argument("--output", type=Path, help="JSON file of all figures")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    source, target = load(args.source, args), load(args.target, args)
    records = [evaluate(source, target, epsilon, args.k) for epsilon in args.relative_epsilon]
    print(f"{args.source} -> {args.target}, {source.n} and {target.n} samples")
    print("\n".join(table(records, args.k)))
    moved = [record.pop("moved") for record in records]
    if args.picture is not None:
        best = max(range(len(records)), key=lambda i: max(records[i]["map"].values()))
        args.picture.parent.mkdir(parents=True, exist_ok=True)
        picture(source, moved[best], target).save(args.picture)
    if args.output is not None:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
        args.output.write_text(json.dumps({"settings": settings, "runs": records}, indent=2, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
