"""The distance between two labelled data sets: options in, a certified number out."""

from __future__ import annotations

import logging
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

import otdd_flash
from otdd_flash.arguments import check_sides, settled
from otdd_flash.augment import augment
from otdd_flash.conventions import MicrosoftConvention, refuse_decided
from otdd_flash.cost import DotProductCost
from otdd_flash.errors import NotConvergedError
from otdd_flash.labels import LabelDistances, label_distances
from otdd_flash.problems import DistanceOptions, place
from otdd_flash.progress import progress_bar
from otdd_flash.sinkhorn import (
    Divergence,
    SolverOptions,
    TransportPlan,
    divergence,
    report_convergence,
)
from otdd_flash.sinkhorn.divergence import unmet
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset, Potentials, notes_of

log = logging.getLogger("otdd_flash")

SMALL_SAMPLE = 1000


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
    source, target = (place(side, options) for side in (source, target))
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
    epsilon = options.epsilon_for(mean_cost)
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
    if not options.labelled:
        return None
    sinkhorn = options.label_sinkhorn(source.x.device, options.label_epsilon)
    return label_distances(
        source, target, method=options.label_distance, sinkhorn=sinkhorn, cache_dir=options.cache_dir,
        progress=progress,
    )  # fmt: skip


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
