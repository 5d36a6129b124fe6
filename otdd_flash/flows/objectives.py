"""What a flow descends: transport to a target, potential, interaction and internal energies, and their sums.

An objective is a value on the autograd tape. What it wants to remember from step to step (potentials to start from, the
solved self term of the target) goes through ``memory``, a dictionary of tensors, so that a checkpoint holds all of it.

Source of the functionals: Alvarez-Melis and Fusi (2021), section 3; Santambrogio (2017), section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from otdd_flash.arguments import check_sides, settled
from otdd_flash.checks import check_callable, check_text, check_type
from otdd_flash.distance import DistanceOptions
from otdd_flash.flows.particles import Particles, computable, diagonal_statistics
from otdd_flash.flows.warm import Memory, solve_to_target
from otdd_flash.labels import LabelSinkhorn, check_pair, label_distances
from otdd_flash.labels.attached import TargetMoments, attached_table, class_moments
from otdd_flash.sinkhorn import Divergence
from otdd_flash.sinkhorn.autograd import DivergenceInputs
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

_PAIRS = 1 << 22  # pairs of an interaction whose intermediate values are held at a time


class Term(NamedTuple):
    """An objective at one place.

    ``value`` is a float64 tensor of no dimension with a graph; ``record`` holds plain numbers for the metrics;
    ``found`` the solved transport problem, where there is one.
    """

    value: Tensor
    memory: Memory
    record: dict[str, Any]
    found: Divergence | None = None


class Objective(ABC):
    """A functional of the moving set. Objectives add up, and can be multiplied by a number."""

    name = "objective"

    @abstractmethod
    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """The value at ``particles``, starting from the ``memory`` of the last evaluation (empty at first)."""

    def __add__(self, other: Objective) -> Sum:
        return Sum((*_terms(self), *_terms(other)))

    def __mul__(self, factor: float) -> Sum:
        return Sum(tuple((factor * weight, objective) for weight, objective in _terms(self)))

    __rmul__ = __mul__


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class DatasetTransport(Objective):
    """The dataset distance to a target, as :func:`otdd_flash.dataset_distance` defines it.

    A relative epsilon is taken at the first evaluation and then kept. The target's self term is solved once; later
    solves start from the last potentials.

    Args:
        target: where to go.
        options: of the distance; ``label_distance=None`` for transport of features alone. ``device`` is that of the
            data, conventions are refused. With a ``reach`` mass that is far from the target feels little of it.
    """

    target: LabeledDataset
    options: DistanceOptions = field(default_factory=DistanceOptions)
    name = "transport"

    def __post_init__(self) -> None:
        check_sides(target=self.target)
        check_type("options", self.options, DistanceOptions, "give DistanceOptions(...)")
        refused = ("convention", "max_samples", "device")
        given = [name for name in refused if getattr(self.options, name) is not None]
        if given:
            raise ValueError(f"a flow takes no {', '.join(given)}: subsample and move the data first")

    @property
    def labelled(self) -> bool:
        """Whether labels are part of the cost."""
        return self.options.label_distance is not None and self.options.label_weight > 0

    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """See :class:`otdd_flash.flows.objectives.Objective`."""
        inputs = self._inputs(particles)
        found, memory = solve_to_target(inputs.cost(), self.options, memory, advance=particles.advance)
        record = {"converged": found.converged, "iterations": found.iterations, "marginal_error": found.marginal_error}
        # the operator, as large as both clouds, serves the gradient and goes with the graph
        return Term(inputs.attach(found, fixed_target=True), memory, record, replace(found, operator=None))

    @cached_property
    def _target(self) -> LabeledDataset:
        """The target in the precision of the flow."""
        return computable(self.target)

    @cached_property
    def _moments(self) -> TargetMoments:
        """Class moments of the target, as the label distance wants them."""
        return class_moments(self._target, str(self.options.label_distance))

    @cached_property
    def _statistics(self) -> Tensor:
        """``(c', 2d)`` means and deviations of the target's classes."""
        return diagonal_statistics(self._target)

    def _inputs(self, particles: Particles) -> DivergenceInputs:
        """The two clouds and the label part of the cost, on the tape."""
        source, target = particles.data, self._target
        check_pair(source, target)
        x, y = source.x, target.x
        table: Tensor | None = None
        labels: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.labelled and particles.sample_statistics is not None:
            x, y = self._augmented(particles.sample_statistics, x, target)
        elif self.labelled:
            table = self.options.label_weight * self._table(particles, target)
            labels = source.y, target.y + source.num_classes
        weight = torch.tensor(self.options.feature_weight, dtype=torch.float64, device=x.device)
        if self.labelled and particles.sample_statistics is not None:
            weight = torch.ones_like(weight)
        weights = source.normalised_weights, target.normalised_weights
        return DivergenceInputs(x, y, *weights, weight, table, *labels)

    def _augmented(self, statistics: Tensor, x: Tensor, target: LabeledDataset) -> tuple[Tensor, Tensor]:
        """Both clouds in the coordinates ``[sqrt(w_x) x, sqrt(w_y) statistics]``: the cost is plain Euclidean there."""
        self._want_diagonal()
        roots = self.options.feature_weight**0.5, self.options.label_weight**0.5
        theirs = self._statistics.to(target.x.dtype)[target.y]
        return (
            torch.cat([roots[0] * x, roots[1] * statistics.to(x.dtype)], 1),
            torch.cat([roots[0] * target.x, roots[1] * theirs], 1),
        )

    def _table(self, particles: Particles, target: LabeledDataset) -> Tensor:
        """``(c + c', c + c')`` squared class-to-class distances."""
        source, method = particles.data, self.options.label_distance
        if particles.class_statistics is not None:
            self._want_diagonal()
            rows = torch.cat([particles.class_statistics.to(torch.float64), self._statistics])
            return torch.stack([(rows - row).square().sum(1) for row in rows])
        if particles.moments == "attached":
            if not isinstance(method, str):
                raise ValueError(f"attached moments need label_distance by name, got {method!r}")
            return attached_table(source, target, method, target_moments=self._moments)
        sinkhorn = LabelSinkhorn(
            epsilon=self.options.label_epsilon, debiased=self.options.debiased,
            options=replace(self.options.solver(source.x.device), rho_x=None, rho_y=None),
            execution=self.options.execution(),
        )  # fmt: skip
        return label_distances(source, target, method=method, sinkhorn=sinkhorn).joint().to(source.x.device)

    def _want_diagonal(self) -> None:
        if self.options.label_distance != "gaussian_diag":
            raise ValueError(
                "label statistics that flow are means and standard deviations: set label_distance='gaussian_diag' "
                f"(got {self.options.label_distance!r}), or let features alone flow"
            )


def feature_transport(target: LabeledDataset, options: DistanceOptions | None = None, **settings: Any) -> Objective:
    """Transport of features alone to ``target``: the labels travel along and cost nothing.

    Args:
        target: where to go.
        options: of the distance.
        **settings: further fields of :class:`DatasetTransport`.
    """
    chosen = settled("feature_transport", options, settings, DistanceOptions())
    return DatasetTransport(target, replace(chosen, label_distance=None))


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class PotentialEnergy(Objective):
    """``sum_i a_i V(x_i)`` for a callable ``V: (n, d) -> (n,)``.

    Args:
        potential: ``V``.
        name: in the record of a sum.
    """

    potential: Callable[[Tensor], Tensor]
    name: str = "potential"

    def __post_init__(self) -> None:
        check_callable("potential", self.potential)
        check_text("name", self.name)

    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """See :class:`otdd_flash.flows.objectives.Objective`."""
        n = particles.data.n
        values = self.potential(particles.data.x)
        if values.shape != (n,):
            raise ValueError(f"potential must map ({n}, d) to ({n},), got {tuple(values.shape)}")
        return Term(particles.data.normalised_weights @ values.to(torch.float64), memory, {})


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class InteractionEnergy(Objective):
    """``1/2 sum_ij a_i a_j K(x_i, x_j)`` for a symmetric callable ``K: (b, d), (n, d) -> (b, n)``, by row blocks.

    Args:
        kernel: ``K``.
        name: in the record of a sum.
    """

    kernel: Callable[[Tensor, Tensor], Tensor]
    name: str = "interaction"

    def __post_init__(self) -> None:
        check_callable("kernel", self.kernel)
        check_text("name", self.name)

    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """See :class:`otdd_flash.flows.objectives.Objective`."""
        x, a = particles.data.x, particles.data.normalised_weights
        total = a.new_zeros(())
        for rows in torch.arange(len(x), device=x.device).split(max(1, _PAIRS // len(x))):
            total = total + checkpoint(self._block, x[rows], a[rows], x, a, use_reentrant=False)
        return Term(total / 2, memory, {})

    def _block(self, rows: Tensor, weights: Tensor, x: Tensor, a: Tensor) -> Tensor:
        values = self.kernel(rows, x)
        if values.shape != (len(rows), len(x)):
            raise ValueError(f"kernel must give ({len(rows)}, {len(x)}) values, got {tuple(values.shape)}")
        return weights @ values.to(torch.float64) @ a


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class InternalEnergy(Objective):
    """Any other functional: say, an entropy estimate.

    Args:
        functional: a callable ``(x (n, d), weights (n,)) -> number``.
        name: in the record of a sum.
    """

    functional: Callable[[Tensor, Tensor], Tensor]
    name: str = "internal"

    def __post_init__(self) -> None:
        check_callable("functional", self.functional)
        check_text("name", self.name)

    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """See :class:`otdd_flash.flows.objectives.Objective`."""
        value = self.functional(particles.data.x, particles.data.normalised_weights)
        if value.dim():
            raise ValueError(f"functional must give one number, got shape {tuple(value.shape)}")
        return Term(value.to(torch.float64), memory, {})


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class Sum(Objective):
    """``sum_k weight_k objective_k``; written ``objective + 0.1 * other``.

    Args:
        terms: pairs of weight and objective.
    """

    terms: tuple[tuple[float, Objective], ...]
    name = "sum"

    def evaluate(self, particles: Particles, memory: Memory) -> Term:
        """See :class:`otdd_flash.flows.objectives.Objective`."""
        total: Tensor | None = None
        kept: Memory = {}
        record: dict[str, Any] = {}
        found = None
        for k, (weight, objective) in enumerate(self.terms):
            prefix = f"{k}."
            own = {key.removeprefix(prefix): value for key, value in memory.items() if key.startswith(prefix)}
            term = objective.evaluate(particles, own)
            total = weight * term.value if total is None else total + weight * term.value
            kept |= {prefix + key: value for key, value in term.memory.items()}
            record |= {f"{objective.name}_{k}": float(term.value.detach()), **term.record}
            found = found or term.found
        if total is None:
            raise ValueError("a sum of objectives needs at least one")
        return Term(total, kept, record, found)


def _terms(objective: Objective) -> tuple[tuple[float, Objective], ...]:
    return objective.terms if isinstance(objective, Sum) else ((1.0, objective),)
