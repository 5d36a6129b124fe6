"""The section on sample values: how they are spread, by class, and the samples at both ends."""

from __future__ import annotations

from typing import Any

import torch

from otdd_flash import plots
from otdd_flash.reporting.blocks import Cell, Figure, Gallery, Part, Sample, Section, Table, Text
from otdd_flash.reporting.distance import distance_parameters, verdict
from otdd_flash.reporting.numbers import number
from otdd_flash.reporting.pictures import inline_svg, thumbnails
from otdd_flash.reporting.views import ValuesView

_LABELS = "labels_within_class"


def values_part(view: ValuesView, top: int) -> Part:
    """The section on ``view`` with ``top`` samples of each end."""
    record = view.distance.record
    pool, target = record["names"]
    count = len(view.columns["total"])
    top = min(top, count // 2)
    blocks: list[Any] = [
        Text(
            f"What each of {number(count)} samples of {pool} adds to its squared distance to {target}, "
            f"{number(record['value'])} at epsilon {number(record['epsilon'])}. Positive is bad: more of such a sample "
            f"takes {pool} away from {target}."
        ),
        verdict(record),
        *_spread(view, "total", top, "value against all samples of the pool"),
    ]
    worst, best = range(top), range(count - 1, count - 1 - top, -1)
    blocks.append(_samples(view, "Worst", worst, "total"))
    blocks.append(_samples(view, "Best", best, "total"))
    if _LABELS in view.columns:
        suspects = sorted(range(count), key=lambda i: -view.columns[_LABELS][i])[:top]
        blocks += _spread(view, _LABELS, 0, "label part, against samples of the same class")
        blocks.append(_samples(view, "Most likely mislabelled: largest label part within the class", suspects, _LABELS))
    blocks.append(_by_class(view))
    alerts = [] if record["converged"] else [
        f"Sample values of {pool}: NOT CONVERGED, do not use them. The marginal error is "
        f"{number(record['marginal_error'], 2)}."
    ]  # fmt: skip
    return Part(
        title=f"{pool} valued by {target}", sections=[Section("values", "Sample values", blocks)], alerts=alerts,
        parameters=[(f"values: {name}", text) for name, text in distance_parameters(record)],
        versions=record["versions"],
    )  # fmt: skip


def _spread(view: ValuesView, part: str, top: int, label: str) -> list[Figure]:
    """The histogram of one part; marks are the ``top`` samples of each end."""
    column = view.columns[part]
    ordered = sorted(column)
    marked = [*ordered[:top], *ordered[len(ordered) - top :]] if top else []
    scores = torch.tensor(column, dtype=torch.float64)
    svg, width = inline_svg(plots.value_histogram(scores, marked=marked, label=label))
    middle = number(float(scores.median()), 3)
    caption = f"From {number(ordered[0], 3)} to {number(ordered[-1], 3)}, median {middle}; the dashed line is zero."
    return [Figure(svg, caption + (" Ticks below: the samples shown." if marked else ""), width)]


def _samples(view: ValuesView, title: str, rows: Any, part: str) -> Gallery | Table:
    """Samples as pictures, or as a table where they are none; ``rows`` are places in the columns."""
    columns = view.columns
    rows = list(rows)
    if view.pictures is None:
        listed = [(str(columns["id"][i]), columns["class"][i], f"{columns[part][i]:+.3g}") for i in rows]
        return Table(("row", "class", "value"), listed, title)
    x, shape = view.pictures
    addresses = thumbnails(x[[columns["row"][i] for i in rows]], shape)
    return Gallery(title, [
        Sample(address, columns["class"][i], (f"{columns[part][i]:+.3g}", f"row {columns['id'][i]}"))
        for address, i in zip(addresses, rows, strict=True)
    ])  # fmt: skip


def _by_class(view: ValuesView) -> Table:
    """Mean value of each class in every part, worst first."""
    parts = list(view.by_class)
    means = view.by_class["total"]
    low, high = min(0.0, *means.values()), max(0.0, *means.values())
    width = high - low if high > low else 1.0
    rows: list[tuple[str | Cell, ...]] = []
    for name in sorted(means, key=lambda name: -means[name]):
        ends = sorted(((0.0 - low) / width, (means[name] - low) / width))
        cell = Cell(f"{means[name]:+.3g}", (ends[0], ends[1]), mark=-low / width)
        rows.append((name, cell, *(f"{view.by_class[part][name]:+.3g}" for part in parts if part != "total")))
    head = ("class", "mean value", *(f"{part} part" for part in parts if part != "total"))
    return Table(head, rows, "Mean by class: positive where the pool has too much of it, or of the wrong kind")
