"""Results of earlier runs, from the files that the command line left: no tensors, and so no pictures and no plan."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

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
_NUMBER = (int, float)
_TEXT, _LIST, _MAPPING = (str,), (list,), (dict,)
_DISTANCE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("value", "root", "n", "m"), _NUMBER), **dict.fromkeys(("names", "class_counts"), _LIST),
    **dict.fromkeys(("tol", "marginal_error", "dual", "primal", "gap", "error"), (*_NUMBER, NoneType)),
    **dict.fromkeys(("epsilon", "relative_epsilon", "mean_cost", "iterations", "peak_memory"), (*_NUMBER, NoneType)),
    **dict.fromkeys(("converged", "debiased"), (bool, NoneType)), "notes": (list, NoneType),
    **dict.fromkeys(("label_method", "precision", "memory", "backend", "device"), (str, NoneType)),
    **dict.fromkeys(("seconds", "versions"), (dict, NoneType)),
    **dict.fromkeys(("dropped", "conventional", "certificates"), (object,)),
}  # fmt: skip
_PAIR: dict[str, tuple[type, ...]] = {"source": _TEXT, "target": _TEXT, "value": _NUMBER, "converged": (bool,)}
_FAILURE: dict[str, tuple[type, ...]] = {"names": _LIST, "error": _TEXT, "message": _TEXT}
_WORDS = {int: "number", bool: "true or false", list: "list", str: "text", dict: "mapping"}


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
    _require(record, _DISTANCE)
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
    _require(record, {"parts": _MAPPING, "distance": _MAPPING})
    for part, summary in record["parts"].items():
        _require(summary, {"by_class": _MAPPING}, f"parts.{part}.")
    by_class = {part: summary["by_class"] for part, summary in record["parts"].items()}
    distance = {**record["distance"], "config": record.get("config", {})}
    _require(distance, _DISTANCE, "distance.")
    return ValuesView(columns, by_class, DistanceView(distance))


def _require(record: Any, kinds: Mapping[str, tuple[type, ...]], where: str = "") -> None:
    """Refuse a record without what the page shows, or with something else there, as one changed by hand.

    Raises:
        ValueError: names the key, which lies in ``where``.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where.rstrip('.') or 'the record'} is {record!r}, no mapping")
    for key, kind in kinds.items():
        if key not in record:
            raise ValueError(f"it has no {where}{key}")
        value = record[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind and object not in kind):
            raise ValueError(f"{where}{key} is {_short(value)}, no {_WORDS[kind[0]]}")


def _kinds(cls: type, *other: str) -> dict[str, tuple[type, ...]]:
    """What JSON has for the fields of a dataclass, but for those that are ``other`` there."""
    plain: dict[Any, tuple[type, ...]] = {float: _NUMBER, tuple: _LIST, Tensor: _LIST, Screen: _MAPPING}
    found = {}
    for name, hint in get_type_hints(cls).items():
        members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        origins = [get_origin(member) or member for member in members]
        found[name] = tuple(kind for origin in origins for kind in plain.get(origin, (origin,)))
    return {name: kind for name, kind in found.items() if name not in other}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _matrix(record: dict[str, Any]) -> DistanceMatrix:
    """The inverse of :meth:`otdd_flash.DistanceMatrix.to_dict`."""
    kinds = _kinds(DistanceMatrix, "certificates", "screening")
    _require(record, {**kinds, "pairs": _LIST})
    names = tuple(record["names"])
    place = {name: i for i, name in enumerate(names)}
    certificates = {}
    for number, pair in enumerate(record["pairs"]):
        _require(pair, _PAIR, f"pairs[{number}].")
        certificate = dict(pair)
        sides = certificate.pop("source"), certificate.pop("target")
        if not set(sides) <= set(names):
            raise ValueError(f"pairs[{number}] is of {' and '.join(sides)}, which are not both in names")
        certificates[place[sides[0]], place[sides[1]]] = certificate
    values, errors = (_tensor(record[key], key, len(names)) for key in ("values", "errors"))
    failures = tuple(_failure(failure) for failure in record["failures"])
    screening = record.get("screening")
    if screening is not None:
        _require(screening, _kinds(MatrixScreening, "refined"), "screening.")
        failed = torch.tensor([(name,) in {failure.names for failure in failures} for name in names])
        refined = ~values.isnan() | failed | failed[:, None]
        own = {
            "screen": Screen(**screening["screen"]),
            "values": _tensor(screening["values"], "screening.values", len(names)),
            "refined": refined,
        }
        screening = MatrixScreening(**{**screening, **own})
    own = {"names": names, "values": values, "errors": errors, "failures": failures, "sets": tuple(record["sets"]),
           "notes": tuple(record["notes"])}  # fmt: skip
    return DistanceMatrix(
        **{**{key: record[key] for key in kinds}, **own}, certificates=certificates, screening=screening
    )


def _tensor(rows: list[list[float | None]], key: str, size: int) -> Tensor:
    """A square table of numbers, null for those that are not known.

    Raises:
        ValueError: names the key of what is none.
    """
    try:
        filled = [[math.nan if value is None else value for value in row] for row in rows]
        table = torch.tensor(filled, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key} is no table of numbers") from error
    if table.shape != (size, size):
        raise ValueError(f"{key} must be a table of {size} x {size} numbers, got the shape {tuple(table.shape)}")
    return table


def _ranking(record: dict[str, Any], _: Path) -> Ranking:
    """The inverse of :meth:`otdd_flash.selection.rank.Ranking.to_dict`."""
    kinds = _kinds(Ranking, "screening")
    _require(record, kinds)
    candidates = []
    for number, item in enumerate(record["candidates"]):
        known = _kinds(RankedSet)
        _require(item, known, f"candidates[{number}].")
        held = {key: item[key] for key in known}
        held["class_names"] = tuple(held["class_names"])
        held["coupling"] = torch.tensor(held["coupling"], dtype=torch.float64)
        candidates.append(RankedSet(**held))
    screening = record.get("screening")
    if screening is not None:
        _require(screening, _kinds(RankScreening), "screening.")
        values = {name: math.nan if value is None else value for name, value in screening["values"].items()}
        own = {"screen": Screen(**screening["screen"]), "refined": tuple(screening["refined"]), "values": values}
        screening = RankScreening(**{**screening, **own})
    own = {"candidates": tuple(candidates), "target_classes": tuple(record["target_classes"]),
           "failures": tuple(_failure(failure) for failure in record["failures"])}  # fmt: skip
    return Ranking(**{**{key: record[key] for key in kinds}, **own}, screening=screening)


def _failure(record: dict[str, Any]) -> Failure:
    _require(record, _FAILURE, "failures.")
    return Failure(tuple(record["names"]), record["error"], record["message"])
