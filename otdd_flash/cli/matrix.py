"""``otdd matrix``: distances between all pairs of many data sets."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from otdd_flash.cli.config import MatrixConfig
from otdd_flash.cli.labels import label_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_seconds
from otdd_flash.cli.sets import Common, make_screen, sources
from otdd_flash.cli.tasks import Job
from otdd_flash.cli.termination import termination_as_exit
from otdd_flash.errors import NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.matrix import DistanceMatrix
    from otdd_flash.matrix.screening import MatrixScreening

log = logging.getLogger("otdd")

_SHOWN = 12  # sets a side up to which the table on stdout shows the distances


def run(config: MatrixConfig, job: Job) -> None:
    """Compute what is missing, print the matrix, keep it and its figures in the run's folder.

    Raises:
        RuntimeError: sets or pairs failed; after the rest was printed and written.
        NotConvergedError: under ``strict``, likewise.
    """
    check_format(config.output.format)
    from otdd_flash.matrix import collect, pairwise

    folder = Path(config.folder) if config.folder else job.folder / "pairs"
    if config.collect:
        matrix = collect(folder)
    else:
        if config.folder or config.output.files:
            log.info("finished pairs go to %s; folder= that goes on from there", folder)
        device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        common = Common(config.max_samples, config.data_root, config.resize, config.seed, config.fit)
        sets = sources(config.datasets, common, config.features, device)
        with termination_as_exit(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* items of the matrix failed")  # each was told when it did
            matrix = pairwise(
                sets, folder=folder, workers=config.workers, shard=config.shard, screen=make_screen(config.screen),
                **_options(config, device),
            )  # fmt: skip
    record = {"task": "matrix", **matrix.to_dict(), "config": asdict(config)}
    files = {"matrix.parquet": matrix.to_parquet} if importlib.util.find_spec("pyarrow") else {}
    rows = _rows(matrix)
    if config.folder or config.output.files:
        rows.append(("pairs kept in", str(folder)))
    found = Finished(record, f"{len(matrix)} data sets", rows, "matrix.json", files, _figures(matrix))
    deliver(found, config.output, job)
    _end(matrix, config)


def _options(config: MatrixConfig, device: str) -> dict[str, Any]:
    """Arguments of :func:`otdd_flash.pairwise`; ``max_samples`` was taken while loading, ``strict`` comes last."""
    return {
        **asdict(config.solver),
        **label_arguments(config.labels),
        "feature_weight": config.features.weight,
        "device": device,
        "seed": config.seed,
        "progress": sys.stderr.isatty() if config.progress is None else config.progress,
    }


def _end(matrix: DistanceMatrix, config: MatrixConfig) -> None:
    """Turn failures, and under ``strict`` a lack of convergence, into exit codes."""
    if matrix.failures:
        shown = ", ".join(" x ".join(failure.names) for failure in matrix.failures[:5])
        more = ", ..." if len(matrix.failures) > 5 else ""
        first = matrix.failures[0].message
        raise RuntimeError(
            f"{len(matrix.failures)} sets or pairs failed, the rest is done: {shown}{more}; the first says: {first}"
        )
    loose = sum(not certificate["converged"] for certificate in matrix.certificates.values())
    if config.strict and loose:
        raise NotConvergedError(f"{loose} of {len(matrix.certificates)} pairs are not converged")


def _rows(matrix: DistanceMatrix) -> list[Row]:
    """The table on stdout: the distances where there is room, then how they were made."""
    done = len(matrix.certificates)
    found = matrix.screening
    pairs = len(matrix) * (len(matrix) - 1) // 2 if found is None else len(found.pairs())
    loose = [pair for pair, certificate in matrix.certificates.items() if not certificate["converged"]]
    share = f"{matrix.negative_share:.2%} of the spectrum" if matrix.complete and len(matrix) > 1 else "not known"
    rows = [
        ("distances", _grid(matrix) if len(matrix) <= _SHOWN else "see matrix.json"),
        ("pairs", f"{done} of {pairs}, {matrix.computed} items computed, {matrix.reused} found finished"),
        *([] if found is None else [("screened", _screened(found))]),
        ("converged", "yes" if not loose else f"NO: {len(loose)} pairs are not"),
        ("epsilon", f"{matrix.epsilon:.6g}"),
        ("negative", f"eigenvalues are {share}"),
        ("label distance", str(matrix.options["label_distance"])),
        ("time", format_seconds(matrix.seconds)),
    ]
    if matrix.notes:
        rows.append(("notes", "\n".join(matrix.notes)))
    return rows


def _screened(found: MatrixScreening) -> str:
    """How the pairs were chosen, and how well the screen agrees with the full distance on them."""
    k = len(found.values)
    lines = [
        f"{k * (k - 1) // 2} pairs by the {found.screen.method} distance, {found.screen.keep} neighbours of each set"
    ]
    if found.ties_left:
        lines.append(f"{found.ties_left} neighbours more are within the margin of the cut: raise screen.keep")
    if found.rank_correlation is not None:
        lines.append(f"rank correlation with the full distance: {found.rank_correlation:.2f}")
    return "\n".join(lines)


def _grid(matrix: DistanceMatrix) -> str:
    """Roots of the values as lines of text, names on the left and their first letters above."""
    cells = [["-" if value != value else f"{value:.4g}" for value in row] for row in matrix.roots.tolist()]
    width = max((len(name) for name in matrix.names), default=0)
    column = max([7, *(min(len(name), 10) + 1 for name in matrix.names)])
    head = " " * width + "".join(f"{name[: column - 1]:>{column}}" for name in matrix.names)
    return "\n".join(
        [
            head,
            *(
                f"{name:<{width}}" + "".join(f"{cell:>{column}}" for cell in row)
                for name, row in zip(matrix.names, cells, strict=True)
            ),
        ]
    )


def _figures(matrix: DistanceMatrix) -> dict[str, Callable[[Path], object]]:
    """Writers of the figures, where matplotlib is installed."""
    if not importlib.util.find_spec("matplotlib"):
        log.info("no figures: matplotlib is not installed (pip install 'otdd-flash[plots]')")
        return {}
    from otdd_flash import plots

    whole = matrix.finished()
    drawn: dict[str, Callable[[], Any]] = {"heat_map.png": lambda: plots.heat_map(matrix)}
    if len(whole) > 2:
        drawn |= {"dendrogram.png": lambda: plots.dendrogram(whole), "map.png": lambda: plots.set_map(whole)}
    if len(whole) > 3:
        drawn["map_tsne.png"] = lambda: plots.set_map(whole, method="tsne")
    return {name: partial(_save, draw) for name, draw in drawn.items()}


def _save(draw: Callable[[], Any], path: Path) -> None:
    """Draw and write."""
    from otdd_flash import plots

    plots.save(draw(), path)
