"""``otdd rank``: candidate data sets ordered by their distance to a target."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from otdd_flash.cli.config import RankConfig
from otdd_flash.cli.labels import label_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_seconds
from otdd_flash.cli.sets import Common, make_screen, sources, target_source
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import NotConvergedError

if TYPE_CHECKING:
    from otdd_flash.selection.ranking import RankedSet, Ranking, RankScreening


def run(config: RankConfig, job: Job) -> None:
    """Print the ranking with its intervals and class matching, keep it in the run's folder.

    Raises:
        RuntimeError: candidates failed; after the others were printed and written.
        NotConvergedError: under ``strict``, likewise.
    """
    check_format(config.output.format)
    from otdd_flash.selection.rank import rank

    device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    common = Common(config.max_samples, config.data_root, config.resize, config.seed, config.fit)
    goal = target_source(config.target, common, config.features, device)
    sets = sources(config.candidates, common, config.features, device, fitted_on=config.target)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is not ranked: ")  # the end of the run tells
        ranking = rank(
            sets, goal, bootstrap=config.bootstrap, level=config.level, screen=make_screen(config.screen),
            seed=config.seed, device=device, **label_arguments(config.labels), feature_weight=config.features.weight,
            **asdict(config.solver), progress=sys.stderr.isatty() if config.progress is None else config.progress,
        )  # fmt: skip
    record = {"task": "rank", **ranking.to_dict(), "config": asdict(config)}
    seen = "" if ranking.screening is None else f"of {len(ranking.screening.values)} "
    title = f"{len(ranking.candidates)} {seen}candidates for {ranking.target}"
    deliver(Finished(record, title, _rows(ranking), "ranking.json", figures=_figures(ranking)), config.output, job)
    if ranking.failures:
        told = "; ".join(f"{failure.names[0]}: {failure.message}" for failure in ranking.failures)
        raise RuntimeError(f"{len(ranking.failures)} candidates failed, the others are ranked: {told}")
    loose = [candidate.name for candidate in ranking.candidates if not candidate.converged]
    if config.strict and loose:
        raise NotConvergedError(f"not converged: {', '.join(loose)}")


def _rows(ranking: Ranking) -> list[Row]:
    """One row a candidate, then how it was made, then what feeds each class of the target."""
    rows = [(f"{place}. {item.name}", _line(item)) for place, item in enumerate(ranking.candidates, 1)]
    if ranking.bootstrap:
        made = f"{ranking.bootstrap} half-samples of both sets"
        rows.append(("intervals", f"{ranking.level:.0%}, of the squared distance less its sampling bias, from {made}"))
    if ranking.screening is not None:
        rows.append(("screened", _screened(ranking.screening)))
    rows += [("epsilon", f"{ranking.epsilon:.6g}"), ("time", format_seconds(ranking.seconds))]
    nearest = ranking.candidates[0]
    lines = [f"{m['target']} <- {m['source']} ({m['share']:.0%})" for m in ranking.matching(nearest.name)]
    rows.append((f"from {nearest.name}", "\n".join(lines)))
    return rows


def _figures(ranking: Ranking) -> dict[str, Callable[[Path], object]]:
    """Writers of the figures, where matplotlib is installed."""
    if not importlib.util.find_spec("matplotlib"):
        return {}
    from otdd_flash import plots

    nearest = ranking.candidates[0]
    shown = (nearest.coupling, nearest.class_names, ranking.target_classes)
    return {"class_coupling.png": lambda path: plots.save(plots.class_coupling(*shown), path)}


def _screened(found: RankScreening) -> str:
    """How many were looked at, how many got the full distance, how well both agree, which came next."""
    ties = f", {found.near_ties} of them near ties at the cut" if found.near_ties else ""
    lines = [f"{len(found.values)} by the {found.screen.method} distance; the full one for {len(found.refined)}{ties}"]
    if found.ties_left:
        lines.append(f"{found.ties_left} more are within the margin of the cut: raise screen.keep")
    if found.rank_correlation is not None:
        lines.append(f"rank correlation of both over the {len(found.refined)}: {found.rank_correlation:.2f}")
    rest = [name for name in found.values if name not in found.refined]
    shown = ", ".join(rest[:5]) + (", ..." if len(rest) > 5 else "")
    return "\n".join([*lines, f"next by the screen: {shown}"] if rest else lines)


def _line(item: RankedSet) -> str:
    """Distance, interval, and whether the next one is really farther."""
    interval = "" if item.low is None else f", {item.low:.5g} to {item.high:.5g}"
    words = [f"{item.root:.5g} (squared {item.value:.5g}{interval})"]
    if item.certain is not None:
        said = "nearer than the next" if item.certain else "order to the next NOT significant"
        words.append(f"{said}, p = {item.p_next:.2g}")
    if not item.converged:
        words.append("NOT converged")
    return "; ".join(words)
