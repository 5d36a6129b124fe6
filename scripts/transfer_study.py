"""Does a smaller OTDD mean a better transfer? Rank correlation over variants of real sets; see docs/transfer.md.

python scripts/transfer_study.py DATA_ROOT [--targets mnist usps fashion_mnist] [--json FILE] [--markdown FILE]
python scripts/transfer_study.py --from FILE --markdown FILE
"""

from __future__ import annotations

import argparse
import json
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

import otdd_flash as otdd
from otdd_flash.data.features import Batching, Pca
from otdd_flash.flows.transfer import knn_predict
from otdd_flash.screening import Slices, moment_distance
from otdd_flash.types import LabeledDataset

Row = dict[str, Any]

SETS = {"mnist": "train", "usps": "train", "digits": "train", "fashion_mnist": "train", "kmnist": "test"}
DIGITS = ("mnist", "usps", "digits")
COMPONENTS = 50
BEST = "OTDD, 50 components, epsilon 0.1"
DISTANCES: dict[str, tuple[int | None, dict[str, Any]]] = {  # principal components, if any, and options
    "OTDD": (None, {}),
    "OTDD, epsilon 0.1": (None, {"relative_epsilon": 0.1}),
    "OTDD, 50 components": (COMPONENTS, {}),
    BEST: (COMPONENTS, {"relative_epsilon": 0.1}),
    "features alone, epsilon 0.1": (None, {"relative_epsilon": 0.1, "label_weight": 0.0}),
}
SCREENS: dict[str, int | None] = {
    "sliced": None, "moments": None, "sliced, 50 components": COMPONENTS, "moments, 50 components": COMPONENTS,
}  # fmt: skip
PAIRS = ("OTDD", "OTDD, 50 components", BEST)  # the distances that are shown by family and source
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
    given = {"split": split, "data_root": root, "classes": named, "max_samples": count, "seed": seed}
    return otdd.load(name, resize=(28, 28), fit="pad:4", **given)


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


def label_ids(data: LabeledDataset, names: Sequence[str], of: torch.Tensor | None = None) -> torch.Tensor:
    """Class ids of ``data``, by default those of its samples, in the order of ``names``."""
    return torch.tensor([names.index(name) for name in data.class_names])[data.y if of is None else of]


def direct_accuracy(source: LabeledDataset, test: LabeledDataset, mlp: Any) -> Row:
    """Classifiers trained on the source with its labels, tested on the target as they are."""
    names = test.class_names
    y, truth = label_ids(source, names), label_ids(test, names)
    found = {"5-NN": float((knn_predict(source.x, y, test.x) == truth).double().mean())}
    found["logistic"] = float(logistic().fit(source.x.numpy(), y.numpy()).score(test.x.numpy(), truth.numpy()))
    guesses = label_ids(source, names, of=torch.from_numpy(mlp.predict(test.x.numpy())))
    return found | {"MLP": float((guesses == truth).double().mean())}


def few_shot_accuracy(
    source: LabeledDataset, target: LabeledDataset, test: LabeledDataset, hidden: Any, seed: int
) -> Row:
    """A representation learned on the source; a linear head on ten target samples a class; mean over draws."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    weight, bias = hidden.coefs_[0], hidden.intercepts_[0]
    pca = PCA(COMPONENTS, random_state=seed).fit(source.x.numpy())
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


def study(name: str, seed: int, root: Path, sizes: Sizes) -> Iterator[Row]:
    """One row a source for one target and one draw of all samples."""
    from sklearn.neural_network import MLPClassifier

    both = load(name, sizes.target + sizes.test, "test", seed, root)
    order = torch.randperm(both.n, generator=torch.Generator().manual_seed(seed))
    target, test = both.subset(order[: sizes.target]), both.subset(order[sizes.target :])
    kin = DIGITS if name in DIGITS else (name,)
    sources = [
        (set_name, *found)
        for set_name in SETS
        for found in variants(set_name, sizes.source, seed, root, few=set_name not in kin)
    ]
    views = {None: (target, [data for _, _, _, data in sources])}
    views[COMPONENTS] = projected(*views[None])
    screens = {label: screened(*views[components], label, seed) for label, components in SCREENS.items()}
    for position, (set_name, family, title, data) in enumerate(sources):
        row: Row = {"target": name, "seed": seed, "source": title, "family": family, "same": set_name in kin}
        tables: dict[int | None, Any] = {}
        for label, (components, options) in DISTANCES.items():
            aim, others = views[components]
            table = tables.get(components, "gaussian")
            result = otdd.dataset_distance(others[position], aim, label_distance=table, **options)
            tables.setdefault(components, result.label_distances)  # whatever epsilon is
            row[label] = result.value
            row["converged"] = row.get("converged", True) and result.converged
        row |= {label: values[position] for label, values in screens.items()}
        mlp = MLPClassifier((100,), max_iter=60, random_state=seed).fit(data.x.numpy(), data.y.numpy())
        if row["same"]:
            row |= direct_accuracy(data, test, mlp)
        yield row | few_shot_accuracy(data, target, test, mlp, seed)


def projected(target: LabeledDataset, sources: Sequence[LabeledDataset]) -> tuple[LabeledDataset, list[LabeledDataset]]:
    """All sets in the principal components of the target."""
    pca = Pca(COMPONENTS).fitted(target)
    batching = Batching(progress=False)
    rows = [relabelled(data, pca.embed(data, batching), data.y) for data in (target, *sources)]
    return rows[0], rows[1:]


def screened(target: LabeledDataset, sources: Sequence[LabeledDataset], screen: str, seed: int) -> list[float]:
    """Distances of the fast tier from each source to the target."""
    if screen.startswith("moments"):
        return [moment_distance(source, target) for source in sources]
    slices = Slices.draw([target, *sources], seed=seed)
    aim = slices.summary(target)
    return [float((slices.summary(source) - aim).square().mean()) for source in sources]


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
    found: Row = {"x": x, "y": y, "sources": len(rows), "rho": float(spearman(a, b))}
    if len(rows) < 8:  # too few to say more
        return found
    test = stats.permutation_test(
        (stats.rankdata(a),), lambda first, axis: spearman(first, b), permutation_type="pairings", vectorized=True,
        n_resamples=resamples, rng=np.random.default_rng(0),
    )  # fmt: skip
    interval = stats.bootstrap(
        (a, b), spearman, paired=True, vectorized=True, n_resamples=resamples, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return found | {"p": float(test.pvalue), "low": float(interval.low), "high": float(interval.high)}


def spearman(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Rank correlation along the last axis of stacks of samples."""
    from scipy.stats import rankdata

    first, second = (rankdata(values, axis=-1) for values in (a, b))
    first, second = (ranks - ranks.mean(-1, keepdims=True) for ranks in (first, second))
    return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Sources with the target's labels: all, without pixel noise, and by what was varied."""
    same = [row for row in rows if row["same"]]
    parts = {"all": same, "without noise": [row for row in same if row["family"] != "noise"]}
    for family in dict.fromkeys(row["family"] for row in same if row["family"] != "plain"):
        # what is varied is varied from the plain sets, which therefore belong to each family
        parts[family] = [row for row in same if row["family"] in (family, "plain")]
    return parts


def by_seed(rows: Sequence[Row], x: str, y: str) -> list[float]:
    """rho of each draw alone, over the sources with the target's labels."""
    seeds = dict.fromkeys(row["seed"] for row in rows)
    parts = [[row for row in rows if row["seed"] == seed and row["same"]] for seed in seeds]
    return [float(spearman(*(np.array([row[key] for row in part]) for key in (x, y)))) for part in parts]


def cell(found: Row) -> str:
    """rho, its interval, and the p-value where that is not below 0.001."""
    text = f"{found['rho']:.2f}"
    if "p" not in found:
        return text
    doubt = f"; p {found['p']:.3f}" if found["p"] >= 0.001 else ""
    return f"{text} ({found['low']:.2f}, {found['high']:.2f}{doubt})"


def markdown(rows: Sequence[Row], target: str, sources: bool) -> str:
    """The tables of one target, with or without the one of all sources."""
    mean = averaged(rows)
    parts = groups(mean)
    lines = [
        f"### Target {target}",
        "",
        f"{len(parts['all'])} sources with the target's labels; {len(mean)} in all.",
        "",
    ]
    measured = [(y, parts["all"]) for y in DIRECT] + [(y, mean) for y in FEW_SHOT]
    lines += table(["distance", *DIRECT, *(f"few-shot {name}" for name in FEW_SHOT)], [
        [x, *(cell(correlation(part, x, y)) for y, part in measured)] for x in (*DISTANCES, *SCREENS)
    ])  # fmt: skip
    alone = "; ".join(f"{y} {', '.join(f'{value:.2f}' for value in by_seed(rows, BEST, y))}" for y in DIRECT)
    lines += ["", f"Each draw alone, {BEST}: {alone}.", ""]
    lines += table(["5-NN over", "sources", *PAIRS], [
        [name, str(len(part)), *(cell(correlation(part, x, DIRECT[0])) for x in PAIRS)] for name, part in parts.items()
    ])  # fmt: skip
    lines += ["", *table(["fast tier", "the full distance", "at epsilon 0.1"], [
        [x, *(cell(correlation(mean, x, y)) for y in (PAIRS[1:] if components else list(DISTANCES)[:2]))]
        for x, components in SCREENS.items()
    ])]  # fmt: skip
    if sources:
        columns = (*PAIRS, "sliced, 50 components", "moments, 50 components", *DIRECT, *FEW_SHOT)
        lines += ["", *table(["source", *columns], [
            [row["source"], *(f"{row[key]:.3g}" if key in row else "" for key in columns)]
            for row in sorted(mean, key=lambda row: row[BEST])
        ])]  # fmt: skip
    return "\n".join([*lines, ""])


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
    parser.add_argument("--sources", nargs="*", default=["mnist"], help="targets whose sources are listed one by one")
    arguments = parser.parse_args()
    if (arguments.rows is None) == (arguments.data_root is None):
        parser.error("give DATA_ROOT, or --from with the rows of an earlier run")
    rows: list[Row] = [] if arguments.rows is None else json.loads(arguments.rows.read_text())
    if arguments.data_root is not None:
        warnings.filterwarnings("ignore", message="Stochastic Optimizer")  # 60 rounds of training are the setting
        sizes = Sizes(arguments.size, arguments.size, arguments.test)
        for seed in range(arguments.seeds):
            for target in arguments.targets:
                for row in study(target, seed, arguments.data_root, sizes):
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
                if arguments.json:
                    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    targets = dict.fromkeys(row["target"] for row in rows)
    text = "\n".join(
        markdown([row for row in rows if row["target"] == target], target, sources=target in arguments.sources)
        for target in targets
    )
    if arguments.markdown:
        arguments.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
