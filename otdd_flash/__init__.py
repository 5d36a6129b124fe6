"""otdd-flash: optimal-transport dataset distances. ``import otdd_flash`` needs torch alone.

The names below are loaded when first used, so that the import stays quick and optional packages stay optional.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "LabeledDataset": "otdd_flash.types",
    "Potentials": "otdd_flash.types",
    "from_arrays": "otdd_flash.data",
    "from_dataframe": "otdd_flash.data",
    "from_huggingface": "otdd_flash.data",
    "from_torch": "otdd_flash.data",
    "load": "otdd_flash.data",
    "dataset_distance": "otdd_flash.distance",
    "DistanceOptions": "otdd_flash.distance",
    "DistanceResult": "otdd_flash.distance",
    "differentiable_distance": "otdd_flash.differentiable",
    "gradient_flow": "otdd_flash.flows",
    "MicrosoftConvention": "otdd_flash.conventions",
    "pairwise": "otdd_flash.matrix",
    "DistanceMatrix": "otdd_flash.matrix",
    "rank": "otdd_flash.selection.rank",
    "SamplesLoss": "otdd_flash.samples_loss",
    "sinkhorn_batch": "otdd_flash.sinkhorn",
    "sinkhorn_divergence": "otdd_flash.sinkhorn",
    "differentiable_divergence": "otdd_flash.sinkhorn.autograd",
    "LabelTerm": "otdd_flash.sinkhorn.autograd",
    "SinkhornHessian": "otdd_flash.sinkhorn.hessian",
    "values": "otdd_flash.selection.values",
    "SampleValues": "otdd_flash.selection.values",
    "select": "otdd_flash.selection.select",
    "Selection": "otdd_flash.selection.select",
    "OTDDSelector": "otdd_flash.selection.estimator",
    "check": "otdd_flash.selection.check",
    "assert_same_distribution": "otdd_flash.selection.check",
    "CheckOptions": "otdd_flash.selection.gate",
    "CheckResult": "otdd_flash.selection.gate",
    "DriftCheck": "otdd_flash.selection.check",
    "DriftCallback": "otdd_flash.selection.check",
    "sliced_distance": "otdd_flash.screening",
    "moment_distance": "otdd_flash.screening",
    "screening_matrix": "otdd_flash.screening",
    "screen_then_refine": "otdd_flash.screening",
    "Screen": "otdd_flash.screening",
    "report": "otdd_flash.reporting",
    "DistributionShiftError": "otdd_flash.errors",
    "NotConvergedError": "otdd_flash.errors",
    "NotConvergedWarning": "otdd_flash.errors",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'otdd_flash' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
