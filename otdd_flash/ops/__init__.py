"""Softmin, marginals and plan application over a :class:`~otdd_flash.cost.DotProductCost`, one operator per backend."""

from otdd_flash.ops.api import make_operator
from otdd_flash.ops.base import Backend, Memory, OperatorInfo, PlanOperator, PlanProduct, Precision, Problem

__all__ = ["Backend", "Memory", "OperatorInfo", "PlanOperator", "PlanProduct", "Precision", "Problem", "make_operator"]
