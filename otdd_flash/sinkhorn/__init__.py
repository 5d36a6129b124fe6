"""Entropic optimal transport: solver, schedule, divergence, plan, certificate."""

from otdd_flash.sinkhorn.solver import Solution, SolverOptions, solve

__all__ = ["Solution", "SolverOptions", "solve"]
