"""Front door of the label distances: which method, on which classes, from the cache or anew."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides
from otdd_flash.checks import check_callable, check_path, check_tensor, check_type
from otdd_flash.labels.cache import cache_path, check_writable, keep, load_cached
from otdd_flash.labels.class_sinkhorn import LabelSinkhorn, sinkhorn_table
from otdd_flash.labels.gaussian import MOMENT_METHODS, moment_table
from otdd_flash.labels.names import ClassNames, names_table
from otdd_flash.labels.samples import ClassSample, check_pair, class_samples
from otdd_flash.labels.tables import LabelDistances
from otdd_flash.sinkhorn import Progress
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

METHODS = (*MOMENT_METHODS, "sinkhorn")
"""Label distances between the samples of classes, by name; ``names`` is one between what they are called."""

_HASHED_ELEMENTS = 1 << 22  # 32 MiB of float64 rows at a time

ClassDistance = Callable[..., Any]


@plain_torch
def label_distances(
    source: LabeledDataset,
    target: LabeledDataset,
    *,
    method: Any = "gaussian",
    sinkhorn: LabelSinkhorn | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> LabelDistances:
    """Squared distances between all classes of two labelled data sets, ``W[l, l'] ~ W_2^2(class l, class l')``.

    ``names`` alone looks at class names instead of samples, see :class:`ClassNames`.

    Args:
        source: first data set.
        target: second data set, of the same feature width.
        method: ``means``, ``gaussian_diag``, ``gaussian`` (Bures) or ``sinkhorn``; ``names`` or a :class:`ClassNames`
            with embedder and scale; or precomputed tables (joint ``(c + c', c + c')``, the triple source-source,
            source-target, target-target, or a :class:`LabelDistances`); or a callable ``(points, points) -> squared
            distance``, of four parameters ``(points, points, weights, weights)`` where weights matter.
        sinkhorn: epsilon and solver of ``method="sinkhorn"``.
        cache_dir: folder that keeps tables between runs; not used for names, callables and precomputed tables.
        progress: called with (stage, passes, worst marginal error) by ``sinkhorn``.

    Returns:
        The three tables with method, parameters and certificate.

    Raises:
        ValueError: feature widths or devices that differ, an unknown method, tables that do not fit, a ``cache_dir``
            that cannot be written, class names that are no words where ``names`` compares them.
        TypeError: a ``method`` of no such kind, a callable of another signature or result.
    """
    check_sides(source=source, target=target)
    check_type("sinkhorn", sinkhorn, LabelSinkhorn, "give LabelSinkhorn(epsilon=...)", optional=True)
    check_path("cache_dir", cache_dir, optional=True)
    check_callable("progress", progress, optional=True)
    names = source.class_names, target.class_names
    if isinstance(method, LabelDistances):
        return LabelDistances(
            method.source_source, method.source_target, method.target_target, *names, method.method,
            method.parameters, method.certificate,
        )  # fmt: skip
    if isinstance(method, ClassNames) or (isinstance(method, str) and method == "names"):
        check_pair(source, target)
        return names_table(source, target, ClassNames() if isinstance(method, str) else method)
    if not isinstance(method, str) and not callable(method):
        return _given_tables(method, *names)
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(
            f"label_distance (method) must be one of {', '.join(METHODS)}, names, precomputed tables or a callable, "
            f"got {method!r}"
        )
    check_pair(source, target)
    settings = sinkhorn or LabelSinkhorn()
    parameters = settings.parameters() if method == "sinkhorn" else {}
    path = None
    if cache_dir is not None and isinstance(method, str):
        path = cache_path(cache_dir, source, target, method, parameters)
        stored = load_cached(path, source, target)
        if stored is not None:
            return stored
        check_writable(path.parent)
    classes = class_samples(source) + class_samples(target)
    table, certificate = _distinct_table(classes, method, settings, progress)
    name = method if isinstance(method, str) else f"callable {getattr(method, '__qualname__', type(method).__name__)}"
    result = LabelDistances.from_joint(table, *names, name, parameters=parameters, certificate=certificate)
    if path is not None:
        keep(result, path)
    return result


def callable_table(classes: Sequence[ClassSample], distance: ClassDistance) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` table of a user's squared distance, called once per pair of classes; zero on the diagonal.

    Raises:
        TypeError: another number of parameters than two or four, or a result that is not one real number.
        ValueError: a result that is negative or not finite, or weighted classes and a callable without weights.
    """
    weighted = _takes_weights(distance)
    _check_signature(distance, 4 if weighted else 2)
    if not weighted:
        _refuse_weights(classes)
    table = torch.zeros(len(classes), len(classes), dtype=torch.float64)
    for i, j in itertools.combinations(range(len(classes)), 2):
        p, q = classes[i], classes[j]
        weights = (p.weights, q.weights) if weighted else ()
        value = _number(distance(p.points, q.points, *weights), p, q)
        if not 0 <= value < float("inf"):
            raise ValueError(f"the label distance callable gave {value} for {p.name} and {q.name}, must be >= 0")
        table[i, j] = table[j, i] = value
    return table, {}


def _given_tables(tables: Any, source_names: Sequence[str], target_names: Sequence[str]) -> LabelDistances:
    """Precomputed tables; what can be no table is refused by the name of the argument."""
    try:
        triple = isinstance(tables, tuple | list) and len(tables) == 3
        for part in tables if triple else (tables,):
            check_tensor("label_distance", torch.as_tensor(part))
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(
            f"label_distance must be one of {', '.join(METHODS)}, names, precomputed tables or a callable "
            f"(points, points) -> squared distance, got {type(tables).__name__}: {error}"
        ) from error
    return LabelDistances.from_tables(tables, source_names, target_names)


def _number(value: Any, p: ClassSample, q: ClassSample) -> float:
    """What a callable gave for two classes, as one real number."""
    complex_valued = isinstance(value, complex) or bool(getattr(getattr(value, "dtype", None), "is_complex", False))
    try:
        if not complex_valued:
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
    raise TypeError(
        f"the label distance callable gave {type(value).__name__} ({got}) for {p.name} and {q.name}: it must return "
        "one real number, the squared distance"
    )


def _distinct_table(
    classes: Sequence[ClassSample], method: str | ClassDistance, settings: LabelSinkhorn, progress: Progress | None
) -> tuple[Tensor, dict[str, Any]]:
    """Joint table on the host; classes of the very same sample are one, at distance zero to the last bit."""
    distinct, position = _distinct(classes)
    if callable(method):
        table, certificate = callable_table(distinct, method)
    elif method == "sinkhorn":
        table, certificate = sinkhorn_table(distinct, settings, progress)
    else:
        table, certificate = moment_table(distinct, method)
    table = table.to("cpu", torch.float64)
    if not bool(torch.isfinite(table).all()):
        i, j = (~torch.isfinite(table)).nonzero()[0].tolist()
        raise ValueError(f"label distance of {distinct[i].name} and {distinct[j].name} is {float(table[i, j])}")
    return table[position][:, position], certificate


def _distinct(classes: Sequence[ClassSample]) -> tuple[list[ClassSample], list[int]]:
    """Classes without repetition, and where each one stands among them; only classes of one key are compared."""
    distinct: list[ClassSample] = []
    position = []
    alike: dict[tuple[int, int], list[int]] = {}
    for sample, key in zip(classes, _keys(classes), strict=True):
        candidates = alike.setdefault(key, [])
        match = next((k for k in candidates if _same(sample, distinct[k])), len(distinct))
        if match == len(distinct):
            candidates.append(match)
            distinct.append(sample)
        position.append(match)
    return distinct, position


def _keys(classes: Sequence[ClassSample]) -> list[tuple[int, int]]:
    """Size and hash of the first row of each class: the same for equal classes, seldom for others.

    The host reads all hashes at once.
    """
    hashes: list[Tensor] = []
    for _, group in itertools.groupby(classes, key=lambda sample: id(sample.x)):
        samples = list(group)
        x, rows = samples[0].x, torch.stack([sample.index[0] for sample in samples])
        factors = 2 * torch.arange(x.shape[1], device=x.device) + 1
        for part in rows.split(max(1, _HASHED_ELEMENTS // max(x.shape[1], 1))):
            bits = (x[part].to(torch.float64) + 0.0).view(torch.int64)  # -0.0 equals 0.0 and must hash like it
            hashes.append((bits * factors).sum(1))  # integers wrap: one value whatever the order of the sum
    return list(zip((sample.n for sample in classes), torch.cat(hashes).tolist(), strict=True))


def _same(p: ClassSample, q: ClassSample) -> bool:
    """Whether two classes hold the same weighted points in the same order."""
    if p.n != q.n or not torch.equal(p.x[p.index[0]], q.x[q.index[0]]):
        return False
    return torch.equal(p.weights, q.weights) and torch.equal(p.points, q.points)


def _takes_weights(distance: ClassDistance) -> bool:
    """Whether the callable has four positional parameters without a default."""
    try:
        parameters = inspect.signature(distance).parameters.values()
    except ValueError:  # a builtin without a signature
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 4


def _check_signature(distance: ClassDistance, count: int) -> None:
    """Refuse a callable that cannot be called with ``count`` positional arguments."""
    try:
        inspect.signature(distance).bind(*range(count))
    except ValueError:  # a builtin without a signature
        return
    except TypeError as error:
        raise TypeError(
            "the label distance callable must take (points, points), or (points, points, weights, weights), of two "
            f"classes, but has the signature {inspect.signature(distance)}: {error}"
        ) from error


def _refuse_weights(classes: Sequence[ClassSample]) -> None:
    """Refuse what a callable of two parameters would ignore."""
    for sample in classes:
        if float(sample.weights.max() - sample.weights.min()) > 1e-9 * float(sample.weights.max()):
            raise ValueError(
                f"class {sample.name} has unequal weights, which a callable of two parameters would ignore: give one "
                "of four, (points, points, weights, weights)"
            )
