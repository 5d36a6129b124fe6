"""Squared 2-Wasserstein distances between classes seen as points or Gaussians, from their first two moments.

``means``          ``|mu - mu'|^2``
``gaussian_diag``  ``|mu - mu'|^2 + |s - s'|^2`` with standard deviations ``s`` of each feature
``gaussian``       ``|mu - mu'|^2 + tr S + tr S' - 2 tr (S^1/2 S' S^1/2)^1/2`` (Bures)

With ``S = F^T F`` the last trace is the nuclear norm of ``F F'^T``: no matrix square root is taken, nothing can turn
imaginary, rank-deficient covariances are no special case, and a class of ``n_c < d`` samples enters as its centred
rows, ``||Z Z'^T||_nuclear / sqrt(n n')``.

Source: Dowson and Landau (1982); Alvarez-Melis and Fusi (2020), equation 7.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels.moment_batches import prepare
from otdd_flash.labels.nuclear import Pair, nuclear_pairs, relative_error
from otdd_flash.labels.samples import ClassSample, with_mass
from otdd_flash.labels.statistics import symmetric_table
from otdd_flash.labels.triangles import shift

MOMENT_METHODS = ("means", "gaussian_diag", "gaussian")
_CHUNK_ELEMENTS = 1 << 23  # 64 MiB of float64 differences at a time


def moment_table(classes: Sequence[ClassSample], method: str) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` squared distances between classes, on the host, and the certificate; see :func:`moment_tables`."""
    return moment_tables([classes], method)[0]


def moment_tables(groups: Sequence[Sequence[ClassSample]], method: str) -> list[tuple[Tensor, dict[str, Any]]]:
    """One table a group: symmetric ``(c, c)`` float64 squared distances within it, on the host, and its certificate.

    Args:
        groups: classes of one feature width and device.
        method: one of :data:`MOMENT_METHODS`.
    """
    classes = [sample for group in groups for sample in group]
    prepare(classes, method)
    ends = list(itertools.accumulate((len(group) for group in groups), initial=0))
    inner = [list(itertools.combinations(range(*span), 2)) for span in itertools.pairwise(ends)]
    values = iter(moment_entries(classes, list(itertools.chain(*inner)), method).cpu().split([len(p) for p in inner]))
    errors = _errors([with_mass(group) for group in groups], method)
    out = []
    for group, error in zip(groups, errors, strict=True):
        table = symmetric_table(next(values), len(group))
        certificate: dict[str, Any] = {"error": error}
        if method == "gaussian":
            certificate["ranks"] = [sample.factor.shape[0] for sample in group]
        out.append((table, certificate))
    return out


def moment_entries(classes: Sequence[ClassSample], pairs: Sequence[Pair], method: str) -> Tensor:
    """``(P,)`` squared distances of pairs of classes, float64, on their device.

    Args:
        classes: of one feature width and device.
        pairs: positions of two classes each.
        method: one of :data:`MOMENT_METHODS`.
    """
    if not pairs:
        return torch.zeros(0, dtype=torch.float64)
    prepare(classes, method)
    device = classes[0].x.device
    first, second = torch.tensor(pairs, device=device).T
    values = _squared_distances(_points(classes, method), first, second)
    if method == "gaussian":
        traces = torch.stack([sample.trace for sample in classes])
        norms = nuclear_pairs([sample.factor for sample in classes], pairs)
        values += traces[first] + traces[second] - 2 * norms
    return values


def with_absent(inner: Tensor, rows: Sequence[ClassSample], columns: Sequence[ClassSample]) -> Tensor:
    """``(c, c')`` table of all classes from that of the classes with mass.

    A class without mass has no transport problem, which it could only spoil for the others by being far away; its
    entries are distances of diagonal Gaussians. They say what mass would cost that were put there.
    """
    if inner.shape == (len(rows), len(columns)):
        return inner
    pairs = itertools.product(range(len(rows)), range(len(rows), len(rows) + len(columns)))
    table = moment_entries([*rows, *columns], list(pairs), "gaussian_diag").cpu().reshape(len(rows), -1)
    here, there = (torch.tensor([sample.present for sample in side]) for side in (rows, columns))
    table[here.nonzero(), there.nonzero()[:, 0]] = inner
    return table


def _points(classes: Sequence[ClassSample], method: str) -> Tensor:
    """``(c, d)`` means, or ``(c, 2 d)`` means and standard deviations."""
    if method == "gaussian_diag":
        return torch.stack([torch.cat([sample.mean, sample.variance.sqrt()]) for sample in classes])
    return torch.stack([sample.mean for sample in classes])


def _squared_distances(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``(P,)`` squared distances taken from differences: never negative, zero on equal points."""
    size = max(1, _CHUNK_ELEMENTS // max(points.shape[1], 1))
    parts = zip(first.split(size), second.split(size), strict=True)
    return torch.cat([(points[i] - points[j]).square().sum(1) for i, j in parts])


def _errors(groups: Sequence[Sequence[ClassSample]], method: str) -> list[float]:
    """Bound of the absolute error of the entries of each group, in units of the cost; one look from the host."""
    scales = []
    for group in groups:
        square = _points(group, method).square().sum(1)
        if method != "gaussian":
            scales.append(torch.stack([square.max(), *torch.zeros(2).to(square)]))
            continue
        traces = torch.stack([sample.trace for sample in group])
        triangles = [s.factor for s in group if s.n > s.factor.shape[0] and square.device.type != "cpu"]
        raised = torch.stack([shift(factor) for factor in triangles] or [torch.zeros_like(square[0])])
        scales.append(torch.stack([(square + traces).max(), traces.max(), (raised.max() * traces.max()).sqrt()]))
    errors = []
    for group, (scale, trace, moved) in zip(groups, torch.stack(scales).tolist(), strict=True):
        ranks = [sample.factor.shape[0] for sample in group] if method == "gaussian" else [0]
        terms = group[0].x.shape[1] * (2 if method == "gaussian_diag" else 1) + max(ranks)
        rounding = torch.finfo(torch.float64).eps * terms * 2 * scale
        off = trace * relative_error(group[0].x.device, ranks) + 2 * max(ranks) ** 0.5 * moved
        errors.append(rounding + 2 * off)
    return errors
