"""Results of earlier runs, from the files that the command line left: no tensors, and so no pictures and no plan."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels import LabelDistances
from otdd_flash.matrix import DistanceMatrix, collect
from otdd_flash.matrix.result import Failure
from otdd_flash.matrix.screening import MatrixScreening
from otdd_flash.reporting.views import DistanceView, ValuesView
from otdd_flash.screening import Screen
from otdd_flash.selection.ranking import RankedSet, Ranking, RankScreening

Saved = DistanceView | ValuesView | DistanceMatrix | Ranking
NAMES = ("result.json", "matrix.json", "ranking.json")
_NEEDED = (
    "names", "n", "m", "class_counts", "dropped", "value", "root", "converged", "marginal_error", "iterations", "tol",
    "dual", "primal", "gap", "error", "epsilon", "relative_epsilon", "mean_cost", "debiased", "label_method",
    "conventional", "certificates", "precision", "memory", "backend", "device", "seconds", "peak_memory", "notes",
    "versions",
)  # fmt: skip
_NUMBER = (int, float)
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("value", "root", "marginal_error", "tol", "dual", "primal", "gap", "error"), _NUMBER),
    **dict.fromkeys(("epsilon", "relative_epsilon", "mean_cost", "n", "m", "iterations", "peak_memory"), _NUMBER),
    **dict.fromkeys(("converged", "debiased"), bool), **dict.fromkeys(("names", "class_counts", "notes"), list),
    **dict.fromkeys(("label_method", "precision", "memory", "backend", "device"), str),
    **dict.fromkeys(("seconds", "versions"), dict),
}  # fmt: skip
_WORDS = {_NUMBER: "number", bool: "true or false", list: "list", str: "text", dict: "mapping"}


def load_saved(path: str | os.PathLike[str]) -> Saved:
    """The result in a run's folder of ``otdd distance``, ``values``, ``matrix`` or ``rank``, or in its JSON file.

    The folder of a :func:`otdd_flash.pairwise` run is read as :func:`otdd_flash.matrix.collect` does.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file of another kind, or a damaged one.
    """
    file = _file(Path(path))
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not a result of otdd: {error}") from error
    task = record.get("task") if isinstance(record, dict) else None
    if task is None and isinstance(record, dict) and {"names", "sets", "options"} <= record.keys():
        return _matrix(record) if "values" in record else collect(file.parent)
    readers: dict[Any, Callable[[dict[str, Any], Path], Saved]] = {
        "distance": _distance, "values": _values, "matrix": lambda found, _: _matrix(found), "rank": _ranking,
    }  # fmt: skip
    if task not in readers:
        raise ValueError(f"{file} holds no result that a report shows: its task is {task!r}, not {', '.join(readers)}")
    try:
        return readers[task](record, file.parent)
    except KeyError as error:
        raise ValueError(f"{file} is not a whole result of otdd {task}: it has no {error}") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"{file} is not a whole result of otdd {task}: {error or type(error).__name__}") from error


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = [path / name for name in NAMES if (path / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{path} is no file and no folder with {', '.join(NAMES)}: name a run's folder")
    return found[0]


def _distance(record: dict[str, Any], folder: Path) -> DistanceView:
    """Number, certificate and, from the file beside it, class distances."""
    _require(record)
    tables = folder / "label_distances.safetensors"
    return DistanceView(record, LabelDistances.from_safetensors(tables) if tables.is_file() else None)


def _values(record: dict[str, Any], folder: Path) -> ValuesView:
    """Values from the table beside the summary."""
    table = folder / "values.jsonl"
    if not table.is_file():
        raise FileNotFoundError(f"{table} is not there: the values are in it (output.files=true writes it)")
    try:
        rows = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{table} is not a table of values: {error}") from error
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    by_class = {part: summary["by_class"] for part, summary in record["parts"].items()}
    distance = {**record["distance"], "config": record.get("config", {})}
    _require(distance)
    return ValuesView(columns, by_class, DistanceView(distance))


def _require(distance: dict[str, Any]) -> None:
    """Refuse a distance without what the page shows, or with something else there, as one changed by hand.

    Raises:
        KeyError: names what is missing.
        ValueError: names what is of another kind.
    """
    for key in _NEEDED:
        kind, value = _KINDS.get(key, object), distance[key]
        fits = isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))
        if not fits and not (value is None and key not in ("value", "root", "names")):
            raise ValueError(f"{key} is {value!r}, no {_WORDS.get(kind, kind)}")


def _matrix(record: dict[str, Any]) -> DistanceMatrix:
    """The inverse of :meth:`otdd_flash.DistanceMatrix.to_dict`."""
    names = tuple(record["names"])
    place = {name: i for i, name in enumerate(names)}
    certificates = {}
    for pair in record["pairs"]:
        certificate = dict(pair)
        certificates[place[certificate.pop("source")], place[certificate.pop("target")]] = certificate
    values, errors = (_tensor(record[key], key) for key in ("values", "errors"))
    failures = tuple(_failure(failure) for failure in record["failures"])
    screening = record.get("screening")
    if screening is not None:
        failed = torch.tensor([(name,) in {failure.names for failure in failures} for name in names])
        refined = ~values.isnan() | failed | failed[:, None]
        own = {
            "screen": Screen(**screening["screen"]),
            "values": _tensor(screening["values"], "screening.values"),
            "refined": refined,
        }
        screening = MatrixScreening(**{**screening, **own})
    kept = ("epsilon", "label_epsilon", "reference_cost", "options", "computed", "reused", "seconds")
    return DistanceMatrix(
        names=names, values=values, errors=errors, certificates=certificates,
        failures=failures, sets=tuple(record["sets"]), screening=screening,
        notes=tuple(record["notes"]), **{key: record[key] for key in kept},
    )  # fmt: skip


def _tensor(rows: list[list[float | None]], key: str) -> Tensor:
    """A table of numbers, null for those that are not known.

    Raises:
        ValueError: names the key of what is none.
    """
    try:
        filled = [[math.nan if value is None else value for value in row] for row in rows]
        return torch.tensor(filled, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key} is no table of numbers: {error}") from error


def _ranking(record: dict[str, Any], _: Path) -> Ranking:
    """The inverse of :meth:`otdd_flash.selection.rank.Ranking.to_dict`."""
    known = [field.name for field in fields(RankedSet)]
    candidates = []
    for item in record["candidates"]:
        held = {key: item[key] for key in known}
        held["class_names"] = tuple(held["class_names"])
        held["coupling"] = torch.tensor(held["coupling"], dtype=torch.float64)
        candidates.append(RankedSet(**held))
    kept = ("target", "level", "bootstrap", "epsilon", "seed", "options", "seconds")
    screening = record.get("screening")
    if screening is not None:
        values = {name: math.nan if value is None else value for name, value in screening["values"].items()}
        own = {"screen": Screen(**screening["screen"]), "refined": tuple(screening["refined"]), "values": values}
        screening = RankScreening(**{**screening, **own})
    return Ranking(
        candidates=tuple(candidates), target_classes=tuple(record["target_classes"]),
        failures=tuple(_failure(failure) for failure in record["failures"]), screening=screening,
        **{key: record[key] for key in kept},
    )  # fmt: skip


def _failure(record: dict[str, Any]) -> Failure:
    return Failure(tuple(record["names"]), record["error"], record["message"])
