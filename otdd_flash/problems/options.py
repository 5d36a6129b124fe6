"""Every choice of a dataset distance, and what follows from the choices alone: solver, execution, epsilon."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from otdd_flash.checks import (
    check_choice,
    check_count,
    check_device,
    check_fields,
    check_flag,
    check_number,
    check_path,
    shown,
)
from otdd_flash.conventions import MicrosoftConvention
from otdd_flash.labels import ClassNames, LabelDistances, LabelSinkhorn
from otdd_flash.ops import Backend, Execution, Memory, Precision
from otdd_flash.sinkhorn import SolverOptions

LabelDistance = (
    Literal["gaussian", "gaussian_diag", "means", "sinkhorn", "names"]
    | ClassNames
    | LabelDistances
    | Tensor
    | Callable
    | None
)
_LARGEST = 1e150  # its square is a float
_MOST_EPSILON = 1e300  # twice it is one


@dataclass(frozen=True)
class DistanceOptions:
    """Every choice of :func:`dataset_distance`, with its default.

    Args:
        epsilon: regularisation in units of the cost; ``None`` takes ``relative_epsilon``.
        relative_epsilon: regularisation as a fraction of the mean cost under the independent coupling.
        label_distance: ``gaussian`` (full Bures), ``gaussian_diag``, ``means``, ``sinkhorn`` (debiased class-to-class
            divergence), ``names`` or a :class:`~otdd_flash.labels.ClassNames` (class names embedded as text), a
            :class:`~otdd_flash.labels.LabelDistances` or table given ahead, a callable of two class samples, or
            ``None`` for features alone.
        label_epsilon: regularisation of the class-to-class problems (``sinkhorn`` only); ``None`` for a fraction
            of their mean cost.
        feature_weight: factor of the squared feature distance.
        label_weight: factor of the squared class-to-class distance.
        tol: converged when the L1 marginal error (both sides) is below this fraction of the mass.
        max_iterations: passes allowed at the target epsilon.
        debiased: subtract the self terms, so that a set is at distance zero from itself.
        reach: makes the transport unbalanced: beyond about this distance mass is rather lost than moved. The marginals
            are penalised by ``reach^2 KL``; ``None`` prescribes them. Class-to-class problems stay balanced.
        reach_x: the same for the source's marginal alone.
        reach_y: the same for the target's marginal alone.
        precision: ``auto``, ``fp64``, ``fp32``; with the Triton backend also ``int8``, ``fp16``, ``fp16x3``, ``tf32``.
        memory: ``streamed`` in O((n+m)d), ``cached`` with stored costs, ``auto`` by ``memory_budget``.
        memory_budget: bytes for stored costs; ``None`` for a fraction of what is free.
        backend: ``torch``, ``triton`` or ``auto``.
        device: where to compute; ``None`` leaves the data where it is.
        max_samples: use at most so many samples of each side, drawn by ``seed`` and the data's fingerprint.
        seed: of that draw.
        strict: raise instead of warn when the result is not converged.
        progress: show a progress bar on stderr.
        cache_dir: folder that keeps label-distance tables by content key.
        convention: ``"microsoft"`` or a :class:`~otdd_flash.conventions.MicrosoftConvention` with its settings: solve
            the problem that microsoft/otdd poses, and carry its number, which is not converged, beside the converged.
    """

    epsilon: float | None = None
    relative_epsilon: float = 0.01
    label_distance: LabelDistance = "gaussian"
    label_epsilon: float | None = None
    feature_weight: float = 1.0
    label_weight: float = 1.0
    tol: float = 1e-3
    max_iterations: int = 1000
    debiased: bool = True
    reach: float | None = None
    reach_x: float | None = None
    reach_y: float | None = None
    precision: Precision = "auto"
    memory: Memory = "auto"
    memory_budget: int | None = None
    backend: Backend = "auto"
    device: str | torch.device | None = None
    max_samples: int | None = None
    seed: int = 0
    strict: bool = False
    progress: bool = False
    cache_dir: str | os.PathLike[str] | None = None
    convention: MicrosoftConvention | Literal["microsoft"] | None = None

    def __post_init__(self) -> None:
        check_fields(self, check_number, "relative_epsilon", high=_MOST_EPSILON)
        check_fields(self, check_number, "epsilon", "label_epsilon", high=_MOST_EPSILON, optional=True)
        check_fields(self, check_number, "reach", "reach_x", "reach_y", low=1 / _LARGEST, high=_LARGEST, optional=True)
        check_fields(self, check_number, "feature_weight", "label_weight", closed=True)
        for name in ("debiased", "strict", "progress"):
            check_flag(name, getattr(self, name))
        for name, choices in (("precision", Precision), ("memory", Memory), ("backend", Backend)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_device("device", self.device)
        check_fields(self, check_number, "tol", high=1.0)
        check_fields(self, check_count, "max_iterations")
        check_fields(self, check_count, "max_samples", optional=True)
        check_fields(self, check_count, "memory_budget", optional=True, least=0)
        check_fields(self, check_count, "seed", least=0)
        check_path("cache_dir", self.cache_dir, optional=True)
        self.solver(torch.device("cpu"))  # checks its share
        if self.reach is not None and (self.reach_x is not None or self.reach_y is not None):
            raise ValueError("give reach or reach_x, reach_y, not both")
        if not (self.convention is None or isinstance(self.convention, str | MicrosoftConvention)):
            raise TypeError(f"convention must be 'microsoft' or a MicrosoftConvention, got {shown(self.convention)}")
        if isinstance(self.convention, str) and self.convention != "microsoft":
            raise ValueError(f"convention must be 'microsoft' or a MicrosoftConvention, got {self.convention!r}")

    @property
    def reaches(self) -> tuple[float | None, float | None]:
        """Reach of source and target."""
        return (self.reach, self.reach) if self.reach is not None else (self.reach_x, self.reach_y)

    def solver(self, device: torch.device) -> SolverOptions:
        """The solver's share of the options; a GPU is asked for its error every second pass only."""
        rho_x, rho_y = (None if reach is None else reach**2 for reach in self.reaches)
        return SolverOptions(
            tol=self.tol, max_iterations=self.max_iterations, check_every=2 if device.type == "cuda" else 1,
            rho_x=rho_x, rho_y=rho_y,
        )  # fmt: skip

    def execution(self) -> Execution:
        """Where and how scores are computed."""
        return Execution(self.backend, self.precision, self.memory, self.memory_budget)

    @property
    def labelled(self) -> bool:
        """Whether the cost has a label part."""
        return self.label_distance is not None and self.label_weight > 0

    def epsilon_for(self, mean_cost: float) -> float:
        """The regularisation of a problem of this mean cost, in units of the cost."""
        if self.epsilon is not None:
            return self.epsilon
        # all points in one place: any epsilon gives zero
        return self.relative_epsilon * mean_cost if mean_cost > 0 else 1.0

    def label_sinkhorn(self, device: torch.device, epsilon: float | None) -> LabelSinkhorn:
        """How class-to-class problems are solved under these options: balanced always.

        Args:
            device: where.
            epsilon: of these problems; ``None`` for a fraction of their mean cost.
        """
        return LabelSinkhorn(
            epsilon=epsilon, debiased=self.debiased,
            options=replace(self.solver(device), rho_x=None, rho_y=None), execution=self.execution(),
        )  # fmt: skip
