"""Where and how scores are computed: the one place where an operator is made of such a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from otdd_flash.checks import check_choice, check_count, check_fields, check_flag
from otdd_flash.cost import DotProductCost
from otdd_flash.ops.api import make_operator
from otdd_flash.ops.base import Backend, Memory, PlanOperator, Precision, Problem


@dataclass(frozen=True)
class Execution:
    """Where and how scores are computed; see :func:`otdd_flash.ops.make_operator`.

    Args:
        backend: ``torch``, ``triton`` or ``auto``.
        precision: of the operands.
        memory: ``streamed``, ``cached`` or ``auto``.
        memory_budget: bytes for stored costs; ``None`` for a fraction of what is free.
        deterministic: fixed order of summation.
    """

    backend: Backend = "auto"
    precision: Precision = "auto"
    memory: Memory = "auto"
    memory_budget: int | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("backend", Backend), ("precision", Precision), ("memory", Memory)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_fields(self, check_count, "memory_budget", optional=True, least=0)
        check_flag("deterministic", self.deterministic)

    def operator(
        self, cost: DotProductCost, problems: Sequence[Problem], *, epsilon: float, tol: float | None = None
    ) -> PlanOperator:
        """Problems over a cost, ready to be solved.

        Args:
            cost: clouds and ground cost.
            problems: ordered pairs of clouds.
            epsilon: the smallest regularisation that will be asked for, in units of the cost.
            tol: marginal error that will be asked for.
        """
        return make_operator(
            cost, problems, epsilon=epsilon, backend=self.backend, precision=self.precision, memory=self.memory,
            memory_budget=self.memory_budget, deterministic=self.deterministic, tol=tol,
        )  # fmt: skip


DEFAULT_EXECUTION = Execution()
