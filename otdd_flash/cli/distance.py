"""``otdd distance``: load two data sets, compare them, say what was found."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from otdd_flash.cli.config import ConventionConfig, DistanceConfig, PairConfig
from otdd_flash.cli.data import features_row, load_side, make_features, side_title
from otdd_flash.cli.labels import label_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_bytes, format_seconds
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.conventions import MicrosoftConvention
    from otdd_flash.distance import DistanceResult


def run(config: DistanceConfig, job: Job) -> None:
    """Print the distance between ``config.source`` and ``config.target`` and keep it in the run's folder.

    Raises:
        NotConvergedError: under ``strict``, after the result was printed and written.
    """
    check_format(config.output.format)
    from otdd_flash.distance import dataset_distance

    start = time.perf_counter()
    arguments = solver_arguments(config)
    loaded = [load_side(side, config.seed, config.features) for side in (config.source, config.target)]
    load_seconds = time.perf_counter() - start
    start = time.perf_counter()
    features = make_features(config.features, arguments["device"], arguments["progress"])
    source, target, done = features.apply(*loaded)
    clock = {"load": load_seconds, "features": time.perf_counter() - start}
    result = dataset_distance(source, target, convention=convention(config.convention), **arguments)
    result = replace(result, seconds={**clock, **result.seconds, "load": load_seconds})
    record = {"task": "distance", **result.to_dict(), "features": done.to_dict(), "config": asdict(config)}
    title = f"{side_title(source, config.source)} -> {side_title(target, config.target)}"
    tables = result.label_distances
    files = {} if tables is None else {"label_distances.safetensors": tables.to_safetensors}
    deliver(Finished(record, title, table_rows(result, features_row(done)), files=files), config.output, job)
    if config.strict and not result.converged:
        raise NotConvergedError(
            f"not converged after {result.iterations} iterations: {result.lacking}; raise solver.max_iterations or "
            "solver.epsilon"
        )


def solver_arguments(config: PairConfig) -> dict[str, Any]:
    """Arguments of :func:`otdd_flash.dataset_distance`; ``strict`` stays here, to give the result before it fails."""
    return {
        **asdict(config.solver),
        **label_arguments(config.labels),
        "feature_weight": config.features.weight,
        "device": config.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "seed": config.seed,
        "cache_dir": config.cache_dir,
        "progress": sys.stderr.isatty() if config.progress is None else config.progress,
    }


def convention(config: ConventionConfig) -> MicrosoftConvention | None:
    """The convention asked for by name, with its settings."""
    if config.name is None:
        return None
    if config.name != "microsoft":
        raise ValueError(f"convention.name must be microsoft or null, got {config.name!r}")
    from otdd_flash.conventions import MicrosoftConvention

    return MicrosoftConvention(**{key: value for key, value in asdict(config).items() if key != "name"})


def table_rows(result: DistanceResult, features: str | None = None) -> list[Row]:
    """The table on stdout: the number, its certificate, what was compared, how and at what cost."""
    embedded = [] if features is None else [("features", features)]
    theirs = result.conventional
    kind = "converged value of the same problem" if theirs else "squared distance"
    rows = [
        ("value", f"{result.value:.6g}  ({kind}{', debiased' if result.debiased else ''})"),
        ("root", f"{result.root:.6g}"),
        ("converged", "yes" if result.converged else "NO: do not use this number"),
        ("marginal error", f"{result.marginal_error:.2e}  (tol {result.tol:.0e})"),
        ("iterations", str(result.iterations)),
        ("epsilon", f"{result.epsilon:.6g}  ({result.relative_epsilon:.3g} of the mean cost)"),
        ("classes", " x ".join(str(len(counts)) for counts in result.class_counts)),
        ("n x m", f"{result.n} x {result.m}"),
        *embedded,
        ("label distance", result.label_method),
        ("precision", result.precision),
        ("backend", f"{result.backend}, {result.memory}, {result.device}"),
        ("time", ", ".join(f"{part} {format_seconds(seconds)}" for part, seconds in result.seconds.items())),
        ("peak memory", format_bytes(result.peak_memory)),
    ]
    if theirs:
        text = f"{theirs['value']:.6g}  (NOT converged: {abs(theirs['off_by']):.2%} "
        text += f"{'below' if theirs['off_by'] < 0 else 'above'} the value; convention {theirs['name']})"
        rows.insert(0, (f"{theirs['name']} value", text))
    if result.notes:
        rows.append(("notes", "\n".join(result.notes)))
    return rows
