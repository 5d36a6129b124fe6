"""Class-to-class Sinkhorn divergences on features: every pair of classes in one batched solve.

    W[i, j] = OT_eps(i, j) - OT_eps(i, i)/2 - OT_eps(j, j)/2

One epsilon serves all pairs, so that entries compare; self terms are solved once per class.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_fields, check_flag, check_number, check_type
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import NotConvergedWarning, warn
from otdd_flash.labels.samples import ClassSample
from otdd_flash.labels.statistics import symmetric_table
from otdd_flash.ops import Problem
from otdd_flash.sinkhorn import Execution, Progress, Solution, SolverOptions, solve
from otdd_flash.sinkhorn.batch import own_frames
from otdd_flash.sinkhorn.divergence import rounding_of
from otdd_flash.sinkhorn.terms import Term, combine


@dataclass(frozen=True)
class LabelSinkhorn:
    """How class-to-class problems are solved; their epsilon is a parameter of its own.

    Args:
        epsilon: absolute, in units of the squared feature distance; wins over ``relative_epsilon``.
        relative_epsilon: as a fraction of the mean squared distance between samples of different classes.
        debiased: subtract the self terms; without it the table is ``OT_eps`` itself off the diagonal.
        options: tolerances and method of the solver.
        execution: backend, precision, memory mode.
    """

    epsilon: float | None = None
    relative_epsilon: float = 0.01
    debiased: bool = True
    options: SolverOptions = field(default_factory=SolverOptions)
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        check_fields(self, check_number, "epsilon", optional=True)
        check_fields(self, check_number, "relative_epsilon")
        check_flag("debiased", self.debiased)
        check_type("options", self.options, SolverOptions)
        check_type("execution", self.execution, Execution)

    def parameters(self) -> dict[str, Any]:
        """What was asked for and changes the numbers, JSON-safe."""
        return {
            "epsilon": self.epsilon,
            "relative_epsilon": self.relative_epsilon if self.epsilon is None else None,
            "debiased": self.debiased,
            "tol": self.options.tol,
            "max_iterations": self.options.max_iterations,
            "backend": self.execution.backend,
            "precision": self.execution.precision,
        }


def sinkhorn_table(
    classes: Sequence[ClassSample], settings: LabelSinkhorn, progress: Progress | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """``(c, c)`` divergences between classes and the certificate.

    Entries are made of dual values, never clamped: one between like classes may fall below zero by its error.

    Args:
        classes: the classes of both data sets, stacked.
        settings: epsilon, solver, execution.
        progress: called with (stage, passes, worst marginal error).

    Returns:
        The table, symmetric with a zero diagonal, on the host; and the certificate: epsilon, mean cost, convergence,
        the largest duality gap of an entry and ``error``, the largest stated error of one.
    """
    c = len(classes)
    mean_cost = mean_class_cost(classes)
    epsilon = settings.epsilon if settings.epsilon is not None else settings.relative_epsilon * mean_cost
    if epsilon == 0.0 or c < 2:  # fewer than two classes, or all samples of all classes in one point
        return torch.zeros(c, c, dtype=torch.float64), {"epsilon": epsilon, "mean_cost": mean_cost, "converged": True}
    pairs = list(itertools.combinations(range(c), 2))
    selves = [(i, i) for i in range(c)] if settings.debiased else []
    terms = entry_terms(pairs, c if selves else 0)
    solution = solve_classes(classes, pairs + selves, replace(settings, epsilon=epsilon), terms, progress)
    values = solution.dual.tolist(), solution.primal.tolist()
    bounds = [combine(term, *values) for term in terms]
    certificate = {
        "epsilon": epsilon,
        "mean_cost": mean_cost,
        "converged": bool(solution.converged.all()),
        "marginal_error": float(solution.marginal_error.max()),
        "iterations": int(solution.iterations.max()),
        "gap": max(bound.gap for bound in bounds),
        "error": max(bound.error for bound in bounds) + rounding_of(solution, terms[0]),
        "backend": solution.operator.info.backend,
        "precision": solution.operator.info.precision,
        "memory": solution.operator.info.memory,
    }
    return entries(solution.dual, pairs, c), certificate


def solve_classes(
    classes: Sequence[ClassSample], problems: Sequence[Problem], settings: LabelSinkhorn, terms: Sequence[Term],
    progress: Progress | None = None,
) -> Solution:  # fmt: skip
    """Class problems at the settings' absolute epsilon, in one batch; says which ones are not converged.

    Args:
        classes: of one feature width and device.
        problems: positions of two classes each.
        settings: an absolute epsilon, solver, execution.
        terms: the values that are made of the problems.
        progress: called with (stage, passes, worst marginal error).
    """
    assert settings.epsilon is not None
    clouds = [PointCloud(sample.points, sample.weights) for sample in classes]
    cost = DotProductCost.build(own_frames(clouds, problems))
    operator = settings.execution.operator(cost, problems, epsilon=settings.epsilon, tol=settings.options.tol)
    solution = solve(operator, settings.epsilon, settings.options, terms=terms, progress=progress)
    _warn_unconverged(solution, classes)
    return solution


def mean_class_cost(classes: Sequence[ClassSample]) -> float:
    """Mean over pairs of different classes of the mean squared distance between their samples, from the moments."""
    classes = [sample for sample in classes if sample.present]
    c = len(classes)
    if c < 2:
        return 0.0
    means = torch.stack([sample.mean for sample in classes])
    spread = float(sum(sample.variance.sum() for sample in classes)) / c
    return float((means - means.mean(0)).square().sum()) * 2 / (c - 1) + 2 * spread


def entry_terms(pairs: list[tuple[int, int]], selves: int) -> list[Term]:
    """The entries of a table over pairs of classes, whose problems come first, then those of the ``selves`` classes."""
    return [Term.of(p, [len(pairs) + k for k in pair] if selves else ()) for p, pair in enumerate(pairs)]


def entries(values: Tensor, pairs: list[tuple[int, int]], c: int) -> Tensor:
    """``(c, c)`` symmetric table with a zero diagonal, from the values of the problems."""
    known = values.tolist()
    found = [term.value(known) for term in entry_terms(pairs, len(known) - len(pairs))]
    return symmetric_table(torch.tensor(found, dtype=torch.float64), c)


def _warn_unconverged(solution: Solution, classes: Sequence[ClassSample]) -> None:
    """Say which class pairs missed the tolerance."""
    if bool(solution.converged.all()):
        return
    worst = int(solution.marginal_error.argmax())
    i, j = solution.operator.problems[worst]
    warn(
        f"label distances: {int((~solution.converged).sum())} of {len(solution.converged)} class problems are not "
        f"converged, the worst is {classes[i].name} to {classes[j].name} with marginal error "
        f"{float(solution.marginal_error[worst]):.2e} (tol {solution.options.tol:.2e}); raise the label epsilon or "
        "max_iterations",
        NotConvergedWarning,
    )
