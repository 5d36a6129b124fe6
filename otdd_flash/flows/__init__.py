"""Moving data sets: gradient flows of labelled sets, and second-order minimisation of divergences."""

from otdd_flash.flows.adam_newton import Adam, AdamNewton
from otdd_flash.flows.callbacks import (
    Callback,
    EarlyStopping,
    Metrics,
    Progress,
    SaveCheckpoint,
    TensorBoard,
    Trajectory,
)
from otdd_flash.flows.checkpoint import Checkpoint
from otdd_flash.flows.driver import Evaluation, Method, Minimum, Objective, State, minimise
from otdd_flash.flows.dynamics import AugmentedFlow, Clustering, Dynamics, FeatureFlow, JointFlow, TiedFlow
from otdd_flash.flows.flow import Flow, FlowResult, gradient_flow
from otdd_flash.flows.newton import NewtonCG, TrustRegion
from otdd_flash.flows.objectives import (
    DatasetTransport,
    InteractionEnergy,
    InternalEnergy,
    PotentialEnergy,
    Sum,
    feature_transport,
)
from otdd_flash.flows.particles import Particles
from otdd_flash.flows.pictures import Animation, ImageGrid, Scatter
from otdd_flash.flows.projections import Box, Grid, Projection
from otdd_flash.flows.second_order import LinearPullback, SinkhornObjective
from otdd_flash.flows.state import FlowState, StepRefusedError
from otdd_flash.flows.steppers import Euler, LineSearch, Momentum, Noisy, Stepper, TorchOptimizer
from otdd_flash.flows.transfer import Transfer, TransferCheck, transfer_check

__all__ = [
    "Adam",
    "AdamNewton",
    "Animation",
    "AugmentedFlow",
    "Box",
    "Callback",
    "Checkpoint",
    "Clustering",
    "DatasetTransport",
    "Dynamics",
    "EarlyStopping",
    "Euler",
    "Evaluation",
    "FeatureFlow",
    "Flow",
    "FlowResult",
    "FlowState",
    "Grid",
    "ImageGrid",
    "InteractionEnergy",
    "InternalEnergy",
    "JointFlow",
    "LineSearch",
    "LinearPullback",
    "Method",
    "Metrics",
    "Minimum",
    "Momentum",
    "NewtonCG",
    "Noisy",
    "Objective",
    "Particles",
    "PotentialEnergy",
    "Progress",
    "Projection",
    "SaveCheckpoint",
    "Scatter",
    "SinkhornObjective",
    "State",
    "StepRefusedError",
    "Stepper",
    "Sum",
    "TensorBoard",
    "TiedFlow",
    "TorchOptimizer",
    "Trajectory",
    "Transfer",
    "TransferCheck",
    "TrustRegion",
    "feature_transport",
    "gradient_flow",
    "minimise",
    "transfer_check",
]
