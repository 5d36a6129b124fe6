"""The library asked: what it says of each pair of a problem, in one form for all of its public functions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import otdd_flash as otdd
from fuzzing.problems import Array, Cloud, Problem, Settings
from otdd_flash.sinkhorn import SolverOptions


@dataclass(frozen=True)
class Answer:
    """What the library says of one pair.

    Args:
        value: the number.
        error: its stated absolute error; ``None`` where the function states none.
        converged: what it says of convergence.
        passes: at the target epsilon; ``None`` where it does not tell.
        epsilon: in units of the cost.
        mean_cost: as reported, ``None`` where it is not.
        table: joint label table as reported, with its certificate.
    """

    value: float
    error: float | None
    converged: bool
    passes: int | None
    epsilon: float
    mean_cost: float | None = None
    table: Array | None = None
    table_certificate: dict[str, Any] = field(default_factory=dict)


def ask(problem: Problem) -> list[Answer]:
    """One answer a pair."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = _WAYS[problem.settings.way](problem)
    if problem.settings.way == "loss":
        converged = not any(issubclass(w.category, otdd.NotConvergedWarning) for w in caught)
        answers = [Answer(a.value, a.error, converged, a.passes, a.epsilon) for a in answers]
    return answers


def _distance(problem: Problem) -> list[Answer]:
    settings, answers = problem.settings, []
    for i, j in problem.pairs:
        found = otdd.dataset_distance(*(_dataset(problem.clouds[k], k) for k in (i, j)), **_distance_options(settings))
        labels = found.label_distances
        table = None if labels is None else labels.joint().numpy()
        answers.append(Answer(found.value, found.error, found.converged, found.iterations, found.epsilon,
                              found.mean_cost, table, {} if labels is None else labels.certificate))  # fmt: skip
    return answers


def _divergence(problem: Problem) -> list[Answer]:
    answers = []
    for i, j in problem.pairs:
        x, a, y, b = (*_tensors(problem.clouds[i]), *_tensors(problem.clouds[j]))
        found = otdd.sinkhorn_divergence(
            x, y, a=a, b=b, epsilon=problem.settings.epsilon, debiased=problem.settings.debiased,
            options=_solver(problem.settings),
        )  # fmt: skip
        answers.append(_of_divergence(found))
    return answers


def _batch(problem: Problem) -> list[Answer]:
    tensors = [_tensors(cloud) for cloud in problem.clouds]
    pairs = [(tensors[i][0], tensors[j][0], tensors[i][1], tensors[j][1]) for i, j in problem.pairs]
    found = otdd.sinkhorn_batch(
        pairs, epsilon=problem.settings.epsilon, debiased=problem.settings.debiased, options=_solver(problem.settings)
    )
    return [_of_divergence(one) for one in found]


def _loss(problem: Problem) -> list[Answer]:
    settings, answers = problem.settings, []
    loss = otdd.SamplesLoss(
        blur=settings.epsilon**0.5, reach=settings.reach_x, debias=settings.debiased, tol=settings.tol,
        max_iterations=settings.max_iterations,
    )  # fmt: skip
    for i, j in problem.pairs:
        x, a, y, b = (*_tensors(problem.clouds[i]), *_tensors(problem.clouds[j]))
        value = loss(x, y) if a is None and b is None else loss(_or_uniform(a, x), x, _or_uniform(b, y), y)
        answers.append(Answer(float(value), None, True, None, loss.blur**2))
    return answers


def _pairwise(problem: Problem) -> list[Answer]:
    sets = {f"set {k}": _dataset(cloud, k) for k, cloud in enumerate(problem.clouds)}
    found = otdd.pairwise(sets, **_distance_options(problem.settings))
    if found.failures:
        raise RuntimeError(f"{found.failures[0].error}: {found.failures[0].message}")
    answers = []
    for i, j in problem.pairs:
        record = found.certificates[i, j]
        answers.append(Answer(float(found.values[i, j]), float(found.errors[i, j]), record["converged"],
                              record.get("iterations"), found.epsilon, record["mean_cost"]))  # fmt: skip
    return answers


_WAYS = {"distance": _distance, "divergence": _divergence, "batch": _batch, "loss": _loss, "pairwise": _pairwise}


def _of_divergence(found: otdd.sinkhorn.Divergence) -> Answer:
    return Answer(found.value, found.error, found.converged, found.iterations, found.epsilon)


def _dataset(cloud: Cloud, k: int) -> otdd.LabeledDataset:
    labels = np.zeros(len(cloud.x), dtype=np.int64) if cloud.labels is None else cloud.labels
    return otdd.from_arrays(cloud.x, labels, weights=cloud.weights, name=f"set {k}")


def _tensors(cloud: Cloud) -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.from_numpy(cloud.x), None if cloud.weights is None else torch.from_numpy(cloud.weights)


def _or_uniform(weights: torch.Tensor | None, points: torch.Tensor) -> torch.Tensor:
    return torch.full((len(points),), 1 / len(points), dtype=torch.float64) if weights is None else weights


def _solver(settings: Settings) -> SolverOptions:
    rho = [None if reach is None else reach**2 for reach in (settings.reach_x, settings.reach_y)]
    return SolverOptions(
        tol=settings.tol, max_iterations=settings.max_iterations, rho_x=rho[0], rho_y=rho[1], **settings.more
    )


def _distance_options(settings: Settings) -> dict:
    reach = {"reach_x": settings.reach_x, "reach_y": settings.reach_y}
    if settings.reach_x is not None and settings.reach_x == settings.reach_y:
        reach = {"reach": settings.reach_x}
    return {
        "epsilon": settings.epsilon, "relative_epsilon": settings.relative_epsilon, "tol": settings.tol,
        "debiased": settings.debiased, "label_distance": settings.method, "feature_weight": settings.feature_weight,
        "label_weight": settings.label_weight, "max_iterations": settings.max_iterations, **reach, **settings.more,
    }  # fmt: skip
