"""``otdd report``: one HTML page on a distance, or on results of earlier runs."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otdd_flash.cli.arguments import literal
from otdd_flash.cli.config import OutputConfig
from otdd_flash.cli.data import load_side, make_features, side_title
from otdd_flash.cli.distance import convention, solver_arguments
from otdd_flash.cli.output import Row, check_format, emit, format_bytes, table_files, write_json
from otdd_flash.cli.report_config import ReportConfig
from otdd_flash.cli.sets import Common, sources
from otdd_flash.cli.tasks import Job
from otdd_flash.errors import NotConvergedError
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.matrix import SetSource

log = logging.getLogger("otdd")

_REPLICATES, _MOST_SAMPLES = 40, 2000  # of the interval; of a side for which it is computed unasked


def run(config: ReportConfig, job: Job) -> None:
    """Compute or read what the page shows, write it, and say where it is.

    Raises:
        RuntimeError: sets or pairs of the map failed; after the page was written.
        NotConvergedError: under ``strict``, likewise.
    """
    check_format(config.output.format)
    from otdd_flash import reporting
    from otdd_flash.reporting.page import check_place, require

    require()
    if config.report.file is None and not config.output.files:
        raise ValueError("output.files=false keeps no folder for the page: name its file, as report.file=report.html")
    place = check_place(config.report.file or job.folder / "report.html")
    results, pictures = _saved(config.saved) if config.saved is not None else _computed(config)
    kept = _keep(results, config, job.folder) if config.saved is None and config.output.files else []
    options: dict[str, Any] = {"title": config.report.title, "top": config.report.top, "pictures": pictures}
    summaries = [summary for result in results if (summary := _summary(result)) is not None]
    record: dict[str, Any] = {"task": "report", "file": None, "bytes": 0, "results": summaries}
    failure = None
    try:
        file = reporting.report(results, place, **options)
        record |= {"file": str(file), "bytes": file.stat().st_size}
    except Exception as error:  # what was computed is said all the same
        failure = error
    _emit(record, config.output, one_line=job.multirun)
    if failure is not None:
        raise _without_page(failure, config.saved, kept) from failure
    failed = [name for summary in summaries for name in summary["failed"]]
    if failed:
        raise RuntimeError(f"{len(failed)} sets or pairs failed, the page shows the rest: {', '.join(failed[:5])}")
    loose = [summary["title"] for summary in summaries if not summary["converged"]]
    if config.strict and loose:
        raise NotConvergedError(f"not converged: {', '.join(loose)}; raise solver.max_iterations or solver.epsilon")


def _keep(results: list[Any], config: ReportConfig, folder: Path) -> list[str]:
    """Write what was computed as the tasks of its kind do, each into a folder that ``saved`` takes."""
    from otdd_flash.matrix import DistanceMatrix
    from otdd_flash.selection.rank import Ranking
    from otdd_flash.selection.values import SampleValues

    names = {DistanceMatrix: ("matrix", "matrix.json"), Ranking: ("rank", "ranking.json"),
             SampleValues: ("values", "result.json")}  # fmt: skip
    kept = []
    for result in results:
        task, name = names.get(type(result), ("distance", "result.json"))
        try:
            write_json({"task": task, **result.to_dict(), "config": asdict(config)}, folder / task / name)
            for extra, write in (table_files(result, "values") if task == "values" else {}).items():
                write(folder / task / extra)
            kept.append(str(folder / task))
        except OSError as error:
            log.warning("%s is not kept: %s", folder / task / name, error.strerror or error)
    return kept


def _without_page(error: Exception, saved: Any, kept: list[str]) -> Exception:
    """The error of a page that could not be made, with where its numbers come from or are."""
    if saved is not None and not isinstance(error, (OSError, ImportError)):
        return ValueError(f"saved={saved} cannot be shown ({error}): was a file changed, or is it of another version?")
    if kept:
        return RuntimeError(f'{error}; what was computed is kept: otdd report "saved={literal(kept)}"')
    return error


def _saved(given: Any) -> tuple[list[Any], None]:
    """Results of earlier runs."""
    from otdd_flash.reporting.saved import load_saved

    paths = given if isinstance(given, list) else [given]
    if not paths:
        raise ValueError("saved is empty: name folders or JSON files of earlier runs")
    return [load_saved(str(path)) for path in paths], None


def _computed(config: ReportConfig) -> tuple[list[Any], LabeledDataset | None]:
    """Distance, interval, values and map, as the config asks, and the pictures that the values are about."""
    from otdd_flash.distance import dataset_distance
    from otdd_flash.matrix import pairwise
    from otdd_flash.selection.rank import rank
    from otdd_flash.selection.values import values

    arguments = solver_arguments(config)
    loaded = [load_side(side, config.seed, config.features) for side in (config.source, config.target)]
    features = make_features(config.features, arguments["device"], arguments["progress"])
    source, target, _ = features.apply(*loaded)
    source, target = (
        replace(side, name=side_title(side, given))
        for side, given in ((source, config.source), (target, config.target))
    )
    if source.name == target.name:
        target = replace(target, name=f"{target.name} (target)")
    plain = {key: value for key, value in arguments.items() if key != "cache_dir"}
    further = _further(config, [source, target], arguments["device"])
    distance = dataset_distance(source, target, convention=convention(config.convention), **arguments)
    results: list[Any] = [distance]
    count = _replicates(config, source, target)
    if count:
        same = {**plain, "epsilon": distance.epsilon}
        results.append(rank([source], target, bootstrap=count, level=config.report.level, **same))
    pictures = None
    if _wants_values(config):
        own = {**arguments, "epsilon": None, "relative_epsilon": config.report.values_epsilon}
        results.append(values(source, target, **own))
        pictures = loaded[0] if isinstance(loaded[0], LabeledDataset) and loaded[0].n == source.n else None
    if further:
        results.append(pairwise({**{side.name: side for side in (source, target)}, **further}, **plain))
    return results, pictures


def _replicates(config: ReportConfig, source: LabeledDataset, target: LabeledDataset) -> int:
    """Half-samples behind the interval: as asked, or as many as are cheap."""
    if config.report.bootstrap is not None:
        return config.report.bootstrap
    if config.convention.name is not None or config.solver.reach_x != config.solver.reach_y:
        log.info("no interval: it is for this library's own number, and for one reach on both sides")
        return 0
    if max(source.n, target.n) > _MOST_SAMPLES:
        log.info("no interval: over %d samples a side; report.bootstrap=%d computes it", _MOST_SAMPLES, _REPLICATES)
        return 0
    return _REPLICATES


def _wants_values(config: ReportConfig) -> bool:
    """Whether sample values are asked for and defined."""
    solver = config.solver
    unbalanced = (solver.reach, solver.reach_x, solver.reach_y) != (None, None, None)
    undefined = unbalanced or not solver.debiased or config.convention.name is not None
    if config.report.values and undefined:
        log.info("no sample values: they are gradients of the balanced, debiased distance under no convention")
    return config.report.values and not undefined


def _further(config: ReportConfig, sides: list[LabeledDataset], device: str) -> dict[str, SetSource]:
    """The sets that a map adds to source and target, by name; they are loaded when their turn comes."""
    if not config.sets:
        return {}
    common = Common(config.max_samples, config.data_root, config.resize, config.seed, config.fit)
    further = sources(config.sets, common, config.features, device, fitted_on=config.source)
    repeated = sorted({side.name for side in sides} & {one.name for one in further})
    if repeated:
        raise ValueError(f"{repeated} of sets are the names of source or target, which the map has already: use as:")
    return {one.name: one for one in further}


def _summary(result: Any) -> dict[str, Any] | None:
    """The numbers of one result for stdout; what the page has more of is there."""
    from otdd_flash.matrix import DistanceMatrix
    from otdd_flash.reporting.views import DistanceView, ValuesView
    from otdd_flash.selection.rank import Ranking
    from otdd_flash.selection.values import SampleValues

    if isinstance(result, DistanceMatrix):
        converged = all(certificate["converged"] for certificate in result.certificates.values())
        failed = [" x ".join(failure.names) for failure in result.failures]
        return {"title": f"{len(result)} data sets", "converged": converged, "failed": failed}
    if isinstance(result, Ranking):
        nearest = result.candidates[0]
        interval = None if nearest.low is None else [nearest.low, nearest.high]
        return {
            "title": f"nearest to {result.target}: {nearest.name}", "interval": interval,
            "converged": all(item.converged for item in result.candidates),
            "failed": [failure.names[0] for failure in result.failures],
        }  # fmt: skip
    title, record = "{} -> {}", result
    if isinstance(result, (ValuesView, SampleValues)):
        title, record = "values of {} by {}", result.distance if isinstance(result, ValuesView) else result.result
    numbers = record.record if isinstance(record, DistanceView) else record.to_dict()
    shown = {key: numbers[key] for key in ("value", "root", "converged", "marginal_error")}
    return {"title": title.format(*numbers["names"]), **shown, "failed": []}


def _emit(record: dict[str, Any], output: OutputConfig, *, one_line: bool) -> None:
    rows: list[Row] = []
    for summary in record["results"]:
        words = [] if "value" not in summary else [f"{summary['value']:.6g} squared, {summary['root']:.6g}"]
        if summary.get("interval"):
            words.append("interval {:.6g} to {:.6g} of the squared distance less its bias".format(*summary["interval"]))
        words.append("converged" if summary["converged"] else "NOT converged: do not use this")
        rows.append((summary["title"], "; ".join(words)))
    if record["file"] is not None:
        rows.append(("page", f"{record['file']}  ({format_bytes(record['bytes'])})"))
    emit(record, "report", rows, fmt=output.format, one_line=one_line)
