"""Values made of several transport problems, and what is known of them.

    S(a, b) = OT(a, b) - OT(a, a)/2 - OT(b, b)/2

Each problem's optimal value lies between its dual value, which is reported, and the primal value of a feasible plan. So
a combined value, made of the dual values, may be too small by the gaps of the problems that enter with a plus and too
large by those that enter with a minus, weighted by their factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """A value ``offset + sum_k factors_k OT_k`` over problems of a batch.

    Args:
        problems: positions in the batch.
        factors: of their values.
        offset: what is known already.
        part: the value is one part of another that is not known here, and may be much larger than that.
    """

    problems: tuple[int, ...]
    factors: tuple[float, ...]
    offset: float = 0.0
    part: bool = False

    def value(self, values: Sequence[float]) -> float:
        """The value from the values of the batch."""
        return math.fsum([self.offset, *(f * values[p] for f, p in zip(self.factors, self.problems, strict=True))])

    @classmethod
    def of(cls, cross: int, selves: Sequence[int] = (), *, offset: float = 0.0, part: bool = False) -> Term:
        """The debiased value of a cross problem and both self problems, or the plain value of the first alone."""
        return cls((cross, *selves), (1.0, *(-0.5 for _ in selves)), offset, part)

    @property
    def sides(self) -> tuple[float, float]:
        """Sum of the positive factors, and of the negative ones without their sign."""
        return sum(f for f in self.factors if f > 0), -sum(f for f in self.factors if f < 0)


@dataclass(frozen=True)
class Solved:
    """One transport problem's value and what is known of it: what a debiased value is made of.

    Args:
        dual: lower bound of the optimal value, which is reported for it.
        primal: upper bound.
        rounding: what the precision of the costs can change of it, and whatever else its cost leaves open.
        marginal_error: L1, both sides, as a fraction of the mass.
        iterations: passes at the target epsilon.
        converged: met its tolerance.
        mass: of the plan.
    """

    dual: float
    primal: float
    rounding: float
    marginal_error: float
    iterations: int
    converged: bool
    mass: float = 1.0

    @property
    def gap(self) -> float:
        """Width of the interval that holds the optimal value."""
        return max(self.primal - self.dual, 0.0)

    def certificate(self) -> dict[str, Any]:
        """What is known, JSON-safe."""
        return {name: value for name, value in asdict(self).items() if name != "rounding"}


class Total(NamedTuple):
    """A value made of solved problems, with its certificate."""

    value: float
    primal: float
    gap: float
    rounding: float
    error: float
    marginal_error: float
    iterations: int
    converged: bool


def total(parts: Sequence[Solved], *, term: Term | None = None) -> Total:
    """The debiased value of a cross problem and its self problems, or the plain value of one.

    Args:
        parts: the cross problem first and, for a debiased value, both self problems.
        term: their factors, where they are others.
    """
    term = Term.of(0, range(1, len(parts))) if term is None else term
    bounds = combine(term, [part.dual for part in parts], [part.primal for part in parts])
    rounding = sum(abs(factor) * part.rounding for factor, part in zip(term.factors, parts, strict=True))
    return Total(
        bounds.value, bounds.primal, bounds.gap, rounding, bounds.error + rounding,
        max(part.marginal_error for part in parts), max(part.iterations for part in parts),
        all(part.converged for part in parts),
    )  # fmt: skip


class Bounds(NamedTuple):
    """What duals and primals say of a combined value."""

    value: float  # of the dual values
    primal: float  # of the primal values
    gap: float  # width of the interval that holds the optimal value
    error: float  # how far the value can be from the optimal one, on either side


def combine(term: Term, dual: Sequence[float], primal: Sequence[float]) -> Bounds:
    """The value of a term with its bounds, from the dual and primal values of a batch.

    Sums are exact before they are rounded, so that the order of the self problems does not matter.
    """
    gaps = [(f, max(primal[p] - dual[p], 0.0)) for p, f in zip(term.problems, term.factors, strict=True)]
    below, above = math.fsum(f * gap for f, gap in gaps if f > 0), math.fsum(-f * gap for f, gap in gaps if f < 0)
    gap = below + above
    return Bounds(term.value(dual), term.value(primal if gap else dual), gap, max(below, above))


def allowed_gaps(terms: Sequence[Term], dual: Tensor, floor: Tensor, accuracy: float) -> Tensor:
    """``(B,)`` largest gaps with which every term is known to ``accuracy max(|value|, floor)``; infinite where unused.

    Args:
        terms: the values that are asked for.
        dual: ``(B,)`` present dual values.
        floor: ``(B,)`` values below which the error is measured against the floor.
        accuracy: as a fraction.
    """
    duals, floors = dual.tolist(), floor.tolist()
    allowed = [math.inf] * len(duals)
    for term in terms:
        least = floors[term.problems[0]]
        if not term.part:
            least = max(abs(term.value(duals)), least)
        above, below = term.sides
        for p, factor in zip(term.problems, term.factors, strict=True):
            if factor:
                allowed[p] = min(allowed[p], accuracy * least / (above if factor > 0 else below))
    return torch.tensor(allowed, dtype=dual.dtype)
