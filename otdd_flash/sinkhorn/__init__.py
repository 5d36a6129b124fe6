"""Entropic optimal transport: solver, schedule, divergence, plan, certificate."""

from otdd_flash.ops import Execution
from otdd_flash.sinkhorn.batch import sinkhorn_batch
from otdd_flash.sinkhorn.divergence import Divergence, divergence, report_convergence, sinkhorn_divergence
from otdd_flash.sinkhorn.plan import TransportPlan
from otdd_flash.sinkhorn.solver import Progress, Solution, SolverOptions, solve

__all__ = [
    "Divergence",
    "Execution",
    "Progress",
    "Solution",
    "SolverOptions",
    "TransportPlan",
    "divergence",
    "report_convergence",
    "sinkhorn_batch",
    "sinkhorn_divergence",
    "solve",
]
