"""Front door of the label distances: which method, on which classes, from the cache or anew."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides
from otdd_flash.checks import check_callable, check_path, check_tensor, check_type
from otdd_flash.labels.cache import cache_path, check_writable, keep, load_cached
from otdd_flash.labels.callables import ClassDistance, callable_entries
from otdd_flash.labels.class_sinkhorn import LabelSinkhorn, sinkhorn_table
from otdd_flash.labels.gaussian import MOMENT_METHODS, moment_table, with_absent
from otdd_flash.labels.names import ClassNames, names_table
from otdd_flash.labels.samples import ClassSample, check_pair, class_samples, distinct_classes, with_mass
from otdd_flash.labels.statistics import symmetric_table
from otdd_flash.labels.tables import LabelDistances
from otdd_flash.sinkhorn import Progress
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

METHODS = (*MOMENT_METHODS, "sinkhorn")
"""Label distances between the samples of classes, by name; ``names`` is one between what they are called."""


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


def _distinct_table(
    classes: Sequence[ClassSample], method: str | ClassDistance, settings: LabelSinkhorn, progress: Progress | None
) -> tuple[Tensor, dict[str, Any]]:
    """Joint table on the host; classes of the very same sample are one, at distance zero to the last bit."""
    distinct, position = distinct_classes(classes)
    certificate: dict[str, Any] = {}
    if callable(method):
        values = callable_entries(list(itertools.combinations(distinct, 2)), method)
        table = symmetric_table(values, len(distinct))
    elif method == "sinkhorn":
        table, certificate = sinkhorn_table(with_mass(distinct), settings, progress)
        table = with_absent(table, distinct, distinct)
    else:
        table, certificate = moment_table(distinct, method)
    table = table.to("cpu", torch.float64)
    if not bool(torch.isfinite(table).all()):
        i, j = (~torch.isfinite(table)).nonzero()[0].tolist()
        raise ValueError(f"label distance of {distinct[i].name} and {distinct[j].name} is {float(table[i, j])}")
    return table[position][:, position], certificate
