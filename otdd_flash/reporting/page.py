"""From results to one HTML file that needs nothing else: no script, no network, no font, no second file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import otdd_flash
from otdd_flash.arguments import check_sides
from otdd_flash.canvas import load_matplotlib
from otdd_flash.checks import check_count, check_path, check_text, shown
from otdd_flash.distance import DistanceResult
from otdd_flash.errors import optional_import
from otdd_flash.matrix import DistanceMatrix
from otdd_flash.palette import COLOURS, LEVELS, Theme, ink_on
from otdd_flash.plots import printable
from otdd_flash.reporting.blocks import Facts, Folded, Part, Section
from otdd_flash.reporting.distance import distance_part
from otdd_flash.reporting.matrix import matrix_part
from otdd_flash.reporting.ranking import ranking_part
from otdd_flash.reporting.saved import Saved, load_saved
from otdd_flash.reporting.values import values_part
from otdd_flash.reporting.views import DistanceView, ValuesView
from otdd_flash.selection.ranking import Ranking
from otdd_flash.selection.values import SampleValues
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

TOP = 12  # samples shown of each end


@plain_torch
def report(
    results: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    top: int = TOP,
    pictures: LabeledDataset | None = None,
) -> Path:
    """Write results as one self-contained HTML page.

    The page works offline and without scripts, follows the reader's light or dark theme and fits a phone. The same
    results give the same bytes.

    Args:
        results: one result or a sequence of them, shown in this order of kinds: :class:`~otdd_flash.DistanceResult`,
            :class:`~otdd_flash.SampleValues`, :class:`~otdd_flash.selection.rank.Ranking`,
            :class:`~otdd_flash.DistanceMatrix`; or the path of an earlier run's folder or JSON file. A distance takes
            its interval from a ranking of the same pair at the same epsilon.
        path: of the file; it appears whole or not at all, over an older one.
        title: of the page; default what is compared.
        top: samples shown of each end of the values.
        pictures: the pool of the sample values before it was embedded, row by row, where its own rows are no pictures.

    Returns:
        The path.

    Raises:
        TypeError: a result of another kind.
        ValueError: no result.
        OSError: the file cannot be written; the message names it.
        MissingDependencyError: without jinja2 or matplotlib (extra ``report``).

    >>> import otdd_flash as otdd
    >>> iris = otdd.load("iris")
    >>> result = otdd.dataset_distance(iris.subset(range(100)), iris)
    >>> otdd.report(result, "report.html")  # doctest: +SKIP
    """
    check_path("path", path)
    place = check_place(path)
    text = render(results, title=title, top=top, pictures=pictures)
    final = place.resolve()  # a link stays one
    unfinished = final.with_name(f".{uuid.uuid4().hex}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        os.replace(unfinished, final)
    except OSError as error:
        raise _unwritable(place, error) from error
    finally:
        if unfinished.is_file():
            unfinished.unlink()
    return place


@plain_torch
def render(
    results: Any, *, title: str | None = None, top: int = TOP, pictures: LabeledDataset | None = None
) -> str:  # fmt: skip
    """The text of the page that :func:`report` writes."""
    require()
    top = check_count("top", top, least=0)
    check_text("title", title, optional=True)
    if pictures is not None:
        check_sides(pictures=pictures)
    parts = _parts([_view(result, pictures) for result in _listed(results)], top)
    sections = _anchored([section for part in parts for section in part.sections])
    template = _environment().from_string(_resource("page.html.j2"))
    text = template.render(
        title=title or parts[0].title, alerts=list(dict.fromkeys(alert for part in parts for alert in part.alerts)),
        sections=[*sections, _parameters(parts)], style=_style(), version=otdd_flash.__version__,
    )  # fmt: skip
    return printable(text)


def require() -> None:
    """Refuse early where an optional package is missing."""
    optional_import("jinja2", needed_for="a report", extra="report")
    load_matplotlib(needed_for="a report", extra="report")


def check_place(path: str | os.PathLike[str]) -> Path:
    """``path`` as one that a page can be written to.

    Raises:
        OSError: a folder, a device or pipe, or a place below something that is no folder.
    """
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"cannot write the report to {place}: it is a folder, name a file in it")
    if place.exists() and not place.is_file():
        raise OSError(f"cannot write the report to {place}: it is no regular file")
    parent = next((folder for folder in place.absolute().parents if folder.exists()), None)
    if parent is not None and not parent.is_dir():
        raise NotADirectoryError(f"cannot write the report to {place}: {parent} is no folder")
    if parent is not None and not os.access(parent, os.W_OK):
        raise PermissionError(f"cannot write the report to {place}: no permission to write in {parent}")
    return place


def _unwritable(place: Path, error: OSError) -> OSError:
    """The same kind of error, naming the file that was asked for."""
    return type(error)(f"cannot write the report to {place}: {error.strerror or error}")


def _listed(results: Any) -> list[Any]:
    """One result or many as a list."""
    listed = list(results) if isinstance(results, Sequence) and not isinstance(results, str) else [results]
    if not listed:
        raise ValueError("results is empty: give at least one result")
    return listed


def _view(result: Any, pictures: LabeledDataset | None) -> Saved:
    """What the sections show of one result."""
    if isinstance(result, (str, os.PathLike)):
        check_path("results", result)
        return load_saved(result)
    if isinstance(result, DistanceResult):
        return DistanceView.of(result)
    if isinstance(result, SampleValues):
        return ValuesView.of(result, pictures)
    if isinstance(result, (DistanceMatrix, Ranking, DistanceView, ValuesView)):
        return result
    raise TypeError(
        f"results must be DistanceResult, SampleValues, Ranking and DistanceMatrix, or the path of a saved one, got "
        f"{shown(result)}"
    )


def _parts(views: list[Saved], top: int) -> list[Part]:
    """Distances, values, rankings, matrices; a ranking that only lends its interval has no section of its own."""
    rankings = [view for view in views if isinstance(view, Ranking)]
    distances = [view for view in views if isinstance(view, DistanceView)]
    lenders = [next((ranking for ranking in rankings if _same_problem(view, ranking)), None) for view in distances]
    parts = [
        distance_part(view, ranking, named=len(distances) > 1) for view, ranking in zip(distances, lenders, strict=True)
    ]
    parts += [values_part(view, top) for view in views if isinstance(view, ValuesView)]
    alone = (ranking for ranking in rankings if not (ranking in lenders and len(ranking.candidates) == 1))
    parts += [ranking_part(ranking) for ranking in alone]
    return parts + [matrix_part(view) for view in views if isinstance(view, DistanceMatrix)]


def _same_problem(view: DistanceView, ranking: Ranking) -> bool:
    """Whether the ranking holds the distance: the same sets by name and size, epsilon and label distance, one value."""
    record = view.record
    source, target = record["names"]
    if ranking.target != target or source not in ranking.names:
        return False
    item = ranking[source]
    tolerance = 2 * (record["error"] + item.error) + 1e-3 * abs(record["value"])
    return (
        abs(ranking.epsilon - record["epsilon"]) <= 1e-6 * record["epsilon"]
        and item.n == record["n"]
        and abs(item.value - record["value"]) <= tolerance
    )


def _anchored(sections: list[Section]) -> list[Section]:
    """Sections with anchors that differ."""
    seen: dict[str, int] = {}
    out = []
    for section in sections:
        seen[section.anchor] = seen.get(section.anchor, 0) + 1
        count = seen[section.anchor]
        out.append(section if count == 1 else replace(section, anchor=f"{section.anchor}-{count}"))
    return out


def _parameters(parts: list[Part]) -> Section:
    """Parameters of every result, folded, and versions."""
    versions: dict[str, str] = {"page made by otdd-flash": otdd_flash.__version__}
    for part in parts:
        versions |= {f"computed with {package}": version for package, version in part.versions.items()}
    folded = [Folded(f"Parameters: {part.title}", [Facts(part.parameters)]) for part in parts if part.parameters]
    return Section("parameters", "Parameters and versions", [Facts(list(versions.items())), *folded])


def _style() -> str:
    """The style sheet, led by the palette's colours in both themes."""
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables('dark')} }} }}"
    return f":root {{ {_variables('light')} }}\n{dark}\n{_resource('page.css')}"


def _variables(theme: Theme) -> str:
    """The palette as CSS variables; each level with the ink that reads on it."""
    pairs = dict(COLOURS[theme])
    for level, colour in enumerate(LEVELS[theme]):
        pairs |= {f"level-{level}": colour, f"on-{level}": ink_on(colour)}
    return " ".join(f"--{name}: {colour};" for name, colour in pairs.items())


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Templates in which everything is escaped that is not marked as markup."""
    jinja2 = optional_import("jinja2", needed_for="a report", extra="report")
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def _resource(name: str) -> str:
    return resources.files("otdd_flash.reporting").joinpath(name).read_text(encoding="utf-8")
