"""Measure sample values, selection, what a check costs, and the fast tier on real data.

python scripts/selection_study.py DATA_ROOT [values selection gate screening] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import otdd_flash as otdd
from otdd_flash.screening import Screen, moment_distances
from otdd_flash.screening.cut import cut
from otdd_flash.types import LabeledDataset

Row = dict[str, object]


def draw(name: str, count: int, seed: int, data_root: Path, split: str = "train") -> LabeledDataset:
    """Samples of a set in MNIST's layout: USPS at 20 x 20 in the middle of 28 x 28."""
    given = {"data_root": data_root, "split": split, "max_samples": count, "seed": seed}
    return otdd.load(name, resize=(28, 28), fit="pad:4", **given)


def auroc(scores: Tensor, positive: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive.numpy(), scores.numpy()))


def neighbours(pool: LabeledDataset, target: LabeledDataset, k: int = 10) -> tuple[Tensor, Tensor]:
    """Share of the k nearest target samples of another class, and mean distance to them."""
    found = torch.cdist(pool.x, target.x).topk(k, largest=False)
    return (target.y[found.indices] != pool.y[:, None]).double().mean(1), found.values.double().mean(1)


def sample_values(data_root: Path) -> Iterator[Row]:
    """Flipped labels, and Fashion pictures with labels of their own or with digits' labels, in 2,000 MNIST samples."""
    for seed in range(3):
        both = draw("mnist", 4000, seed, data_root)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(4000, generator=generator)
        pool, target = both.subset(order[:2000]), both.subset(order[2000:])
        flipped = torch.zeros(2000, dtype=torch.bool)
        flipped[torch.randperm(2000, generator=generator)[:200]] = True
        y = torch.where(flipped, (pool.y + torch.randint(1, 10, (2000,), generator=generator)) % 10, pool.y)
        fashion = draw("fashion_mnist", 200, seed, data_root)
        x = torch.cat([pool.x[:1800], fashion.x])
        foreign = torch.arange(2000) >= 1800
        cases = {
            "flipped labels": (otdd.from_arrays(pool.x, y), flipped),
            "fashion, own labels": (otdd.from_arrays(x, torch.cat([pool.y[:1800], fashion.y + 10])), foreign),
            "fashion, digit labels": (otdd.from_arrays(x, torch.cat([pool.y[:1800], fashion.y])), foreign),
        }
        for case, (data, wrong) in cases.items():
            disagreement, distance = neighbours(data, target)
            row: Row = {
                "seed": seed, "case": case, "k-NN disagreement": auroc(disagreement, wrong),
                "k-NN distance": auroc(distance, wrong),
            }  # fmt: skip
            for epsilon in (0.1, 0.03, 0.01):
                start = time.perf_counter()
                found = otdd.values(data, target, relative_epsilon=epsilon)
                row[f"seconds {epsilon}"] = time.perf_counter() - start
                for part in found.gradients:
                    for within in (False, True):
                        name = f"{part}{' in class' if within else ''} {epsilon}"
                        row[name] = auroc(found.scores(part, within_class=within), wrong)
            yield row


def herding(pool: Tensor, target: Tensor, count: int) -> Tensor:
    """Kernel herding without replacement; Gaussian kernel of the target's mean squared distance times 0.3."""
    scale = 0.3 * torch.cdist(target, target).square().mean()
    aim = torch.exp(-torch.cdist(pool, target).square() / scale).mean(1)
    kernel = torch.exp(-torch.cdist(pool, pool).square() / scale)
    chosen, covered = [], torch.zeros(len(pool))
    for step in range(count):
        gain = aim - covered / (step + 1)
        gain[chosen] = -math.inf
        chosen.append(int(gain.argmax()))
        covered += kernel[chosen[-1]]
    return torch.tensor(chosen)


def labelled_nearest(pool: LabeledDataset, target: LabeledDataset, count: int) -> Tensor:
    """The pool samples of the smallest labelled cost to any target sample: OTDD's own cost, point by point."""
    tables = otdd.dataset_distance(pool, target, label_distance="gaussian_diag", relative_epsilon=0.1)
    cost = torch.cdist(pool.x, target.x).square() + tables.label_distances.source_target[pool.y][:, target.y]
    return cost.min(1).values.argsort()[:count]


def selection(data_root: Path) -> Iterator[Row]:
    """500 of 2,000 MNIST + 2,000 Fashion-MNIST + 2,000 KMNIST for 1,000 USPS samples; tested on 2,007 of USPS."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    count, test = 500, draw("usps", 2007, 0, data_root, "test")
    for seed in range(5):
        named = (("mnist", "train"), ("fashion_mnist", "train"), ("kmnist", "test"))
        parts = [draw(name, 2000, seed, data_root, split) for name, split in named]
        target = draw("usps", 1000, seed, data_root)
        x = torch.cat([part.x for part in parts])
        y = torch.cat([part.y + 10 * i for i, part in enumerate(parts)])
        pool = otdd.from_arrays(x, y, name="pool")
        generator = torch.Generator().manual_seed(seed)
        choose: dict[str, Callable[[], Tensor]] = {
            "random": lambda g=generator: torch.randperm(6000, generator=g)[:count],
            "random, MNIST only": lambda g=generator: torch.randperm(2000, generator=g)[:count],
            "nearest": lambda a=x, b=target.x: torch.cdist(a, b).min(1).values.argsort()[:count],
            "nearest, labelled cost": lambda p=pool, t=target: labelled_nearest(p, t, count),
            "herding": lambda a=x, b=target.x: herding(a, b, count),
            "select, features": lambda p=pool, t=target: otdd.select(p, t, count, label_weight=0.0).idx,
            "select, labels": lambda p=pool, t=target: otdd.select(
                p, t, count, label_distance="gaussian_diag"
            ).idx,
        }  # fmt: skip
        for method, function in choose.items():
            start = time.perf_counter()
            idx = function()
            seconds = time.perf_counter() - start
            fitted = [
                model.fit(x[idx].numpy(), y[idx].numpy()) for model in (SVC(C=10), LogisticRegression(max_iter=1000))
            ]
            svm, logistic = (model.score(test.x.numpy(), test.y.numpy()) for model in fitted)
            chosen = otdd.from_arrays(x[idx], y[idx])
            value = otdd.dataset_distance(chosen, target, label_weight=0.0, relative_epsilon=0.1).value
            yield {
                "seed": seed, "method": method, "svm": svm, "logistic": logistic, "feature divergence": value,
                "share of MNIST": float((y[idx] < 10).double().mean()), "seconds": seconds,
            }  # fmt: skip


def gate(data_root: Path) -> Iterator[Row]:
    """Seconds of a check of 500 MNIST samples against 500 of 2,000, 199 permutations, by where its null comes from."""
    both = draw("mnist", 2500, 0, data_root)
    order = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
    a, b = both.subset(order[:2000]), both.subset(order[2000:])
    with tempfile.TemporaryDirectory() as folder:
        for kind, null_of in (
            ("pooled", "pooled"),
            ("reference, first", "reference"),
            ("reference, kept", "reference"),
        ):
            start = time.perf_counter()
            found = otdd.check(a, b, null=null_of, cache=folder)
            yield {"null": kind, "seconds": time.perf_counter() - start, "p": found.p_value, "kept": found.null_cached}


def rotated(data: LabeledDataset, degrees: float) -> LabeledDataset:
    angle = torch.tensor(math.radians(degrees))
    matrix = torch.tensor([[angle.cos(), -angle.sin(), 0], [angle.sin(), angle.cos(), 0]])[None].expand(data.n, -1, -1)
    pictures = data.x.view(-1, 1, 28, 28)
    grid = functional.affine_grid(matrix, list(pictures.shape), align_corners=False)
    return otdd.from_arrays(functional.grid_sample(pictures, grid, align_corners=False).flatten(1), data.y)


def many_sets(data_root: Path) -> list[LabeledDataset]:
    """27 sets of up to 400: three sources, each whole, by classes, rotated and with noise."""
    sets = []
    for name, split in (("mnist", "train"), ("fashion_mnist", "train"), ("kmnist", "test")):
        for seed, classes in enumerate((range(10), range(5), range(5, 10), (0, 1), (3, 5, 8))):
            sets.append(
                otdd.load(name, data_root=data_root, split=split, classes=list(classes), max_samples=400, seed=seed)
            )
        base = draw(name, 400, 9, data_root, split)
        generator = torch.Generator().manual_seed(1)
        sets += [rotated(base, degrees) for degrees in (30, 90)]
        noises = [level * torch.randn(base.x.shape, generator=generator) for level in (0.2, 0.5)]
        sets += [otdd.from_arrays(base.x + noise, base.y) for noise in noises]
    return sets


def full_distances(sets: list[LabeledDataset], pairs: list[list[int]]) -> list[float]:
    settings = {"label_distance": "gaussian_diag", "relative_epsilon": 0.05}
    return [otdd.dataset_distance(sets[i], sets[j], **settings).value for i, j in pairs]


def screening(data_root: Path) -> Iterator[Row]:
    """Rank correlation of the fast tier with the full distance over all pairs of the 27 sets, and what a cut loses.

    ``recall``: share of each set's three nearest neighbours, by the full distance, that are kept by a screen.
    """
    from scipy.stats import pearsonr, spearmanr

    sets = many_sets(data_root)
    pairs = torch.triu_indices(len(sets), len(sets), 1).T.tolist()
    start = time.perf_counter()
    full = full_distances(sets, pairs)
    yield {"method": "full", "seconds": time.perf_counter() - start, "pairs": len(pairs)}
    screens: dict[str, Callable[[], Tensor]] = {
        "sliced": lambda: otdd.screening_matrix(sets),
        "sliced, 64 quantiles": lambda: otdd.screening_matrix(sets, quantiles=64),
        "sliced, 100 projections": lambda: otdd.screening_matrix(sets, projections=100),
        "sliced, no label moments": lambda: otdd.screening_matrix(sets, moments=0),
        "moments, diagonal": lambda: moment_distances(sets),
        "moments, means": lambda: moment_distances(sets, label_distance="means"),
    }
    for method, function in screens.items():
        start = time.perf_counter()
        matrix = function()
        seconds = time.perf_counter() - start
        quick = [float(matrix[i, j]) for i, j in pairs]
        yield {
            "method": method, "seconds": seconds, "spearman": float(spearmanr(quick, full).statistic),
            "pearson": float(pearsonr(quick, full).statistic), **recall(matrix, pairs, full),
        }  # fmt: skip


def recall(quick: Tensor, pairs: list[list[int]], full: list[float]) -> Row:
    """Share of the three nearest by the full distance among those that a screen keeps, and how many it keeps."""
    k = len(quick)
    exact = torch.full((k, k), math.inf, dtype=torch.float64)
    for (i, j), value in zip(pairs, full, strict=True):
        exact[i, j] = exact[j, i] = value
    out: Row = {}
    for keep, margin in ((3, 0.0), (3, 0.1), (5, 0.1), (8, 0.1)):
        found = kept = 0
        for i in range(k):
            others = [j for j in range(k) if j != i]
            chosen = cut([float(quick[i, j]) for j in others], Screen(keep=keep, margin=margin)).kept
            kept += len(chosen)
            found += len({others[c] for c in chosen} & set(exact[i].argsort()[:3].tolist()))
        out[f"recall at {keep}, margin {margin}"] = found / (3 * k)
        out[f"kept at {keep}, margin {margin}"] = kept / k
    return out


PARTS = {
    "values": sample_values,
    "selection": selection,
    "gate": gate,
    "screening": screening,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for part in arguments.parts or PARTS:
        results[part] = []
        for row in PARTS[part](arguments.data_root):
            shown = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            print(part, json.dumps(shown), flush=True)
            results[part].append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
