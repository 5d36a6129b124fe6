"""``otdd check``: is a batch from the distribution of a reference? The exit code says so."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from otdd_flash.cli.data import features_row, load_side, make_features, side_title
from otdd_flash.cli.output import Finished, Row, check_format, deliver
from otdd_flash.cli.selection_config import CheckConfig
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import DistributionShiftError, NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.selection.check import CheckResult


def run(config: CheckConfig, job: Job) -> None:
    """Check ``config.target`` (the batch) against ``config.source`` (the reference).

    Raises:
        DistributionShiftError: the gate was exceeded; after the result was printed and written. Exit code 3.
        NotConvergedError: under ``strict``, likewise, and first: exit code 4.
    """
    check_format(config.output.format)
    from otdd_flash.selection.check import check

    device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded = [load_side(side, config.seed, config.features) for side in (config.source, config.target)]
    reference, batch, done = make_features(config.features, device, False).apply(*loaded)
    result = check(reference.to(device), batch.to(device), cache=config.cache, seed=config.seed, **asdict(config.gate))
    record = {"task": "check", **result.to_dict(), "features": done.to_dict(), "config": asdict(config)}
    title = f"{side_title(batch, config.target)} against {side_title(reference, config.source)}"
    rows = _rows(result, config.gate.tol, features_row(done))
    deliver(Finished(record, title, rows), config.output, job)
    if config.strict and not result.converged:
        raise NotConvergedError(f"not converged: {result.accuracy(config.gate.tol)}")
    if result.exceeded:
        raise DistributionShiftError(result.summary())


def _rows(result: CheckResult, tol: float, features: str | None) -> list[Row]:
    p_value = "none" if result.p_value is None else f"{result.p_value:.4g}  ({result.permutations} permutations)"
    rows = [
        ("result", result.verdict),
        ("p-value", p_value),
        *([("p by part", _parts(result))] if len(result.parts) > 1 else []),
        ("value", f"{result.value:.6g}  (squared distance, debiased)"),
        ("null", _null(result)),
        ("converged", f"{'yes' if result.converged else 'NO'}  ({result.accuracy(tol)})"),
        ("n x m", f"{result.n} x {result.m}  (of {result.seen[0]} and {result.seen[1]})"),
        ("epsilon", f"{result.epsilon:.6g}"),
        *([] if features is None else [("features", features)]),
    ]
    for name, classes in (("new classes", result.new_classes), ("missing classes", result.missing_classes)):
        if classes:
            rows.append((name, ", ".join(classes)))
    return [*rows, ("notes", "\n".join(result.notes))] if result.notes else rows


def _parts(result: CheckResult) -> str:
    """Where a drift is, if there is one."""
    return ", ".join(f"{name} {p_value:.4g}" for name, p_value in result.parts.items())


def _null(result: CheckResult) -> str:
    """What the value is compared with."""
    if not result.null:
        return "none"
    source = "" if result.null_of == "pooled" else ", of the reference" + (", from the cache" * result.null_cached)
    return ", ".join(f"{name} {value:.4g}" for name, value in result.null.items()) + source
