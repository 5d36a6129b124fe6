"""Does a smaller OTDD mean a better transfer? Rank correlation over variants of real sets; see docs/transfer.md.

python scripts/transfer_study.py DATA_ROOT [--targets mnist usps fashion_mnist] [--json FILE] [--markdown FILE]
python scripts/transfer_study.py --from FILE --markdown FILE
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from selection_study import rotated
from torch.nn import functional

import otdd_flash as otdd
from otdd_flash.flows.transfer import knn_predict
from otdd_flash.selection.sliced import Slices, moment_distances
from otdd_flash.types import LabeledDataset

Row = dict[str, Any]

SETS = {"mnist": "train", "usps": "train", "digits": "train", "fashion_mnist": "train", "kmnist": "test"}
DIGITS = ("mnist", "usps", "digits")
DISTANCES: dict[str, dict[str, Any]] = {
    "OTDD": {},
    "OTDD, epsilon 0.1": {"relative_epsilon": 0.1},
    "features alone, epsilon 0.1": {"relative_epsilon": 0.1, "label_weight": 0.0},
}
SCREENS = ("sliced", "moments")
DIRECT = ("5-NN", "logistic", "MLP")
FEW_SHOT = ("MLP layer", "PCA")
SHOTS, HEADS = 10, 5  # target samples a class for a head, and how many such draws are averaged


@dataclass(frozen=True)
class Sizes:
    """Samples of a source, of a target (for the distance), and of the target's test."""

    source: int = 1000
    target: int = 1000
    test: int = 2000


def load(name: str, count: int, split: str, seed: int, root: Path, classes: Sequence[int] | None = None) -> Any:
    """At most ``count`` samples as 28 x 28 pictures with MNIST's margin of four pixels."""
    split = "all" if name == "digits" else split
    named = None if classes is None else list(classes)
    data = otdd.load(name, split=split, data_root=root, classes=named, max_samples=count, seed=seed)
    if data.d == 784:
        return data
    side = math.isqrt(data.d)
    pictures = functional.interpolate(data.x.view(-1, 1, side, side), size=20, mode="bilinear", antialias=True)
    return relabelled(data, functional.pad(pictures.clamp(0, 1), (4, 4, 4, 4)).flatten(1), data.y)


def relabelled(data: LabeledDataset, x: torch.Tensor, y: torch.Tensor) -> LabeledDataset:
    """Other features and labels under the class names that the ids have in ``data``."""
    return otdd.from_arrays(x, y, class_names=data.class_names, name=data.name)


def variants(name: str, size: int, seed: int, root: Path, few: bool) -> Iterator[tuple[str, str, LabeledDataset]]:
    """(family, name, data): the set, and the set turned, with noise, with fewer classes, with wrong labels."""
    split, generator = SETS[name], torch.Generator().manual_seed(seed)
    base = load(name, size, split, seed, root)
    yield "plain", name, base
    for degrees in (30, 90) if few else (15, 30, 45, 60, 90):
        yield "rotation", f"{name} {degrees} deg", relabelled(base, rotated(base, degrees).x, base.y)
    for level in (0.4,) if few else (0.2, 0.4, 0.6):
        noise = level * torch.randn(base.x.shape, generator=generator)
        yield "noise", f"{name} noise {level}", relabelled(base, base.x + noise, base.y)
    for count in (5,) if few else (7, 5, 3):
        yield "classes", f"{name} {count} classes", load(name, size, split, seed, root, range(count))
    for share in () if few else (0.2, 0.4, 0.6):
        hit = torch.rand(base.n, generator=generator) < share
        other = (base.y + torch.randint(1, 10, (base.n,), generator=generator)) % 10
        yield "labels", f"{name} {share:.0%} wrong labels", relabelled(base, base.x, torch.where(hit, other, base.y))


def label_ids(data: LabeledDataset, names: Sequence[str]) -> torch.Tensor:
    """Class ids in the order of ``names``."""
    return torch.tensor([names.index(name) for name in data.class_names])[data.y]


def direct_accuracy(source: LabeledDataset, test: LabeledDataset, seed: int) -> Row:
    """Classifiers trained on the source with its labels, tested on the target as they are."""
    names = test.class_names
    y, truth = label_ids(source, names), label_ids(test, names)
    found = {"5-NN": float((knn_predict(source.x, y, test.x) == truth).double().mean())}
    for name, model in (("logistic", logistic()), ("MLP", network(seed))):
        found[name] = float(model.fit(source.x.numpy(), y.numpy()).score(test.x.numpy(), truth.numpy()))
    return found


def few_shot_accuracy(source: LabeledDataset, target: LabeledDataset, test: LabeledDataset, seed: int) -> Row:
    """A representation learned on the source; a linear head on ten target samples a class; mean over draws."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    hidden = network(seed).fit(source.x.numpy(), source.y.numpy())
    weight, bias = hidden.coefs_[0], hidden.intercepts_[0]
    pca = PCA(50, random_state=seed).fit(source.x.numpy())
    maps = {"MLP layer": lambda x: np.maximum(x @ weight + bias, 0), "PCA": pca.transform}
    scores: dict[str, list[float]] = {name: [] for name in maps}
    for draw in range(HEADS):
        shots = few(target, seed * HEADS + draw)
        for name, function in maps.items():
            inputs, tests = function(target.x[shots].numpy()), function(test.x.numpy())
            scaler = StandardScaler().fit(inputs)
            head = logistic().fit(scaler.transform(inputs), target.y[shots].numpy())
            scores[name].append(head.score(scaler.transform(tests), test.y.numpy()))
    return {name: statistics.mean(values) for name, values in scores.items()}


def few(target: LabeledDataset, seed: int) -> torch.Tensor:
    """Ten rows a class."""
    order = torch.randperm(target.n, generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[target.y[order] == c][:SHOTS] for c in range(target.num_classes)])


def logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=300)


def network(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((100,), max_iter=60, random_state=seed)


def study(name: str, seed: int, root: Path, sizes: Sizes) -> Iterator[Row]:
    """One row a source for one target and one draw of all samples."""
    both = load(name, sizes.target + sizes.test, "test", seed, root)
    order = torch.randperm(both.n, generator=torch.Generator().manual_seed(seed))
    target, test = both.subset(order[: sizes.target]), both.subset(order[sizes.target :])
    kin = DIGITS if name in DIGITS else (name,)
    sources = [
        (set_name, *found)
        for set_name in SETS
        for found in variants(set_name, sizes.source, seed, root, few=set_name not in kin)
    ]
    slices = Slices.draw([target, *(data for _, _, _, data in sources)], seed=seed)
    aim = slices.summary(target)
    moments = moment_distances([target, *(data for _, _, _, data in sources)])[0, 1:].tolist()
    for (set_name, family, title, data), moment in zip(sources, moments, strict=True):
        row: Row = {"target": name, "seed": seed, "source": title, "family": family, "same": set_name in kin}
        for label, options in DISTANCES.items():
            result = otdd.dataset_distance(data, target, **options)
            row[label] = result.value
            row["converged"] = row.get("converged", True) and result.converged
        row["sliced"], row["moments"] = float((slices.summary(data) - aim).square().mean()), moment
        if row["same"]:
            row |= direct_accuracy(data, test, seed)
        yield row | few_shot_accuracy(data, target, test, seed)


def averaged(rows: Sequence[Row]) -> list[Row]:
    """One row a source: numbers averaged over seeds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["source"], []).append(row)
    keys = [key for key, value in rows[0].items() if key == "source" or not isinstance(value, float)]
    return [
        {key: group[0][key] for key in keys}
        | {k: statistics.mean(r[k] for r in group) for k, v in group[0].items() if isinstance(v, float)}
        for group in groups.values()
    ]


def correlation(rows: Sequence[Row], x: str, y: str, resamples: int = 9999) -> Row:
    """Spearman's rho with the p-value of a permutation test and a bootstrap interval over the sources."""
    from scipy import stats

    a, b = (np.array([row[key] for row in rows]) for key in (x, y))

    def rho(first: np.ndarray, second: np.ndarray) -> float:
        return float(stats.spearmanr(first, second).statistic)

    found: Row = {"x": x, "y": y, "sources": len(rows), "rho": rho(a, b)}
    if len(rows) < 8:  # too few to say more
        return found
    test = stats.permutation_test(
        (a,), lambda first: rho(first, b), permutation_type="pairings", n_resamples=resamples, rng=np.random.default_rng(0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        interval = stats.bootstrap(
            (a, b), rho, paired=True, vectorized=False, n_resamples=2000, method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
    return found | {"p": float(test.pvalue), "low": float(interval.low), "high": float(interval.high)}


def summary(rows: Sequence[Row]) -> list[Row]:
    """All correlations of one target: each distance with each accuracy, each screen with the full distance."""
    mean = averaged(rows)
    same = [row for row in mean if row["same"]]
    pairs = [(d, a, same, "same labels") for d in (*DISTANCES, *SCREENS) for a in DIRECT]
    pairs += [(d, a, mean, "all sources") for d in (*DISTANCES, *SCREENS) for a in FEW_SHOT]
    pairs += [(s, d, mean, "all sources") for s in SCREENS for d in DISTANCES]
    found = [{"over": over} | correlation(part, x, y) for x, y, part, over in pairs]
    for family in dict.fromkeys(row["family"] for row in same):
        # what is varied is varied from the plain set, which therefore belongs to each family
        part = [row for row in same if row["family"] in (family, "plain")]
        found += [{"over": f"family {family}"} | correlation(part, "OTDD", a) for a in DIRECT]
    return found


def by_seed(rows: Sequence[Row], x: str, y: str) -> list[float]:
    """rho of each draw alone."""
    from scipy.stats import spearmanr

    seeds = dict.fromkeys(row["seed"] for row in rows)
    parts = [[row for row in rows if row["seed"] == seed and row["same"]] for seed in seeds]
    return [float(spearmanr([r[x] for r in part], [r[y] for r in part]).statistic) for part in parts]


def markdown(rows: Sequence[Row], target: str) -> str:
    """The tables of one target."""
    lines = [f"### Target {target}", ""]
    columns = ("OTDD", "OTDD, epsilon 0.1", *SCREENS, *DIRECT, *FEW_SHOT)
    lines += table(["source", *columns], [
        [row["source"], *(f"{row[key]:.3g}" if key in row else "" for key in columns)]
        for row in sorted(averaged(rows), key=lambda row: row["OTDD"])
    ])  # fmt: skip
    lines += ["", *table(["over", "sources", "x", "y", "rho", "95 % interval", "p"], [
        [r["over"], str(r["sources"]), r["x"], r["y"], f"{r['rho']:.2f}",
         f"{r['low']:.2f} to {r['high']:.2f}" if "low" in r else "", f"{r['p']:.4f}" if "p" in r else ""]
        for r in summary(rows)
    ])]  # fmt: skip
    alone = "; ".join(
        f"{a}: {', '.join(f'{value:.2f}' for value in by_seed(rows, 'OTDD', a))}" for a in DIRECT
    )
    return "\n".join([*lines, "", f"rho of OTDD over the sources with the same labels, each draw alone: {alone}.", ""])


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path, nargs="?")
    parser.add_argument("--targets", nargs="+", default=["mnist", "usps", "fashion_mnist"], choices=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1000, help="samples of each source and each target")
    parser.add_argument("--test", type=int, default=2000, help="samples of the target's test, as far as there are")
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--from", dest="rows", type=Path, help="take the rows of an earlier run instead of measuring")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    arguments = parser.parse_args()
    if (arguments.rows is None) == (arguments.data_root is None):
        parser.error("give DATA_ROOT, or --from with the rows of an earlier run")
    rows: list[Row] = [] if arguments.rows is None else json.loads(arguments.rows.read_text())
    if arguments.data_root is not None:
        warnings.filterwarnings("ignore", message="Stochastic Optimizer")  # 60 rounds of training are the setting
        sizes = Sizes(arguments.size, arguments.size, arguments.test)
        for target in arguments.targets:
            for seed in range(arguments.seeds):
                for row in study(target, seed, arguments.data_root, sizes):
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    targets = dict.fromkeys(row["target"] for row in rows)
    text = "\n".join(markdown([row for row in rows if row["target"] == target], target) for target in targets)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
