"""``otdd values``: what each sample of a pool adds to its distance to a target."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from otdd_flash.cli.data import features_row, load_side, make_features, side_title
from otdd_flash.cli.distance import solver_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, table_files
from otdd_flash.cli.selection_config import ValuesConfig
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.selection.values import SampleValues


def run(config: ValuesConfig, job: Job) -> None:
    """Value every sample of ``config.source`` against ``config.target``; the table of samples goes to the run's folder.

    Raises:
        NotConvergedError: under ``strict``, after the values were printed and written.
    """
    check_format(config.output.format)
    from otdd_flash.selection.values import values

    arguments = solver_arguments(config)
    loaded = [load_side(side, config.seed, config.features) for side in (config.source, config.target)]
    pool, target, done = make_features(config.features, arguments["device"], arguments["progress"]).apply(*loaded)
    found = values(pool, target, parts=config.parts, **arguments)
    record = {"task": "values", **found.to_dict(), "features": done.to_dict(), "config": asdict(config)}
    title = f"{side_title(pool, config.source)} valued by {side_title(target, config.target)}"
    rows = _rows(found, config.top, features_row(done))
    deliver(Finished(record, title, rows, files=table_files(found, "values")), config.output, job)
    if config.strict and not found.result.converged:
        raise NotConvergedError(f"not converged: {found.result.lacking}; raise solver.max_iterations")


def _rows(found: SampleValues, top: int, features: str | None) -> list[Row]:
    by_class = sorted(found.by_class().items(), key=lambda item: -item[1])
    rows = [
        ("value", f"{found.result.value:.6g}  (squared distance of the pool, debiased)"),
        ("converged", "yes" if found.result.converged else "NO: do not use these values"),
        ("n x m", f"{found.result.n} x {found.result.m}"),
        *([] if features is None else [("features", features)]),
        ("label distance", found.result.label_method),
        ("classes", "\n".join(f"{value:+.4g}  {name}" for name, value in by_class)),
        ("worst", _listed(found, found.order()[:top].tolist(), found.scores())),
    ]
    if "labels" in found.gradients:
        worst = found.mislabelled(top).tolist()
        rows.append(("mislabelled", _listed(found, worst, found.scores("labels", within_class=True))))
    return rows


def _listed(found: SampleValues, rows: list[int], scores: object) -> str:
    """One line a sample: score, position in the source, class."""
    ids = range(found.pool.n) if found.pool.ids is None else found.pool.ids.tolist()
    names = found.pool.class_names
    return "\n".join(f"{float(scores[i]):+.4g}  row {ids[i]}  {names[int(found.pool.y[i])]}" for i in rows)  # type: ignore[index]
