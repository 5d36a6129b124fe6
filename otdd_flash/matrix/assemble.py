"""From finished work items to the matrix: ``S(a, b) = OT(a, b) - OT(a, a)/2 - OT(b, b)/2`` with its certificate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch

from otdd_flash.matrix.result import DistanceMatrix, Failure
from otdd_flash.matrix.screening import MatrixScreening, all_pairs
from otdd_flash.matrix.settings import MatrixSettings, method_name
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.problems import DistanceOptions
from otdd_flash.sinkhorn.terms import Solved, total

_INDEX = (".", "matrix")
_SCREENING = (".", "screening")


def failure_key(names: Sequence[str]) -> str:
    """Key of the record of what went wrong with a set or a pair."""
    return content_key("failure", *names)


def write_index(
    store: Store,
    names: Sequence[str],
    summaries: dict[int, dict[str, Any]],
    settings: MatrixSettings,
    notes: Sequence[str],
    screening: MatrixScreening | None,
) -> None:
    """What :func:`read_folder` needs: the sets in order, the settings, the notes, what was screened."""
    if screening is not None:
        screening.write(store, *_SCREENING)
    sets = [_plain_summary(summaries.get(i)) for i in range(len(names))]
    record = {
        "names": list(names), "sets": sets, "options": options_record(settings.options), "epsilon": settings.epsilon,
        "label_epsilon": settings.label_epsilon, "reference_cost": settings.reference_cost, "notes": list(notes),
        "screened": screening is not None,
    }  # fmt: skip
    store.write(*_INDEX, record)


def read_folder(store: Store) -> DistanceMatrix:
    """The matrix that :func:`write_index` describes, from what is in the store.

    Raises:
        FileNotFoundError: no index there.
    """
    index = store.read(*_INDEX)
    if index is None:
        raise FileNotFoundError(
            f"{store.path(*_INDEX)} is not there or is damaged: run pairwise(..., folder=...) first"
        )
    options = DistanceOptions(**index["options"])
    settings = MatrixSettings(options, index["epsilon"], index["label_epsilon"], index["reference_cost"])
    summaries = {i: summary for i, summary in enumerate(index["sets"]) if summary is not None}
    screening = MatrixScreening.read(store, *_SCREENING) if index.get("screened") else None
    return assemble(store, index["names"], summaries, settings, index["notes"], screening)


def options_record(options: DistanceOptions) -> dict[str, Any]:
    """Options as JSON's own types."""
    record = {field.name: getattr(options, field.name) for field in fields(options)}
    record["label_distance"] = method_name(options.label_distance)
    return {**record, "device": None if options.device is None else str(options.device)}


def assemble(
    store: Store,
    names: Sequence[str],
    summaries: dict[int, dict[str, Any]],
    settings: MatrixSettings,
    notes: Sequence[str],
    screening: MatrixScreening | None,
) -> DistanceMatrix:
    """Values, errors and certificates of all pairs whose items are in the store.

    Args:
        store: finished items and recorded failures.
        names: of all sets, in order.
        summaries: by position, of the sets that could be loaded.
        settings: the matrix's settings.
        notes: remarks for the result.
        screening: where only some pairs were to be done.
    """
    k = len(names)
    values = torch.full((k, k), math.nan, dtype=torch.float64)
    errors = values.clone()
    prints = {i: summary["fingerprint"] for i, summary in summaries.items()}
    selves = {i: store.read("selves", settings.key(fingerprint)) for i, fingerprint in prints.items()}
    certificates = {}
    for i, own in selves.items():
        if settings.options.debiased:
            values[i, i] = errors[i, i] = 0.0
        elif own is not None:
            values[i, i], errors[i, i] = own["dual"], own["gap"] + own["rounding"]
    for i, j in all_pairs(list(prints), screening):
        certificate = _pair(store, settings, (prints[i], prints[j]), (selves[i], selves[j]))
        if certificate is not None:
            certificates[i, j] = certificate
            values[i, j] = values[j, i] = certificate["value"]
            errors[i, j] = errors[j, i] = certificate["error"]
    return DistanceMatrix(
        names=tuple(names), values=values, errors=errors, certificates=certificates,
        failures=tuple(_failures(store, names, screening)),
        sets=tuple(_plain_summary(summaries.get(i)) for i in range(k)),
        epsilon=settings.epsilon, label_epsilon=settings.label_epsilon, reference_cost=settings.reference_cost,
        options=options_record(settings.options), notes=(*notes, *_negatives(names, certificates)),
        screening=None if screening is None else screening.compared_with(certificates),
    )  # fmt: skip


def _pair(
    store: Store, settings: MatrixSettings, prints: tuple[str, str], selves: tuple[dict | None, dict | None]
) -> dict[str, Any] | None:
    """The certificate of one pair, or ``None`` where an item of it is missing."""
    first, second = selves
    cross = first if prints[0] == prints[1] else store.read("pairs", settings.key(*prints))
    if cross is None or first is None or second is None:
        return None
    debiased = settings.options.debiased
    used = [cross, first, second] if debiased else [cross]
    found = total([_solved(part) for part in used])
    if debiased and prints[0] == prints[1]:
        found = found._replace(value=0.0, primal=0.0, gap=0.0, rounding=0.0, error=0.0)
    table = cross.get("label_table")
    if table is not None and prints[0] > prints[1]:
        table = [list(column) for column in zip(*table, strict=True)]
    return {
        "value": found.value, "root": math.sqrt(max(found.value, 0.0)), "converged": found.converged,
        "marginal_error": found.marginal_error if math.isfinite(found.marginal_error) else None,
        "iterations": found.iterations, "primal": found.primal, "gap": found.gap, "error": found.error,
        "cross": cross["dual"], "source_self": first["dual"],
        "target_self": second["dual"], "mean_cost": cross["mean_cost"],
        "relative_epsilon": settings.epsilon / cross["mean_cost"] if cross["mean_cost"] > 0 else 0.0,
        "precision": cross["precision"], "memory": cross["memory"], "backend": cross["backend"],
        "device": cross["device"], "seconds": cross["seconds"], "versions": cross["versions"],
        "notes": list(dict.fromkeys(note for part in used for note in part["notes"])), "label_table": table,
    }  # fmt: skip


def _solved(record: dict[str, Any]) -> Solved:
    """A stored problem."""
    error = record["marginal_error"]
    return Solved(
        record["dual"], record["primal"], record["rounding"], math.inf if error is None else error,
        record["iterations"], record["converged"],
    )  # fmt: skip


def _failures(store: Store, names: Sequence[str], screening: MatrixScreening | None) -> Iterable[Failure]:
    """Recorded failures of these sets and their pairs."""
    pairs = ((names[i], names[j]) for i, j in all_pairs(range(len(names)), screening))
    for group in (*((name,) for name in names), *pairs):
        record = store.read("failures", failure_key(group))
        if record is not None:
            yield Failure(tuple(record["names"]), record["error"], record["message"])


def failure_record(failure: Failure) -> dict[str, Any]:
    """For the store."""
    return {**asdict(failure), "names": list(failure.names)}


def _plain_summary(summary: dict[str, Any] | None) -> dict[str, Any] | None:
    """A set's summary without tensors."""
    return None if summary is None else {key: value for key, value in summary.items() if key != "moments"}


def _negatives(names: Sequence[str], certificates: dict[tuple[int, int], dict[str, Any]]) -> list[str]:
    """Say which values are negative beyond their stated error."""
    pairs = [pair for pair, certificate in certificates.items() if certificate["value"] < -certificate["error"]]
    shown = ", ".join(f"{names[i]} x {names[j]}" for i, j in pairs[:5])
    return [f"negative beyond the stated error: {shown}; tighten tol or use precision='fp64'"] if pairs else []
