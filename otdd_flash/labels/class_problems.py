"""Class-to-class Sinkhorn problems of many data sets, in ragged batches that are cut by memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from otdd_flash.labels.class_sinkhorn import LabelSinkhorn, entries, entry_terms, solve_classes
from otdd_flash.labels.samples import ClassSample, stacked
from otdd_flash.labels.statistics import ClassStatistics, CrossTable, StatisticsPair
from otdd_flash.memory import free_memory
from otdd_flash.ops import Problem
from otdd_flash.sinkhorn import Solution
from otdd_flash.sinkhorn.divergence import rounding_of
from otdd_flash.sinkhorn.terms import Term, combine

Item = TypeVar("Item")
_Sides = tuple[Sequence[ClassSample], Sequence[ClassSample]]
_Part = tuple[list[Problem], list[Term]]  # terms count the problems of their own part from zero
_FREE_FRACTION = 4  # a batch and its stored costs take at most this part of what is free


@dataclass(frozen=True)
class _Found:
    """What a batch found of the problems of one set, or of one pair of sets."""

    dual: Tensor
    error: float
    converged: bool


def own_statistics(groups: Sequence[tuple[ClassSample, ...]], settings: LabelSinkhorn) -> list[ClassStatistics]:
    """Own table and self terms of the classes of each group; all groups of one feature width and device."""
    out: list[ClassStatistics] = []
    for batch in _batches(groups, lambda samples: (samples, samples), settings):
        classes, first = stacked(batch)
        parts = [_own_problems(len(samples), start, settings) for samples, start in zip(batch, first, strict=True)]
        for samples, found in zip(batch, _solve(classes, parts, settings), strict=True):
            c = len(samples)
            pairs = list(itertools.combinations(range(c), 2))
            selves = found.dual[len(pairs) :] if settings.debiased else None
            table = entries(found.dual, pairs, c)
            out.append(ClassStatistics(samples, table, selves, found.error, found.converged))
    return out


def cross_blocks(pairs: Sequence[StatisticsPair], settings: LabelSinkhorn) -> list[CrossTable]:
    """Distances between the classes of two sets, pair by pair: cross problems only, the self terms are known."""
    out: list[CrossTable] = []
    for batch in _batches(pairs, lambda pair: (pair[0].samples, pair[1].samples), settings):
        classes, first = stacked([side.samples for pair in batch for side in pair])
        parts = [_cross_problems(pair, first[2 * k], first[2 * k + 1]) for k, pair in enumerate(batch)]
        for pair, (_, terms), found in zip(batch, parts, _solve(classes, parts, settings), strict=True):
            offset = torch.tensor([term.offset for term in terms], dtype=torch.float64)
            table = (found.dual + offset).reshape(len(pair[0].samples), -1)
            error = max(found.error, *(side.error for side in pair))
            out.append(CrossTable(table, error, found.converged))
    return out


def _own_problems(c: int, start: int, settings: LabelSinkhorn) -> _Part:
    """All pairs of ``c`` classes from ``start`` on, then their self problems."""
    pairs = list(itertools.combinations(range(c), 2))
    selves = c if settings.debiased else 0
    terms = entry_terms(pairs, selves) + [Term((len(pairs) + k,), (1.0,), part=True) for k in range(selves)]
    return [(start + i, start + j) for i, j in pairs + [(k, k) for k in range(selves)]], terms


def _cross_problems(pair: StatisticsPair, first: int, second: int) -> _Part:
    """All pairs of a class of one set with one of the other, whose self terms enter as a known offset."""
    source, target = pair
    c, k = len(source.samples), len(target.samples)
    offset = torch.zeros(c, k, dtype=torch.float64)
    if source.selves is not None and target.selves is not None:
        offset = -(source.selves[:, None] + target.selves[None, :]) / 2
    terms = [Term((p,), (1.0,), offset=known) for p, known in enumerate(offset.flatten().tolist())]
    return list(itertools.product(range(first, first + c), range(second, second + k))), terms


def _solve(classes: Sequence[ClassSample], parts: Sequence[_Part], settings: LabelSinkhorn) -> Iterator[_Found]:
    """All problems of all parts in one batch, and what it found of each part."""
    ends = list(itertools.accumulate((len(problems) for problems, _ in parts), initial=0))
    terms = [
        [replace(term, problems=tuple(begin + p for p in term.problems)) for term in own]
        for begin, (_, own) in zip(ends, parts, strict=False)
    ]
    if not ends[-1]:  # single classes without self terms
        return (_Found(torch.zeros(0, dtype=torch.float64), 0.0, True) for _ in parts)
    problems = [problem for own, _ in parts for problem in own]
    solution = solve_classes(classes, problems, settings, list(itertools.chain(*terms)))
    return (
        _Found(solution.dual[begin:end], _error(solution, own), bool(solution.converged[begin:end].all()))
        for (begin, end), own in zip(itertools.pairwise(ends), terms, strict=True)
    )


def _error(solution: Solution, terms: Sequence[Term]) -> float:
    """The largest stated error of an entry."""
    values = solution.dual.tolist(), solution.primal.tolist()
    bounds = [combine(term, *values).error for term in terms]
    return max(bounds, default=0.0) + max((rounding_of(solution, term) for term in terms), default=0.0)


def _batches(items: Sequence[Item], sides: Callable[[Item], _Sides], settings: LabelSinkhorn) -> Iterator[list[Item]]:
    """``items`` in order, cut so that the bytes of a batch stay within the budget; one item is never cut."""
    budget = settings.execution.memory_budget
    batch, held = list[Item](), 0
    for item in items:
        first, second = sides(item)
        if budget is None:
            budget = free_memory(first[0].x.device) // _FREE_FRACTION
        size = _bytes(first, second)
        if batch and held + size > budget:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch


def _bytes(first: Sequence[ClassSample], second: Sequence[ClassSample]) -> int:
    """What the points of two groups and the stored costs of all their pairs take."""
    n, m = (sum(sample.n for sample in samples) for samples in (first, second))
    x = first[0].x
    return (n + m) * x.shape[1] * x.element_size() + 8 * n * m
