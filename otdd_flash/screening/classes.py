"""Moment distances: classes as point masses, without a look at single samples.

The classes of one set are transported to those of the other at the cost ``(w_x + w_y) W[l, l']``, which is what the
full distance costs when every class goes to one class as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from otdd_flash.arguments import check_datasets, check_sides
from otdd_flash.checks import check_choice, check_number
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import NotConvergedWarning, warn
from otdd_flash.labels import class_samples
from otdd_flash.labels.gaussian import MOMENT_METHODS, moment_table
from otdd_flash.ops import Execution
from otdd_flash.screening.sliced import check_widths
from otdd_flash.sinkhorn import SolverOptions, solve
from otdd_flash.sinkhorn.terms import Term
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

MomentMethod = Literal["means", "gaussian_diag", "gaussian"]

_SMALL_PROBLEMS = SolverOptions(tol=1e-4, max_iterations=2000)
RELATIVE_EPSILON = 0.01


@plain_torch
def moment_distance(source: LabeledDataset, target: LabeledDataset, **settings: Any) -> float:
    """Debiased transport cost between the classes as point masses.

    Args:
        source: first set.
        target: second set, of the same width.
        **settings: as in :func:`moment_distances`.
    """
    check_sides(source=source, target=target)
    return float(moment_distances([source, target], **settings)[0, 1])


@plain_torch
def moment_distances(
    datasets: Sequence[LabeledDataset],
    *,
    label_distance: MomentMethod = "gaussian_diag",
    feature_weight: float = 1.0,
    label_weight: float = 1.0,
    relative_epsilon: float = RELATIVE_EPSILON,
) -> Tensor:
    """``(k, k)`` float64 debiased transport costs between classes as point masses, ``C = (w_x + w_y) W[l, l']``.

    Args:
        datasets: ``k`` sets of one width; the moments of each class are taken once.
        label_distance: ``means``, ``gaussian_diag`` or ``gaussian``.
        feature_weight: ``w_x`` of the distance that is approximated.
        label_weight: ``w_y``.
        relative_epsilon: regularisation as a fraction of the mean of all class distances.

    Raises:
        ValueError: an unknown label distance, or sets of different width.
    """
    datasets = check_datasets("datasets", datasets)
    check_choice("label_distance", label_distance, MOMENT_METHODS)
    feature_weight = check_number("feature_weight", feature_weight, closed=True)
    label_weight = check_number("label_weight", label_weight, closed=True)
    relative_epsilon = check_number("relative_epsilon", relative_epsilon)
    check_widths(datasets)
    classes = [sample for data in datasets for sample in class_samples(data)]
    table = (feature_weight + label_weight) * moment_table(classes, label_distance)[0].to(classes[0].x.device)
    return class_transport(table, [class_masses(data) for data in datasets], relative_epsilon=relative_epsilon)


def class_masses(dataset: LabeledDataset) -> Tensor:
    """``(c,)`` float64 share of each class."""
    mass = torch.zeros(dataset.num_classes, dtype=torch.float64, device=dataset.x.device)
    return mass.index_add_(0, dataset.y, dataset.normalised_weights)


def class_transport(table: Tensor, masses: Sequence[Tensor], *, relative_epsilon: float = RELATIVE_EPSILON) -> Tensor:
    """``(k, k)`` debiased transport costs between ``k`` groups of classes, all pairs in one batch.

    Args:
        table: ``(c, c)`` float64 cost between all classes, group after group.
        masses: of the classes of each group; a class without mass is left out.
        relative_epsilon: as a fraction of the mean of ``table``.
    """
    present = torch.cat(list(masses)) > 0
    table, masses = table[present][:, present], [mass[mass > 0] for mass in masses]
    epsilon, k = relative_epsilon * float(table.mean()), len(masses)
    out = torch.zeros(k, k, dtype=torch.float64)
    if epsilon == 0:
        return out
    clouds, offset = [], 0
    for mass in masses:
        origin = torch.zeros(len(mass), 1, dtype=torch.float64, device=table.device)
        clouds.append(PointCloud(origin, mass, offset + torch.arange(len(mass), device=table.device)))
        offset += len(mass)
    cost = DotProductCost.build(clouds, table=table)
    pairs = [(i, j) for i in range(k) for j in range(i + 1, k)]
    problems = [(i, i) for i in range(k)] + pairs
    terms = [Term.of(k + p, pair) for p, pair in enumerate(pairs)]
    operator = Execution(precision="fp64").operator(cost, problems, epsilon=epsilon)
    found = solve(operator, epsilon, _SMALL_PROBLEMS, terms=terms)
    duals = found.dual.tolist()
    for (i, j), term in zip(pairs, terms, strict=True):
        out[i, j] = out[j, i] = term.value(duals)
    loose = [pair for pair, term in zip(pairs, terms, strict=True) if not found.converged[list(term.problems)].all()]
    if loose:
        warn(
            f"{len(loose)} of {len(pairs)} moment distances are not converged, the first between sets {loose[0][0]} "
            f"and {loose[0][1]}: raise relative_epsilon",
            NotConvergedWarning,
        )
    return out
