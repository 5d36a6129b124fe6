"""``otdd select``: the part of a pool whose distribution is nearest to a target's."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from otdd_flash.cli.data import features_row, load_side, make_features, side_title
from otdd_flash.cli.distance import solver_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, table_files
from otdd_flash.cli.selection_config import SelectConfig
from otdd_flash.cli.sets import Common, entry
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.selection.select import Selection


def run(config: SelectConfig, job: Job) -> None:
    """Choose from ``config.source`` and ``config.more``; the chosen rows go to the run's folder.

    Raises:
        NotConvergedError: under ``strict``, after the choice was printed and written.
    """
    check_format(config.output.format)
    from otdd_flash.selection.select import SearchOptions, select

    arguments = solver_arguments(config)
    common = Common(config.max_samples, config.data_root, config.resize, config.seed, config.fit)
    sides = [config.source, *(entry(given, common)[1] for given in config.more)]
    target, *loaded = (load_side(side, config.seed, config.features) for side in (config.target, *sides))
    # one fit for all sources: the target's
    settings = replace(config.features, fit_on="target") if config.more else config.features
    features = make_features(settings, arguments["device"], arguments["progress"], seen=[target, *loaded])
    done = [features.apply(source, target) for source in loaded]
    pools, target = [pool for pool, _, _ in done], done[0][1]
    found = select(
        pools, target, config.n_to_select, balance=config.balance, search=SearchOptions(**asdict(config.search)),
        **arguments,
    )  # fmt: skip
    record = {"task": "select", **found.to_dict(), "features": done[0][2].to_dict(), "config": asdict(config)}
    names = " + ".join(side_title(pool, side) for pool, side in zip(pools, sides, strict=True))
    title = f"{len(found.idx)} of {names} for {side_title(target, config.target)}"
    rows = _rows(found, features_row(done[0][2]))
    deliver(Finished(record, title, rows, files=table_files(found, "selected")), config.output, job)
    if config.strict and not found.converged:
        raise NotConvergedError(
            f"the choice is not converged to tol {found.result.tol:.2e}; raise solver.max_iterations"
        )


def _rows(found: Selection, features: str | None) -> list[Row]:
    summary = found.to_dict()
    return [
        ("value", f"{found.value:.6g}  (squared distance of the chosen, debiased)"),
        ("lower bound", f"{found.lower_bound:.6g}  (of any choice of this size)"),
        ("whole pool", f"{found.pool_value:.6g}"),
        ("converged", "yes" if found.converged else "NO: do not use these numbers"),
        ("selected", f"{len(found.idx)} of {found.pool.n}"),
        *([] if features is None else [("features", features)]),
        ("sources", "\n".join(f"{count}  {name}" for name, count in summary["by_source"].items())),
        ("classes", "\n".join(f"{count}  {name}" for name, count in summary["by_class"].items())),
        ("search", f"{found.steps} steps, {found.exchanges} exchanges"),
    ]
