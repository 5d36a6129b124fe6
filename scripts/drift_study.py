"""Measure level and power of the drift check on digits, MNIST and tables.

python scripts/drift_study.py DATA_ROOT [--sets digits mnist diamonds ...] [--parts level reference power]
    [--drifts KIND ...] [--size 200] [--draws 20] [--level-size 60] [--level-draws 200] [--seed 0] [--json FILE]

``level``      clean batches against fresh references, both of ``level-size`` rows: the pooled null.
``reference``  clean batches of ``level-size`` rows against one reference of twenty times as many (or half of the set):
               the null of that reference, with the confirmation by the pooled null.
``power``      ``draws`` pairs of ``size`` rows, drift of each kind in the batch; beside the test the divergence alone.

The set diamonds (53,940 rows, numbers and categories, the label is the cut) comes with plotnine (pip install plotnine);
other tables are DATA_ROOT/tabular/NAME.csv.gz, with the columns of numbers standardized and the categories one-hot.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

import otdd_flash as otdd
from otdd_flash.types import LabeledDataset

Row = dict[str, object]
EXCHANGED = {"digits": ("3", "8"), "mnist": ("4", "9"), "diamonds": ("Ideal", "Premium")}
LABELS = {"LetterRecognition": "lettr", "Satellite": "classes", "spam": "type", "PimaIndiansDiabetes": "diabetes"}


def population(name: str, data_root: Path) -> LabeledDataset:
    """What samples are drawn from."""
    if name == "digits":
        return otdd.load(name)
    if name == "mnist":
        return otdd.load(name, data_root=data_root)
    path, label = data_root / "tabular" / f"{name}.csv.gz", LABELS.get(name, "Class")
    if name == "diamonds":
        found = importlib.util.find_spec("plotnine")
        if found is None or found.origin is None:
            raise SystemExit("the set diamonds comes with plotnine: pip install plotnine, or leave it out of --sets")
        path, label = Path(found.origin).parent / "data" / "diamonds.csv", "cut"
    import pandas

    from otdd_flash.data.features.tables import table_pair

    frame = pandas.read_csv(path)
    return replace(table_pair(frame, frame.iloc[:1], label=label)[0], name=name)


def samples(data: LabeledDataset, sizes: tuple[int, int], seed: int) -> list[LabeledDataset]:
    """Disjoint random samples."""
    order = torch.randperm(data.n, generator=torch.Generator().manual_seed(seed))
    return [data.subset(rows) for rows in order[: sum(sizes)].split(sizes)]


def exchanged(data: LabeledDataset, seed: int) -> LabeledDataset:
    """Two classes carry each other's name."""
    names = list(data.class_names)
    first, second = EXCHANGED.get(data.name, names[:2])
    swap = {first: second, second: first}
    return replace(data, class_names=tuple(swap.get(name, name) for name in names))


def shuffled(share: float) -> Callable[[LabeledDataset, int], LabeledDataset]:
    """The labels of a share of the rows are shuffled among these."""

    def change(data: LabeledDataset, seed: int) -> LabeledDataset:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(data.n, generator=generator)[: round(share * data.n)]
        y = data.y.clone()
        y[rows] = y[rows[torch.randperm(len(rows), generator=generator)]]
        return replace(data, y=y)

    return change


def thinned(share: float) -> Callable[[LabeledDataset, int], LabeledDataset]:
    """The first half of the classes loses a share of its rows."""

    def change(data: LabeledDataset, seed: int) -> LabeledDataset:
        lost = torch.rand(data.n, generator=torch.Generator().manual_seed(seed)) < share
        return data.subset((~(lost & (data.y < data.num_classes // 2))).nonzero()[:, 0])

    return change


def removed(data: LabeledDataset, seed: int) -> LabeledDataset:
    """The first class is not there."""
    return data.subset((data.y != 0).nonzero()[:, 0])


def moved(deviations: float) -> Callable[[LabeledDataset, int], LabeledDataset]:
    """Every feature is moved by so many of its standard deviations."""
    return lambda data, seed: replace(data, x=data.x + deviations * data.x.std(0), levels=None)


DRIFTS: dict[str, Callable[[LabeledDataset, int], LabeledDataset]] = {
    "names exchanged": exchanged, "labels shuffled, 5 %": shuffled(0.05), "labels shuffled, 10 %": shuffled(0.1),
    "labels shuffled, 20 %": shuffled(0.2), "half of the classes thinned by 40 %": thinned(0.4),
    "a class removed": removed, "features moved by 0.1 deviations": moved(0.1),
    "features moved by 0.2 deviations": moved(0.2),
}  # fmt: skip


def rates(p: list[float]) -> Row:
    """Rejections with the range of a right test (binomial, one in a thousand on either side)."""
    from scipy.stats import binom, kstest

    low, high = binom.ppf([0.001, 0.999], len(p), 0.05) / len(p)
    rate = sum(value <= 0.05 for value in p) / len(p)
    return {
        "runs": len(p), "rate at 0.05": rate, "within": bool(rate <= high), "bounds": (float(low), float(high)),
        "rate at 0.10": sum(value <= 0.10 for value in p) / len(p), "KS p": float(kstest(p, "uniform").pvalue),
    }  # fmt: skip


def level(data: LabeledDataset, given: argparse.Namespace) -> Iterator[Row]:
    """Clean batches against fresh references."""
    size, p = given.level_size, []
    for draw in range(given.level_draws):
        a, b = samples(data, (size, size), given.seed + draw)
        p.append(otdd.check(a, b, permutations=99, seed=draw, new_classes="allow").p_value)
    yield {"null": "pooled", "rows": size, **rates(p)}


def reference(data: LabeledDataset, given: argparse.Namespace) -> Iterator[Row]:
    """Clean batches against one reference."""
    size = given.level_size
    rows = min(20 * size, data.n // 2)
    trusted, rest = samples(data, (rows, data.n - rows), given.seed)
    watch = otdd.DriftCheck(
        trusted, null="reference", permutations=99, max_samples=size, new_classes="allow", cache=None
    )
    found = []
    for draw in range(given.level_draws):
        watch.reset()
        found.append(watch.update(samples(rest, (size, 0), given.seed + draw)[0]).compute())
    confirmed = sum(result.null_of == "pooled" for result in found)
    yield {
        "null": "reference", "rows": size, "of": rows, **rates([result.p_value for result in found]),
        "not cleared": confirmed / len(found),
    }  # fmt: skip


def power(data: LabeledDataset, given: argparse.Namespace) -> Iterator[Row]:
    """Rejections at 0.05 by kind of drift: of the test, and of each part by itself."""
    for kind in given.drifts:
        change, found = DRIFTS[kind], []
        for draw in range(given.draws):
            a, b = samples(data, (given.size, given.size), given.seed + draw)
            found.append(otdd.check(a, change(b, draw), permutations=99, seed=draw, new_classes="allow"))
        share = {part: sum(r.parts[part] <= 0.05 for r in found) / len(found) for part in found[0].parts}
        yield {"drift": kind, "rows": given.size, "power": sum(r.exceeded for r in found) / len(found), **share}


PARTS = {"level": level, "reference": reference, "power": power}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--sets", nargs="+", default=["digits", "mnist", "diamonds"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--drifts", nargs="+", choices=DRIFTS, default=list(DRIFTS))
    for name, default in (("size", 200), ("draws", 20), ("level-size", 60), ("level-draws", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write all rows there")
    given = parser.parse_args()
    rows = []
    for name in given.sets:
        data = population(name, given.data_root)
        for part in given.parts:
            for row in PARTS[part](data, given):
                rows.append({"set": name, "part": part, **row})
                print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
