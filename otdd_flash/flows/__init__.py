"""Moving data sets: second-order minimisation of divergences."""

from otdd_flash.flows.adam_newton import Adam, AdamNewton
from otdd_flash.flows.driver import Evaluation, Method, Minimum, Objective, State, minimise
from otdd_flash.flows.newton import NewtonCG, TrustRegion
from otdd_flash.flows.second_order import LinearPullback, SinkhornObjective

__all__ = [
    "Adam",
    "AdamNewton",
    "Evaluation",
    "LinearPullback",
    "Method",
    "Minimum",
    "NewtonCG",
    "Objective",
    "SinkhornObjective",
    "State",
    "TrustRegion",
    "minimise",
]
