"""Sections on one distance: the number, distances between classes, which class feeds which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from otdd_flash.reporting.blocks import Cell, Facts, Folded, Headline, Notes, Part, Section, Table, Text, Verdict
from otdd_flash.reporting.heat import Scale, heat_map
from otdd_flash.reporting.numbers import flat, number, plain, seconds, share, size
from otdd_flash.reporting.views import DistanceView

if TYPE_CHECKING:
    from otdd_flash.selection.ranking import RankedSet, Ranking

_FOLDED_ROWS = 30  # a longer table is folded
_NESTED = ("class_counts", "certificates", "notes", "versions", "names", "config", "conventional", "task")
_ON_TOP = (
    "value", "root", "converged", "dual", "primal", "gap", "error", "marginal_error", "iterations", "n", "m",
    "mean_cost", "seconds", "peak_memory",
)  # fmt: skip


def distance_part(view: DistanceView, ranking: Ranking | None = None, *, named: bool = False) -> Part:
    """Sections on ``view``.

    Args:
        view: the distance.
        ranking: one that holds the same pair and lends its interval.
        named: say in every title which sets it is about.
    """
    record = view.record
    source, target = record["names"]
    ranked = None if ranking is None else ranking[source]
    coupling = view.coupling if view.coupling is not None or ranked is None else ranked.coupling
    about = f": {source} → {target}" if named else ""
    sections = [Section("distance", f"Distance{about}", _number(record, ranking, ranked))]
    if view.labels is not None:
        sections.append(Section("class-distances", f"Distances between classes{about}", _class_distances(view)))
    shown = matching(coupling, *view.class_names)
    sections.append(Section("class-matching", f"Which class feeds which{about}", shown))
    alerts = [] if record["converged"] else [
        f"{source} → {target}: NOT CONVERGED. The marginal error is {number(record['marginal_error'], 2)} (tolerance "
        f"{number(record['tol'], 2)}) and the value is known to {number(record['error'], 2)}; do not use this number. "
        "Raise max_iterations or epsilon."
    ]  # fmt: skip
    return Part(
        title=f"{source} → {target}", sections=sections, alerts=alerts, parameters=distance_parameters(record),
        versions=record["versions"],
    )  # fmt: skip


def distance_parameters(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What the distance was computed with, and what the command line added."""
    own = {key: value for key, value in record.items() if key not in (*_NESTED, *_ON_TOP)}
    return [*flat(own), *flat({"config": record["config"]} if "config" in record else {})]


def _number(record: dict[str, Any], ranking: Ranking | None, ranked: RankedSet | None) -> list[Any]:
    """The number with its certificate."""
    kind = "squared distance, debiased" if record["debiased"] else "squared distance, with entropic bias"
    lines = [f"distance (its root) {number(record['root'])}"]
    blocks: list[Any] = [Headline(kind, number(record["value"]), lines), verdict(record)]
    theirs = record["conventional"]
    if theirs:
        blocks.append(
            Verdict(False, f"{theirs['name']} convention: {number(theirs['value'])}, not converged, "
                           f"{share(abs(theirs['off_by']))} off the value above")
        )  # fmt: skip
    blocks.append(Facts(_certificate(record, ranking, ranked)))
    if ranking is not None and ranked is not None and ranked.low is not None:
        blocks.append(Text(
            "The interval is about the draw of the samples. A value of finite samples is too large by its sampling "
            "bias, which the interval has subtracted: it may lie wholly below the value."
        ))  # fmt: skip
    if record["notes"]:
        blocks.append(Notes(record["notes"]))
    return [*blocks, _classes(record), *_problems(record)]


def verdict(record: dict[str, Any]) -> Verdict:
    """Converged or not, with the measured error."""
    error = f"marginal error {number(record['marginal_error'], 2)}, tolerance {number(record['tol'], 2)}"
    if record["converged"]:
        return Verdict(True, f"converged: {error}")
    return Verdict(False, f"NOT CONVERGED, do not use this number: {error}")


def _certificate(
    record: dict[str, Any], ranking: Ranking | None, ranked: RankedSet | None
) -> list[tuple[str, str]]:  # fmt: skip
    rows = []
    if ranking is not None and ranked is not None and ranked.low is not None:
        level = f"{ranking.level:.0%} interval of the value, bias subtracted"
        rows += [
            (level, f"{number(ranked.low)} to {number(ranked.high)}  ({ranking.bootstrap} half-samples of both sets)"),
            ("sampling bias of the value", number(ranked.bias)),
        ]
    else:
        rows.append(("interval", "not computed"))
    rows += [
        ("dual and primal value", f"{number(record['dual'], 6)} and {number(record['primal'], 6)}"),
        ("gap; stated error", f"{number(record['gap'], 2)}; {number(record['error'], 2)}"),
        ("iterations", number(record["iterations"])),
        ("epsilon", f"{number(record['epsilon'])}  ({number(record['relative_epsilon'], 3)} of the mean cost)"),
        ("mean cost", number(record["mean_cost"])),
        ("samples", f"{number(record['n'])} × {number(record['m'])}"),
        ("label distance", record["label_method"]),
        ("computed by", ", ".join(record[key] for key in ("backend", "precision", "memory", "device"))),
        ("time", seconds(record["seconds"])),
        ("peak memory", size(record["peak_memory"])),
    ]
    dropped = {side: rows for side, rows in zip(record["names"], record["dropped"], strict=True) if rows}
    if dropped:
        rows.append(("dropped rows", "; ".join(f"{side}: {plain(flat(rows))}" for side, rows in dropped.items())))
    return rows


def _classes(record: dict[str, Any]) -> Folded:
    """Sizes of the classes of both sides."""
    tables = [
        Table(("class", "samples", "share"), [_class_row(name, count, counts) for name, count in counts.items()], side)
        for side, counts in zip(record["names"], record["class_counts"], strict=True)
    ]
    many = " and ".join(str(len(counts)) for counts in record["class_counts"])
    return Folded(f"Classes: {many}", tables)


def _class_row(name: str, count: int, counts: dict[str, int]) -> tuple[str | Cell, ...]:
    return name, number(count), Cell(share(count / sum(counts.values())), (0.0, count / max(counts.values())))


def _problems(record: dict[str, Any]) -> list[Folded]:
    """The certificate of each transport problem behind the number."""
    rows = record["certificates"]
    if not rows:
        return []
    head = list(rows[0])
    table = Table(head, [[plain(row.get(key)) for key in head] for row in rows])
    return [Folded("Certificates of the single problems", [table])]


def _class_distances(view: DistanceView) -> list[Any]:
    """The cross table, the nearest class of each, and the two self tables folded."""
    labels = view.labels
    assert labels is not None
    sides = view.record["names"]
    cross, own_source, own_target = (
        table.double().clamp_min(0).sqrt()
        for table in (labels.source_target, labels.source_source, labels.target_target)
    )
    names = labels.source_names, labels.target_names
    blocks: list[Any] = [Text(
        f"Roots of the squared class-to-class distances ({labels.method}); faint is near. Rows are classes of "
        f"{sides[0]}, columns of {sides[1]}."
    )]  # fmt: skip
    blocks += heat_map(cross, *names, Scale.of(cross), caption="source to target", corner="source ↓  target →")
    for side, own, classes in ((sides[0], own_source, names[0]), (sides[1], own_target, names[1])):
        if len(classes) > 1:
            shown = heat_map(own, classes, classes, Scale.apart(own), caption=side, corner="class")
            blocks.append(Folded(f"Distances within {side}", shown))
    return blocks


def matching(coupling: Tensor | None, source: Sequence[str], target: Sequence[str]) -> list[Any]:
    """Where the plan sends each class, and what feeds each class."""
    if coupling is None:
        return [Text("Not known: neither the result nor its files hold the mass that the plan moves between classes.")]
    mass = coupling.detach().double().cpu()
    sent, received = _normalised(mass, 1), _normalised(mass, 0)
    scale = Scale(0.0, 1.0, share)
    blocks: list[Any] = [Text(
        "From the transport plan. In the map, each row shows where the mass of a source class goes; in the table, what "
        "each target class is made of."
    )]  # fmt: skip
    blocks += heat_map(
        sent, source, target, scale, caption="share of the source class that goes to the target class",
        corner="source ↓  target →",
    )  # fmt: skip
    table = Table(
        ("target class", "mostly from", "share of the target class", "then from"), _feeding(received, source, target)
    )
    blocks.append(Folded(f"What feeds each of {len(target)} classes", [table]) if len(target) > _FOLDED_ROWS else table)
    return blocks


def _feeding(received: Tensor, source: Sequence[str], target: Sequence[str]) -> list[tuple[str | Cell, ...]]:
    """For each target class its first and second source."""
    rows: list[tuple[str | Cell, ...]] = []
    for j, name in enumerate(target):
        column = received[:, j]
        order = column.argsort(descending=True, stable=True).tolist()
        first = float(column[order[0]])
        then = f"{source[order[1]]} ({share(float(column[order[1]]))})" if len(order) > 1 else ""
        rows.append((name, source[order[0]], Cell(share(first), (0.0, min(first, 1.0))), then))
    return rows


def _normalised(mass: Tensor, dim: int) -> Tensor:
    """Shares along ``dim``; of nothing they are unknown."""
    total = mass.sum(dim, keepdim=True)
    return torch.where(total > 0, mass / total, torch.nan)
