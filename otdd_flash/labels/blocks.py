"""Label tables over many data sets: what belongs to one set is computed once, a pair adds only its cross block.

The joint table of a pair is ``[[W_ss, W_st], [W_st^T, W_tt]]``. Its self blocks, the moments of the classes and (for
``sinkhorn``) the self terms of the classes depend on one data set each. Many sets, and many pairs of them, are taken
together: their nuclear norms, or class problems, in as few batches as memory allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels.api import METHODS
from otdd_flash.labels.callables import callable_entries
from otdd_flash.labels.class_problems import cross_blocks, own_statistics
from otdd_flash.labels.class_sinkhorn import LabelSinkhorn
from otdd_flash.labels.gaussian import moment_entries, moment_tables, with_absent
from otdd_flash.labels.samples import ClassSample, class_samples, distinct_classes, stacked, with_mass
from otdd_flash.labels.statistics import ClassStatistics, CrossTable, StatisticsPair, symmetric_table
from otdd_flash.types import LabeledDataset


def class_statistics(
    dataset: LabeledDataset, method: str | Callable[..., Any], *, sinkhorn: LabelSinkhorn | None = None
) -> ClassStatistics:
    """Classes, own table and self terms of one data set; see :func:`class_statistics_of`."""
    return class_statistics_of([dataset], method, sinkhorn=sinkhorn)[0]


def known_statistics(dataset: LabeledDataset, known: dict[str, Tensor]) -> ClassStatistics:
    """The statistics of a data set from the :meth:`ClassStatistics.tensors` of an earlier call."""
    samples = tuple(class_samples(dataset))
    return ClassStatistics(samples, known["own"], known.get("selves"), float(known["error"]), bool(known["converged"]))


def class_statistics_of(
    datasets: Sequence[LabeledDataset], method: str | Callable[..., Any], *, sinkhorn: LabelSinkhorn | None = None
) -> list[ClassStatistics]:
    """Classes, own table and self terms of many data sets, computed together.

    Args:
        datasets: the sets; those of one feature width and device share their batches.
        method: ``means``, ``gaussian_diag``, ``gaussian``, ``sinkhorn`` or a callable of two class samples.
        sinkhorn: epsilon and solver of ``method="sinkhorn"``; its ``epsilon`` must be absolute, because an epsilon
            relative to a pair would make the self terms belong to the pair.

    Raises:
        ValueError: an unknown method or a relative epsilon.
    """
    _check_method(method, sinkhorn)
    groups = [tuple(class_samples(dataset)) for dataset in datasets]
    if callable(method):
        values = [callable_entries(list(itertools.combinations(samples, 2)), method) for samples in groups]
        return [ClassStatistics(g, symmetric_table(v, len(g))) for g, v in zip(groups, values, strict=True)]
    found: dict[int, ClassStatistics] = {}
    for positions in _alike([samples[0].x for samples in groups]):
        chosen = [groups[position] for position in positions]
        if method == "sinkhorn" and sinkhorn is not None:
            parts = own_statistics([with_mass(samples) for samples in chosen], sinkhorn)
            parts = [
                replace(part, samples=samples, own=with_absent(part.own, samples, samples))
                for samples, part in zip(chosen, parts, strict=True)
            ]
        else:
            tables = moment_tables(chosen, method)
            parts = [
                ClassStatistics(samples, table, error=certificate["error"])
                for samples, (table, certificate) in zip(chosen, tables, strict=True)
            ]
        found.update(zip(positions, parts, strict=True))
    return [found[position] for position in range(len(groups))]


def cross_table(
    source: ClassStatistics,
    target: ClassStatistics,
    method: str | Callable[..., Any],
    *,
    sinkhorn: LabelSinkhorn | None = None,
) -> CrossTable:
    """Squared distances between the classes of two sets; see :func:`cross_tables`."""
    return cross_tables([(source, target)], method, sinkhorn=sinkhorn)[0]


def cross_tables(
    pairs: Sequence[StatisticsPair],
    method: str | Callable[..., Any],
    *,
    sinkhorn: LabelSinkhorn | None = None,
) -> list[CrossTable]:
    """Squared distances between the classes of two sets, float64, on the host, for many pairs of sets together.

    Each equals the source-target block of :func:`otdd_flash.labels.label_distances` for the same absolute epsilon.

    Args:
        pairs: statistics of two sets each; those of one feature width and device share their batches.
        method: as in :func:`class_statistics_of`.
        sinkhorn: as there.

    Raises:
        ValueError: as there; a table that is not finite.
    """
    _check_method(method, sinkhorn)
    found: dict[int, CrossTable] = {}
    for positions in _alike([source.samples[0].x for source, _ in pairs]):
        chosen = [pairs[position] for position in positions]
        if callable(method):
            values = [callable_entries(list(itertools.product(s.samples, t.samples)), method) for s, t in chosen]
            parts = [
                CrossTable(v.reshape(len(s.samples), -1), 0.0, True) for (s, _), v in zip(chosen, values, strict=True)
            ]
        elif method == "sinkhorn" and sinkhorn is not None:
            parts = _sinkhorn_blocks(chosen, sinkhorn)
        else:
            parts = _moment_blocks(chosen, method)
        _finish(chosen, [part.table for part in parts])
        found.update(zip(positions, parts, strict=True))
    return [found[position] for position in range(len(pairs))]


def _check_method(method: Any, sinkhorn: LabelSinkhorn | None) -> None:
    if not callable(method) and method not in METHODS:
        raise ValueError(f"label distance method must be one of {', '.join(METHODS)} or a callable, got {method!r}")
    if method == "sinkhorn" and (sinkhorn is None or sinkhorn.epsilon is None):
        raise ValueError("label tables of many sets need an absolute label epsilon, one for all of them")


def _alike(features: Sequence[Tensor]) -> list[list[int]]:
    """Positions of features of one width and device, which can be in one batch."""
    groups: dict[tuple[int, torch.device], list[int]] = {}
    for position, x in enumerate(features):
        groups.setdefault((x.shape[1], x.device), []).append(position)
    return list(groups.values())


def _sinkhorn_blocks(pairs: Sequence[StatisticsPair], sinkhorn: LabelSinkhorn) -> list[CrossTable]:
    """Sinkhorn divergences between the classes that have mass, and what stands for them where one has none."""
    present = [(replace(s, samples=with_mass(s.samples)), replace(t, samples=with_mass(t.samples))) for s, t in pairs]
    return [
        part._replace(table=with_absent(part.table, source.samples, target.samples))
        for (source, target), part in zip(pairs, cross_blocks(present, sinkhorn), strict=True)
    ]


def _moment_blocks(pairs: Sequence[StatisticsPair], method: str) -> list[CrossTable]:
    """Squared Wasserstein distances of the classes seen as points or Gaussians; errors are those within the sets."""
    classes, spans = _spans(pairs)
    wanted = [list(itertools.product(*sides)) for sides in spans]
    values = moment_entries(classes, list(itertools.chain(*wanted)), method).cpu().split([len(w) for w in wanted])
    return [
        CrossTable(block.reshape(len(source.samples), -1).clone(), max(source.error, target.error), True)
        for (source, target), block in zip(pairs, values, strict=True)
    ]


def _finish(pairs: Sequence[StatisticsPair], tables: Sequence[Tensor]) -> None:
    """Zero between classes of the very same sample, to the last bit; refuse what is not finite."""
    classes, spans = _spans(pairs)
    position = torch.tensor(distinct_classes(classes)[1])
    for (source, target), (rows, columns), table in zip(pairs, spans, tables, strict=True):
        table[position[rows.start : rows.stop, None] == position[columns.start : columns.stop]] = 0.0
        if not bool(torch.isfinite(table).all()):
            i, j = (~torch.isfinite(table)).nonzero()[0].tolist()
            names = source.samples[i].name, target.samples[j].name
            raise ValueError(f"label distance of {names[0]} and {names[1]} is {float(table[i, j])}")


def _spans(pairs: Sequence[StatisticsPair]) -> tuple[list[ClassSample], list[tuple[range, range]]]:
    """The classes of all sets, and of each pair the positions of those of its two sides."""
    groups = [side.samples for pair in pairs for side in pair]
    classes, begin = stacked(groups)
    spans = [range(start, start + len(group)) for start, group in zip(begin, groups, strict=True)]
    return classes, list(zip(spans[::2], spans[1::2], strict=True))
