"""The section on a ranking: candidates in order, with intervals, and where the order means something."""

from __future__ import annotations

from typing import Any

from otdd_flash.reporting.blocks import Cell, Folded, Notes, Part, Section, Table, Text, Verdict
from otdd_flash.reporting.distance import matching
from otdd_flash.reporting.numbers import flat, number
from otdd_flash.selection.ranking import RankedSet, Ranking


def ranking_part(ranking: Ranking) -> Part:
    """Sections on ``ranking``: the order, and what the nearest candidate's classes feed."""
    loose = [item.name for item in ranking.candidates if not item.converged]
    blocks: list[Any] = [Text(_method(ranking)), _verdict(loose), _table(ranking)]
    if ranking.failures:
        blocks.append(Notes([_failure(failure) for failure in ranking.failures]))
    folded = [
        Folded(item.name, matching(item.coupling, item.class_names, ranking.target_classes))
        for item in ranking.candidates
    ]
    blocks += [*_screened(ranking), Text("Classes of each candidate:"), *folded]
    sections = [Section("ranking", f"Nearest to {ranking.target}", blocks)]
    alerts = [f"{name} → {ranking.target}: NOT CONVERGED, do not use this number." for name in loose]
    alerts += [f"Not ranked: {_failure(failure)}" for failure in ranking.failures]
    record = {"epsilon": ranking.epsilon, "bootstrap": ranking.bootstrap, "seed": ranking.seed, **ranking.options}
    return Part(
        title=f"{len(ranking.candidates)} candidates for {ranking.target}", sections=sections, alerts=alerts,
        parameters=[(f"ranking: {name}", text) for name, text in flat(record)],
    )  # fmt: skip


def _method(ranking: Ranking) -> str:
    if not ranking.bootstrap:
        return "Squared distances in order; without replicates, so nothing is said on the significance of the order."
    return (
        f"Squared distances in order. Intervals ({ranking.level:.0%}) come from {ranking.bootstrap} half-samples of "
        "both sets and have the sampling bias subtracted: they may lie below the value. Bars show the intervals."
    )


def _verdict(loose: list[str]) -> Verdict:
    return Verdict(not loose, f"NOT CONVERGED: {', '.join(loose)}" if loose else "all distances converged")


def _table(ranking: Ranking) -> Table:
    """One row a candidate."""
    ends = [end for item in ranking.candidates for end in (item.value, item.low, item.high) if end is not None]
    low, high = min(0.0, *ends), max(ends)
    width = high - low if high > low else 1.0
    rows = []
    for place, item in enumerate(ranking.candidates, 1):
        cell = Cell(_interval(item), None)
        if item.low is not None and item.high is not None:
            cell = Cell(_interval(item), ((item.low - low) / width, (item.high - low) / width))
        rows.append((f"{place}. {item.name}", number(item.value), number(item.root), cell, _next(item), number(item.n)))
    return Table(("candidate", "squared distance", "distance", "interval", "the next is farther?", "samples"), rows)


def _interval(item: RankedSet) -> str:
    return "–" if item.low is None else f"{number(item.low)} to {number(item.high)}"


def _next(item: RankedSet) -> str:
    if item.certain is None or item.p_next is None:
        return "–"
    return f"{'yes' if item.certain else 'NOT significant'}, p = {number(item.p_next, 2)}"


def _screened(ranking: Ranking) -> list[Any]:
    """How candidates were chosen for the full distance, and those that were not."""
    found = ranking.screening
    if found is None:
        return []
    agreement = "" if found.rank_correlation is None else (
        f" Over the ranked ones its rank correlation with the full distance is {found.rank_correlation:.2f}."
    )  # fmt: skip
    left = "" if not found.ties_left else f" {found.ties_left} more lie within the margin of the cut."
    out = [(name, number(value)) for name, value in found.values.items() if name not in found.refined]
    text = (
        f"{len(found.values)} candidates were screened by the {found.screen.method} distance; the nearest "
        f"{len(found.refined)} got the full one.{left}{agreement}"
    )
    table = Table(("candidate", "squared screening distance, on its own scale"), out)
    return [Text(text), *([Folded(f"{len(out)} candidates screened out", [table])] if out else [])]


def _failure(failure: Any) -> str:
    return f"{' × '.join(failure.names)}: {failure.error}: {failure.message}"
