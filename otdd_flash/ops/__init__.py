"""Softmin, marginals and plan application over a :class:`~otdd_flash.cost.DotProductCost`, one operator per backend."""

from otdd_flash.ops.api import make_operator
from otdd_flash.ops.base import Backend, Memory, OperatorInfo, PlanOperator, PlanProduct, Precision, Problem
from otdd_flash.ops.execution import Execution

__all__ = [
    "Backend",
    "Execution",
    "Memory",
    "OperatorInfo",
    "PlanOperator",
    "PlanProduct",
    "Precision",
    "Problem",
    "make_operator",
]
