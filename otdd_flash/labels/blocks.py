"""Label tables over many data sets: what belongs to one set is computed once, a pair adds only its cross block.

The joint table of a pair is ``[[W_ss, W_st], [W_st^T, W_tt]]``. Its self blocks, the moments of the classes and (for
``sinkhorn``) the self terms of the classes depend on one data set each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.labels.api import METHODS, _refuse_weights, _same, _takes_weights, callable_table
from otdd_flash.labels.class_sinkhorn import LabelSinkhorn, entries, entry_terms, warn_unconverged
from otdd_flash.labels.gaussian import (
    _chunks,
    _nuclear_norm,
    gaussian_diag_table,
    gaussian_table,
    means_table,
)
from otdd_flash.labels.samples import ClassSample, class_samples
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Solution, solve
from otdd_flash.sinkhorn.divergence import rounding_of
from otdd_flash.sinkhorn.terms import Term, combine
from otdd_flash.types import LabeledDataset

_OWN = {"means": means_table, "gaussian_diag": gaussian_diag_table, "gaussian": gaussian_table}


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """The classes of one data set with what they bring to a table with any other set.

    Args:
        samples: ``c`` classes; their moments are computed on first use and kept.
        own: ``(c, c)`` float64 squared distances among them, on the host.
        selves: ``(c,)`` self terms ``OT_eps(l, l)``, ``sinkhorn`` with debiasing only.
        error: stated absolute error of the entries.
        converged: every class problem met its tolerance.
    """

    samples: tuple[ClassSample, ...]
    own: Tensor
    selves: Tensor | None = None
    error: float = 0.0
    converged: bool = True

    def tensors(self) -> dict[str, Tensor]:
        """What can be kept and given as ``known``."""
        held = {"own": self.own, "selves": self.selves, "error": torch.tensor(self.error, dtype=torch.float64),
                "converged": torch.tensor(self.converged)}  # fmt: skip
        return {name: tensor for name, tensor in held.items() if tensor is not None}


class CrossTable(NamedTuple):
    """Squared distances ``(c, c')`` between the classes of two sets, on the host, and how far they can be trusted."""

    table: Tensor
    error: float
    converged: bool


def class_statistics(
    dataset: LabeledDataset,
    method: str | Callable[..., Any],
    *,
    sinkhorn: LabelSinkhorn | None = None,
    known: dict[str, Tensor] | None = None,
) -> ClassStatistics:
    """Classes, own table and self terms of one data set.

    Args:
        dataset: the set.
        method: ``means``, ``gaussian_diag``, ``gaussian``, ``sinkhorn`` or a callable of two class samples.
        sinkhorn: epsilon and solver of ``method="sinkhorn"``; its ``epsilon`` must be absolute, because an epsilon
            relative to a pair would make the self terms belong to the pair.
        known: the :meth:`ClassStatistics.tensors` of an earlier call, to be taken instead of computed.

    Raises:
        ValueError: an unknown method or a relative epsilon.
    """
    _check_method(method, sinkhorn)
    samples = tuple(class_samples(dataset))
    if known is not None:
        return ClassStatistics(
            samples, known["own"], known.get("selves"), float(known["error"]), bool(known["converged"])
        )
    if callable(method):
        return ClassStatistics(samples, callable_table(samples, method)[0])
    if sinkhorn is not None and method == "sinkhorn":
        return _sinkhorn_statistics(samples, sinkhorn)
    own, certificate = _OWN[method](samples)
    return ClassStatistics(samples, own.to("cpu", torch.float64).fill_diagonal_(0.0), error=certificate["error"])


def cross_table(
    source: ClassStatistics,
    target: ClassStatistics,
    method: str | Callable[..., Any],
    *,
    sinkhorn: LabelSinkhorn | None = None,
) -> CrossTable:
    """Squared distances between the classes of two sets, float64, on the host.

    Equals the source-target block of :func:`otdd_flash.labels.label_distances` for the same absolute epsilon.

    Raises:
        ValueError: as :func:`class_statistics`; a table that is not finite.
    """
    _check_method(method, sinkhorn)
    error, converged = max(source.error, target.error), True  # of moments: of the same size as within the sets
    if callable(method):
        table = _callable_block(source.samples, target.samples, method)
    elif method == "sinkhorn" and sinkhorn is not None:
        table, error, converged = _sinkhorn_block(source, target, sinkhorn)
    else:
        table = _moment_block(source.samples, target.samples, method).to("cpu", torch.float64)
    for i, p in enumerate(source.samples):
        for j, q in enumerate(target.samples):
            if _same(p, q):
                table[i, j] = 0.0
    if not bool(torch.isfinite(table).all()):
        i, j = (~torch.isfinite(table)).nonzero()[0].tolist()
        names = source.samples[i].name, target.samples[j].name
        raise ValueError(f"label distance of {names[0]} and {names[1]} is {float(table[i, j])}")
    return CrossTable(table, error, converged)


def _check_method(method: Any, sinkhorn: LabelSinkhorn | None) -> None:
    if not callable(method) and method not in METHODS:
        raise ValueError(f"label distance method must be one of {', '.join(METHODS)} or a callable, got {method!r}")
    if method == "sinkhorn" and (sinkhorn is None or sinkhorn.epsilon is None):
        raise ValueError("label tables of many sets need an absolute label epsilon, one for all of them")


def _moment_block(a: Sequence[ClassSample], b: Sequence[ClassSample], method: str) -> Tensor:
    """Squared Wasserstein distances of the classes seen as points or Gaussians."""
    rows, columns = (_moments(samples, diagonal=method == "gaussian_diag") for samples in (a, b))
    table = torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    if method != "gaussian":
        return table
    traces = [torch.stack([sample.factor.square().sum() for sample in samples]) for samples in (a, b)]
    norms = _nuclear_block([sample.factor for sample in a], [sample.factor for sample in b])
    return table + traces[0][:, None] + traces[1][None, :] - 2 * norms


def _moments(samples: Sequence[ClassSample], *, diagonal: bool) -> Tensor:
    """``(c, d)`` means, or ``(c, 2 d)`` means and standard deviations."""
    parts = [torch.cat([s.mean, s.variance.sqrt()]) if diagonal else s.mean for s in samples]
    return torch.stack(parts)


def _nuclear_block(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """``(c, c')`` nuclear norms of ``F_i F'_j^T``, in batches of like rank."""
    order = sorted(range(len(b)), key=lambda j: b[j].shape[0])
    table = torch.zeros(len(a), len(b), dtype=torch.float64, device=b[0].device)
    for i, factor in enumerate(a):
        for chunk in _chunks(order, b):
            stack = pad_sequence([b[j] for j in chunk], batch_first=True)
            products = factor @ stack.mT
            table[i, chunk] = _nuclear_norm(products if products.shape[1] <= products.shape[2] else products.mT)
    return table


def _callable_block(a: Sequence[ClassSample], b: Sequence[ClassSample], distance: Callable[..., Any]) -> Tensor:
    """The user's squared distance, called once per pair of classes."""
    weighted = _takes_weights(distance)
    if not weighted:
        _refuse_weights([*a, *b])
    table = torch.zeros(len(a), len(b), dtype=torch.float64)
    for i, p in enumerate(a):
        for j, q in enumerate(b):
            value = float(distance(p.points, q.points, *((p.weights, q.weights) if weighted else ())))
            if not 0 <= value < float("inf"):
                raise ValueError(f"the label distance callable gave {value} for {p.name} and {q.name}, must be >= 0")
            table[i, j] = value
    return table


def _sinkhorn_statistics(samples: tuple[ClassSample, ...], settings: LabelSinkhorn) -> ClassStatistics:
    """Own table and self terms from one batch of problems."""
    c = len(samples)
    pairs = [(i, j) for i in range(c) for j in range(i + 1, c)]
    selves = [(i, i) for i in range(c)] if settings.debiased else []
    if not pairs + selves:
        return ClassStatistics(samples, torch.zeros(c, c, dtype=torch.float64))
    terms = entry_terms(pairs, len(selves)) + [Term((len(pairs) + k,), (1.0,), part=True) for k in range(len(selves))]
    solution = _solve(samples, pairs + selves, settings, terms)
    return ClassStatistics(
        samples, entries(solution.dual, pairs, c), solution.dual[len(pairs) :] if selves else None,
        _error(solution, terms), bool(solution.converged.all()),
    )  # fmt: skip


def _sinkhorn_block(source: ClassStatistics, target: ClassStatistics, settings: LabelSinkhorn) -> CrossTable:
    """Cross problems only; the self terms are known."""
    c, k = len(source.samples), len(target.samples)
    problems = [(i, c + j) for i in range(c) for j in range(k)]
    offset = torch.zeros(c, k, dtype=torch.float64)
    if source.selves is not None and target.selves is not None:
        offset = -(source.selves[:, None] + target.selves[None, :]) / 2
    terms = [Term((p,), (1.0,), offset=float(known)) for p, known in enumerate(offset.flatten())]
    solution = _solve((*source.samples, *target.samples), problems, settings, terms)
    error = max(_error(solution, terms), source.error, target.error)
    return CrossTable(solution.dual.reshape(c, k) + offset, error, bool(solution.converged.all()))


def _error(solution: Solution, terms: list[Term]) -> float:
    """The largest stated error of an entry."""
    bounds = [combine(term, solution.dual, solution.primal).error for term in terms]
    return max(bounds, default=0.0) + max((rounding_of(solution, term) for term in terms), default=0.0)


def _solve(
    samples: Sequence[ClassSample], problems: list[tuple[int, int]], settings: LabelSinkhorn, terms: list[Term]
) -> Solution:
    """Class problems at the settings' absolute epsilon, in one batch."""
    assert settings.epsilon is not None
    cost = DotProductCost.build([PointCloud(sample.points, sample.weights) for sample in samples])
    how = settings.execution
    operator = make_operator(
        cost, problems, epsilon=settings.epsilon, backend=how.backend, precision=how.precision, memory=how.memory,
        memory_budget=how.memory_budget, deterministic=how.deterministic,
        tol=settings.options.tol,
    )  # fmt: skip
    solution = solve(operator, settings.epsilon, settings.options, terms=terms)
    warn_unconverged(solution, samples)
    return solution
