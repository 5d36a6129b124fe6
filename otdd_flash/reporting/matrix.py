"""The section on a distance matrix: heat map, tree, map of the sets, and what is missing."""

from __future__ import annotations

from typing import Any

from otdd_flash import plots
from otdd_flash.matrix import DistanceMatrix
from otdd_flash.reporting.blocks import Figure, Folded, Notes, Part, Section, Table, Text, Verdict
from otdd_flash.reporting.heat import Scale, heat_map
from otdd_flash.reporting.numbers import flat, number, plain
from otdd_flash.reporting.pictures import inline_svg

_SHOWN = 8  # failures and missing pairs in the alerts


def matrix_part(matrix: DistanceMatrix) -> Part:
    """Sections on ``matrix``; tree and map are of the sets without gaps."""
    loose = [pair for pair, certificate in matrix.certificates.items() if not certificate["converged"]]
    bias = "debiased" if matrix.options["debiased"] else "biased"
    blocks: list[Any] = [
        Text(
            f"Distances (roots of the {bias} divergence) of {len(matrix)} data sets at one epsilon, "
            f"{number(matrix.epsilon)}; {_done(matrix)}. Faint is near."
        ),
        _verdict(matrix, loose),
        *_screened(matrix),
    ]
    shown = matrix.filled() if matrix.screening is not None and matrix.screening.factor is not None else matrix
    whole = shown.complete and len(shown) > 2
    ordered = shown.subset([shown.names[i] for i in shown.dendrogram()[1]]) if whole else shown
    blocks += heat_map(
        ordered.roots, ordered.names, ordered.names, Scale.apart(ordered.roots), estimated=ordered.estimated,
        caption="distance" + (", sets in the order of the tree" if whole else ""), corner="",
    )  # fmt: skip
    blocks += _figures(shown.finished())
    blocks += [Folded("Pairs with their certificates", [_pairs(matrix)]), Folded("Sets", [_sets(matrix)])]
    if matrix.notes:
        blocks.append(Notes(matrix.notes))
    versions: dict[str, str] = {}
    for certificate in matrix.certificates.values():
        versions |= certificate.get("versions") or {}
    return Part(
        title=f"{len(matrix)} data sets", sections=[Section("sets", "Map of the sets", blocks)],
        alerts=_alerts(matrix, loose), parameters=[(f"matrix: {name}", text) for name, text in _parameters(matrix)],
        versions=versions,
    )  # fmt: skip


def _done(matrix: DistanceMatrix) -> str:
    """How many pairs have a distance, of how many that were to have one."""
    found = matrix.screening
    pairs = len(matrix) * (len(matrix) - 1) // 2 if found is None else len(found.pairs())
    return f"{len(matrix.certificates)} of {pairs} pairs are done"


def _screened(matrix: DistanceMatrix) -> list[Text]:
    """How the pairs were chosen, and how far the others can be trusted."""
    found = matrix.screening
    if found is None:
        return []
    words = [
        f"All pairs were screened by the {found.screen.method} distance; the nearest neighbours of each set "
        f"({found.screen.keep}) got the full one. The others are estimates, marked ≈, on the scale of those."
    ]
    if found.rank_correlation is not None:
        words.append(f"Over the pairs that have both, the rank correlation is {found.rank_correlation:.2f}.")
    if found.ties_left:
        words.append(f"{found.ties_left} neighbours more lie within the margin of the cut.")
    return [Text(" ".join(words))]


def _verdict(matrix: DistanceMatrix, loose: list[tuple[int, int]]) -> Verdict:
    if loose:
        return Verdict(False, f"NOT CONVERGED: {len(loose)} of {len(matrix.certificates)} pairs; do not use those")
    errors = [certificate["marginal_error"] for certificate in matrix.certificates.values()]
    known = [error for error in errors if error is not None]
    worst = f", marginal error at most {number(max(known), 2)}" if known else ""
    return Verdict(True, f"all {len(matrix.certificates)} finished pairs converged{worst}")


def _alerts(matrix: DistanceMatrix, loose: list[tuple[int, int]]) -> list[str]:
    """What failed, what is missing, what is not converged."""
    alerts = [f"Failed: {' × '.join(f.names)}: {f.error}: {f.message}" for f in matrix.failures[:_SHOWN]]
    missing = matrix.missing
    if missing:
        shown = ", ".join(" × ".join(pair) for pair in missing[:_SHOWN])
        alerts.append(f"{len(missing)} pairs have no distance: {shown}{', …' if len(missing) > _SHOWN else ''}")
    if loose:
        shown = ", ".join(f"{matrix.names[i]} × {matrix.names[j]}" for i, j in loose[:_SHOWN])
        more = ", …" if len(loose) > _SHOWN else ""
        alerts.append(f"{len(loose)} pairs are NOT CONVERGED, do not use those numbers: {shown}{more}")
    return alerts


def _figures(whole: DistanceMatrix) -> list[Any]:
    """Map and tree, where there are enough sets."""
    if len(whole) < 3:
        return [Text("A map and a tree need at least three sets without gaps.")]
    euclidean = f"{whole.negative_share:.1%} of the spectrum is negative: what no map can show."
    svg, width = inline_svg(plots.set_map(whole))
    blocks = [Figure(svg, f"Sets as points; near is alike. {euclidean}", width)]
    svg, width = inline_svg(plots.dendrogram(whole))
    return [*blocks, Figure(svg, "Tree of the sets: a joint stands at the distance between its two groups.", width)]


def _pairs(matrix: DistanceMatrix) -> Table:
    rows = []
    for (i, j), certificate in matrix.certificates.items():
        numbers = [number(certificate.get(key), digits) for key, digits in (
            ("root", 4), ("value", 4), ("error", 2), ("marginal_error", 2), ("iterations", 4),
        )]  # fmt: skip
        rows.append((f"{matrix.names[i]} × {matrix.names[j]}", *numbers, "yes" if certificate["converged"] else "NO"))
    head = ("pair", "distance", "squared", "stated error", "marginal error", "iterations", "converged")
    return Table(head, rows)


def _sets(matrix: DistanceMatrix) -> Table:
    rows = []
    for name, summary in zip(matrix.names, matrix.sets, strict=True):
        known = summary or {}
        classes = known.get("classes")
        many = None if classes is None else len(classes)
        rows.append((name, plain(known.get("n")), plain(many), plain(known.get("d")), plain(known.get("fingerprint"))))
    return Table(("set", "samples", "classes", "features", "fingerprint"), rows)


def _parameters(matrix: DistanceMatrix) -> list[tuple[str, str]]:
    own = {
        "epsilon": matrix.epsilon, "label_epsilon": matrix.label_epsilon, "reference_cost": matrix.reference_cost,
    }  # fmt: skip
    return [*flat(own), *flat({key: value for key, value in matrix.options.items() if key != "epsilon"})]
