"""The distance between two labelled data sets: options in, a certified number out."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

import otdd_flash
from otdd_flash.arguments import check_sides, settled
from otdd_flash.augment import augment
from otdd_flash.checks import (
    check_choice,
    check_count,
    check_device,
    check_fields,
    check_flag,
    check_number,
    check_path,
    check_visible,
    shown,
)
from otdd_flash.conventions import MicrosoftConvention, refuse_decided
from otdd_flash.cost import DotProductCost
from otdd_flash.errors import NotConvergedError
from otdd_flash.labels import ClassNames, LabelDistances, LabelSinkhorn, label_distances
from otdd_flash.ops import Backend, Memory, Precision
from otdd_flash.progress import progress_bar
from otdd_flash.sinkhorn import (
    Divergence,
    Execution,
    SolverOptions,
    TransportPlan,
    divergence,
    report_convergence,
)
from otdd_flash.sinkhorn.divergence import unmet
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset, Potentials, notes_of

log = logging.getLogger("otdd_flash")

LabelDistance = (
    Literal["gaussian", "gaussian_diag", "means", "sinkhorn", "names"]
    | ClassNames
    | LabelDistances
    | Tensor
    | Callable
    | None
)
SMALL_SAMPLE = 1000
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


@dataclass(frozen=True, eq=False)
class DistanceResult:
    """A dataset distance with its certificate.

    Args:
        value: squared divergence, in units of the cost.
        root: its square root; that of a value which rounding made negative is zero.
        converged: every transport problem, those between classes included, met ``tol``, and the value is known to
            ``max(tol, 1e-3)`` of itself, or, where it is smaller than that, of epsilon or a hundredth of the mean cost,
            whichever is smaller; as far as iterations go.
        marginal_error: the worst L1 error of the marginals (both sides) among the problems, a fraction of the mass.
        iterations: the most passes that a problem took at the target epsilon.
        dual: made of the dual values, lower bounds of each problem, which ``value`` is.
        primal: made of the primal values of feasible plans, upper bounds of each problem.
        gap: duality gap: what the two differ by, problem by problem. The converged value lies in an interval of this
            width.
        error: stated absolute error of ``value``: its distance to the farther end of that interval, what the precision
            rounds and what the label distances leave open.
        epsilon: regularisation, in units of the cost.
        relative_epsilon: the same as a fraction of ``mean_cost``.
        mean_cost: mean cost between both sets under the independent coupling.
        debiased: self terms were subtracted.
        reach_x, reach_y: reach of source and target, ``None`` where the marginal was prescribed.
        precision, memory, backend, device: what was used.
        n, m: samples of source and target.
        class_counts: samples by class name, of source and target.
        dropped: rows left out on the way in by reason, of source and target.
        names: of source and target.
        seed: of draws.
        tol: what ``converged`` refers to.
        feature_weight, label_weight: of the two parts of the cost.
        label_method: label distance that was used.
        seconds: wall time by stage.
        peak_memory: bytes, of the allocator on a GPU, of the process on a CPU.
        certificates: of each problem: dual, primal, marginal error, iterations, convergence, mass of its plan.
        conventional: under a ``convention`` the number of the other tool, which is not converged; ``value`` is the
            converged one of the same problem.
        versions: of this library, torch, Python and Triton.
        notes: remarks on data and number.
        label_distances: the class-to-class tables.
        divergence: potentials, plan and cost.
    """

    value: float
    root: float
    converged: bool
    marginal_error: float
    iterations: int
    dual: float
    primal: float
    gap: float
    error: float
    epsilon: float
    relative_epsilon: float
    mean_cost: float
    debiased: bool
    reach_x: float | None
    reach_y: float | None
    precision: str
    memory: str
    backend: str
    device: str
    n: int
    m: int
    class_counts: tuple[dict[str, int], dict[str, int]]
    dropped: tuple[dict[str, int], dict[str, int]]
    names: tuple[str, str]
    seed: int
    tol: float
    feature_weight: float
    label_weight: float
    label_method: str
    seconds: dict[str, float]
    peak_memory: int
    certificates: tuple[dict[str, Any], ...]
    conventional: dict[str, Any] | None
    versions: dict[str, str]
    notes: tuple[str, ...]
    label_distances: LabelDistances | None = field(repr=False)
    divergence: Divergence = field(repr=False)

    @property
    def lacking(self) -> str:
        """What a result that is not converged lacks, in words."""
        if self.label_distances is not None and not self.label_distances.converged:
            return "class-to-class problems are not converged"
        return unmet(self.marginal_error, self.error, SolverOptions(tol=self.tol))

    @property
    def plan(self) -> TransportPlan:
        """The transport plan between the two sets, applied by streaming."""
        return self.divergence.plan

    @property
    def potentials(self) -> Potentials:
        """Dual potentials ``f (n,), g (m,)`` of the cross problem."""
        return self.divergence.potentials

    def to_dict(self) -> dict[str, Any]:
        """Everything but tensors, in JSON's own types."""
        skip = {"label_distances", "divergence"}
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in skip}


@plain_torch
def dataset_distance(
    source: LabeledDataset, target: LabeledDataset, *, options: DistanceOptions | None = None, **overrides: Any
) -> DistanceResult:
    """Optimal transport dataset distance (Alvarez-Melis and Fusi 2020) between two labelled data sets.

    The debiased entropic divergence for the ground cost ``w_x |x - x'|^2 + w_y W[l, l']`` where ``W`` holds squared
    Wasserstein distances between classes.

    Args:
        source: ``n`` samples.
        target: ``m`` samples of the same width; class names and numbers of classes may differ.
        options: all choices together.
        **overrides: fields of :class:`DistanceOptions`, each over ``options``.

    Returns:
        The result with certificate, plan, potentials and label distances.

    Raises:
        TypeError: an argument that is no option, or a side that is no data set.
        ValueError: data sets or options that do not fit.
        NotConvergedError: under ``strict``.
        MemoryError: the problem does not fit; the message gives sizes and advice.

    >>> import otdd_flash as otdd
    >>> digits = otdd.load("digits")
    >>> otdd.dataset_distance(digits, digits).value
    0.0
    """
    options = settled("dataset_distance", options, overrides, DistanceOptions())
    check_sides(source=source, target=target)
    source, target = (_place(side, options) for side in (source, target))
    if _same_data(source, target):
        target = replace(source, name=target.name)
    _reset_peak(source.x.device)
    clock = {"load": 0.0}
    start = time.perf_counter()
    convention, options = _under_convention(source, target, options)
    with progress_bar("labels", enabled=options.progress) as progress:
        labels = _labels(source, target, options, progress)
    cost = augment(source, target, labels, feature_weight=options.feature_weight, label_weight=options.label_weight)
    clock["labels"] = time.perf_counter() - start
    start = time.perf_counter()
    mean_cost = cost.mean(0, 1)
    epsilon = _epsilon(mean_cost, cost, options)
    solver = options.solver(cost.device)
    log.info("%s", describe_size(source, target, options.memory))
    with progress_bar("solve", enabled=options.progress) as progress:
        found = _guarded(cost, epsilon, options, progress)
    clock["solve"] = time.perf_counter() - start
    result = _result(source, target, options, labels, found, mean_cost, clock)
    if convention is not None:
        start = time.perf_counter()
        theirs = convention.value(cost, source, target, options.execution())
        clock["convention"] = time.perf_counter() - start
        result = replace(result, conventional=convention.record(theirs, found.value))
    report_convergence(found.status, solver, strict=options.strict)
    if options.strict and labels is not None and not labels.converged:
        raise NotConvergedError(
            "class-to-class problems are not converged: raise label_epsilon or max_iterations, or loosen tol"
        )
    return result


def _under_convention(
    source: LabeledDataset, target: LabeledDataset, options: DistanceOptions
) -> tuple[MicrosoftConvention | None, DistanceOptions]:
    """The convention and the options that state its problem in this library's terms.

    Raises:
        ValueError: an option that the convention decides itself.
    """
    if options.convention is None:
        return None, options
    convention = MicrosoftConvention() if options.convention == "microsoft" else options.convention
    assert isinstance(convention, MicrosoftConvention)
    refuse_decided(options, DistanceOptions())
    tables = convention.tables(source, target, options.execution())
    return convention, replace(
        options, epsilon=convention.entreg, feature_weight=convention.lambda_x / 2,
        label_weight=convention.lambda_y / 2, label_distance=tables,
    )  # fmt: skip


def describe_size(source: LabeledDataset, target: LabeledDataset, memory: str) -> str:
    """One line on what a solve will hold, before it starts."""
    n, m, d = source.n, target.n, source.d
    streamed, stored = (n + m) * (d + 64) * 8, 4 * (n * m + n * n // 2 + m * m // 2)
    return (
        f"{n} x {m} points, {d} features: streamed needs about {streamed / 2**20:,.0f} MiB, "
        f"stored costs {stored / 2**20:,.0f} MiB (memory={memory})"
    )


def _place(side: LabeledDataset, options: DistanceOptions) -> LabeledDataset:
    check_visible("device", options.device)
    if side.x.requires_grad:  # the graph is the business of differentiable_distance
        side = replace(side, x=side.x.detach())
    if options.max_samples is not None and side.n > options.max_samples:
        from otdd_flash.data import subsample

        side = subsample(side, options.max_samples, seed=options.seed)
    return side if options.device is None else side.to(options.device)


def _same_data(source: LabeledDataset, target: LabeledDataset) -> bool:
    """Equal features, class ids and weights: the distance is then zero, to the last bit."""
    if source.x.shape != target.x.shape or source.x.device != target.x.device:
        return False
    return (
        torch.equal(source.y, target.y)
        and torch.equal(source.x, target.x)
        and torch.equal(source.normalised_weights, target.normalised_weights)
    )


def _labels(
    source: LabeledDataset,
    target: LabeledDataset,
    options: DistanceOptions,
    progress: Callable[[str, int, float], None],
) -> LabelDistances | None:
    if options.label_weight == 0 or options.label_distance is None:
        return None
    sinkhorn = LabelSinkhorn(
        epsilon=options.label_epsilon, debiased=options.debiased,
        options=replace(options.solver(source.x.device), rho_x=None, rho_y=None), execution=options.execution(),
    )  # fmt: skip
    return label_distances(
        source, target, method=options.label_distance, sinkhorn=sinkhorn, cache_dir=options.cache_dir,
        progress=progress,
    )  # fmt: skip


def _epsilon(mean_cost: float, cost: DotProductCost, options: DistanceOptions) -> float:
    if options.epsilon is not None:
        return options.epsilon
    # all points in one place: any epsilon gives zero
    return options.relative_epsilon * mean_cost if mean_cost > 0 else 1.0


def _guarded(
    cost: DotProductCost, epsilon: float, options: DistanceOptions, progress: Callable[[str, int, float], None]
) -> Divergence:
    """The solve, with an out-of-memory error turned into sizes and advice."""
    try:
        return divergence(
            cost, epsilon, debiased=options.debiased, options=options.solver(cost.device),
            execution=options.execution(), progress=progress,
        )  # fmt: skip
    except (torch.OutOfMemoryError, MemoryError) as error:
        n, m = (cloud.n for cloud in cost.clouds)
        raise MemoryError(
            f"out of memory on {cost.device} with n={n}, m={m}, d={cost.clouds[0].points.shape[1]}, "
            f"memory={options.memory!r}: use memory='streamed', a smaller memory_budget or max_samples ({error})"
        ) from error


def _result(
    source: LabeledDataset,
    target: LabeledDataset,
    options: DistanceOptions,
    labels: LabelDistances | None,
    found: Divergence,
    mean_cost: float,
    clock: dict[str, float],
) -> DistanceResult:
    notes = list(notes_of(source, target))
    smallest = min(source.n, target.n)
    if smallest < SMALL_SAMPLE:
        notes.append(f"small sample: {smallest} points; the value moves with the draw, compare several seeds")
    labels_converged = labels is None or labels.converged
    # a transport cost moves by no more than the cost itself, and of the three tables two count half
    error = found.error + (0.0 if labels is None else options.label_weight * labels.error * (1 + options.debiased))
    if found.value < -error:
        notes.append(f"negative beyond the stated error {error:.2e}: tighten tol or use precision='fp64'")
    return DistanceResult(
        value=found.value, root=math.sqrt(max(found.value, 0.0)), converged=found.converged and labels_converged,
        marginal_error=found.marginal_error, iterations=found.iterations, dual=found.value, primal=found.primal,
        gap=found.gap, error=error, epsilon=found.epsilon,
        relative_epsilon=found.epsilon / mean_cost if mean_cost > 0 else 0.0, mean_cost=mean_cost,
        debiased=found.debiased, reach_x=options.reaches[0], reach_y=options.reaches[1],
        precision=found.info.precision, memory=found.info.memory, backend=found.info.backend,
        device=str(source.x.device), n=source.n, m=target.n,
        class_counts=(_counts(source), _counts(target)), dropped=(dict(source.dropped), dict(target.dropped)),
        names=(source.name, target.name), seed=options.seed, tol=options.tol,
        feature_weight=options.feature_weight, label_weight=options.label_weight,
        label_method="none" if labels is None else labels.method, seconds=clock,
        peak_memory=_peak(source.x.device), certificates=found.certificates, conventional=None, versions=_versions(),
        notes=tuple(notes), label_distances=labels, divergence=found,
    )  # fmt: skip


def _counts(side: LabeledDataset) -> dict[str, int]:
    return dict(zip(side.class_names, side.class_counts.tolist(), strict=True))


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    """Peak bytes: of the allocator on a GPU, of the whole process on the CPU (0 where the system does not tell)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _versions() -> dict[str, str]:
    versions = {"otdd_flash": otdd_flash.__version__, "torch": torch.__version__, "python": platform.python_version()}
    triton = sys.modules.get("triton")
    if triton is not None:
        versions["triton"] = triton.__version__
    return versions


def _plain(value: Any) -> Any:
    """JSON's own types, all the way down; a number that JSON lacks becomes ``None``."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
