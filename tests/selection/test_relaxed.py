"""Weights on a pool: projection, linear minimisation, values at given weights, the gap as a bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.selection.pool import constrain
from otdd_flash.selection.relaxed import Constraints, Weighted, WeightProblem
from otdd_flash.selection.select import SearchOptions, _problem, select
from otdd_flash.types import LabeledDataset


def cloud(n: int, seed: int, d: int = 2) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return otdd.from_arrays(x, torch.arange(n) % 2)


def random_constraints(seed: int, n: int = 12) -> tuple[Constraints, torch.Tensor]:
    rng = np.random.default_rng(seed)
    groups = torch.tensor(rng.integers(0, 2, n))
    groups[:2] = torch.tensor([0, 1])
    masses = torch.tensor([0.3, 0.7], dtype=torch.float64)
    caps = torch.tensor(rng.uniform(0.05, 1.0, n))
    for g in (0, 1):  # room for the mass of every group
        inside = groups == g
        caps[inside] *= max(1.0, 1.2 * float(masses[g] / caps[inside].sum()))
    return Constraints(caps, groups, masses), torch.tensor(rng.uniform(0.01, 1, n))


@pytest.mark.parametrize("seed", range(5))
def test_projection_is_the_nearest_feasible_point_in_relative_entropy(seed: int) -> None:
    scipy = pytest.importorskip("scipy.optimize")
    constraints, w = random_constraints(seed)
    found = constraints.project(w)
    caps, groups = constraints.caps.numpy(), constraints.groups.numpy()
    total = [{"type": "eq", "fun": lambda v, g=g: v[groups == g].sum() - constraints.masses[g].item()} for g in (0, 1)]
    solved = scipy.minimize(
        lambda v: float((v * np.log(v / w.numpy()) - v).sum()), np.minimum(caps, 0.1),
        jac=lambda v: np.log(v / w.numpy()), bounds=[(1e-12, u) for u in caps], constraints=total, method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert solved.success
    np.testing.assert_allclose(found.numpy(), solved.x, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_lowest_solves_the_linear_problem(seed: int) -> None:
    scipy = pytest.importorskip("scipy.optimize")
    constraints, gradient = random_constraints(seed)
    rows = np.stack([(constraints.groups == g).double().numpy() for g in (0, 1)])
    solved = scipy.linprog(
        gradient.numpy(), A_eq=rows, b_eq=constraints.masses.numpy(), bounds=[(0, u) for u in constraints.caps.tolist()]
    )
    found = constraints.lowest(gradient)
    assert float(found @ gradient) == pytest.approx(solved.fun, rel=1e-9)
    assert bool((found <= constraints.caps + 1e-12).all())


@pytest.mark.parametrize("label_weight", [0.0, 1.0])
def test_value_and_gradient_at_given_weights_are_the_divergences(label_weight: float) -> None:
    pool, target = cloud(14, 0), cloud(9, 1)
    options = {"label_weight": label_weight, "tol": 1e-10, "max_iterations": 5000, "precision": "fp64"}
    result = otdd.dataset_distance(pool, target, relative_epsilon=0.2, **options)
    constraints, _ = constrain(pool, 5, None)
    problem = _problem(result, constraints, otdd.DistanceOptions(**options))
    w = torch.zeros(14, dtype=torch.float64)
    w[[1, 4, 6, 9, 13]] = 0.2
    found = problem.evaluate(w)
    tables = {}
    if label_weight:
        tables["label_cost"] = (result.label_distances.joint(), pool.y[w > 0], target.y + pool.num_classes)
    expected = reference.divergence(
        pool.x[w > 0], target.x, w[w > 0], target.normalised_weights, result.epsilon, **tables
    )
    assert found.value == pytest.approx(expected, rel=1e-6)
    step, i, j = 1e-3, 4, 2  # from one chosen sample to one that has no weight
    moved = w.clone()
    moved[i] -= step
    moved[j] += step
    slope = (problem.evaluate(moved).value - found.value) / step
    assert slope == pytest.approx(float(found.gradient[j] - found.gradient[i]), rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_choice_is_that_of_all(seed: int) -> None:
    constraints, gradient = random_constraints(seed)
    groups, quotas = constraints.groups, [2, 3]
    choices = itertools.product(
        *(itertools.combinations((groups == g).nonzero()[:, 0].tolist(), quotas[g]) for g in (0, 1))
    )
    values = [float(constraints.vertex(torch.tensor([*one, *two])) @ gradient) for one, two in choices]
    assert float(constraints.lowest_vertex(gradient, quotas) @ gradient) == pytest.approx(min(values), rel=1e-12)


def problem_of(seed: int) -> tuple[LabeledDataset, LabeledDataset, int, dict[str, Any]]:
    """A random selection; every third pool is weighted, every fourth choice balanced."""
    generator = torch.Generator().manual_seed(seed)
    n, m = (int(torch.randint(8, 21, (1,), generator=generator)) for _ in range(2))
    count = max(1, int(n * float(torch.rand(1, generator=generator)) ** 0.5))
    x, t = (torch.randn(size, 1 + seed % 4, generator=generator, dtype=torch.float64) for size in (n, m))
    weights = torch.rand(n, generator=generator).square() + 0.05 if seed % 3 == 0 else None
    pool = otdd.from_arrays(x, torch.arange(n) % 2, weights=weights)
    settings = {"label_weight": float(seed % 2), "balance": "classes" if seed % 4 == 1 else None}
    return pool, otdd.from_arrays(t + seed % 2, torch.arange(m) % 2), count, settings


@pytest.mark.parametrize("seed", range(12))
def test_bound_relaxed_value_and_value_are_in_order(seed: int) -> None:
    pool, target, count, settings = problem_of(seed)
    found = select(pool, target, count, search=SearchOptions(steps=12, exchanges=6), **settings)
    assert found.converged
    assert found.lower_bound <= found.relaxed_value <= found.value
    assert 0 < found.error < 2e-3 * found.value + 1e-3 * found.result.epsilon


def test_a_value_below_the_bound_is_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, target, count, settings = problem_of(1)
    monkeypatch.setattr(WeightProblem, "evaluate", too_large_with_all(WeightProblem.evaluate))
    with pytest.warns(otdd.NotConvergedWarning, match="lower bound .* lies above the value"):
        found = select(pool, target, count, tol=1e-5, **settings)
    assert not found.converged
    assert found.lower_bound <= found.relaxed_value <= found.value


def too_large_with_all(evaluate: Callable[..., Weighted]) -> Callable[..., Weighted]:
    """``evaluate`` with a tenth too much on the whole pool, as a solver that has gone wrong might say."""

    def wrong(problem: WeightProblem, weights: torch.Tensor) -> Weighted:
        found = evaluate(problem, weights)
        return replace(found, value=1.1 * found.value) if bool((weights > 0).all()) else found

    return wrong


def test_no_choice_of_weighted_samples_is_below_the_bound() -> None:
    """Heavy samples may weigh more in a choice than their cap allows."""
    weights = torch.tensor([9.0, 7.0, 1.0, 1.0, 2.0, 0.3, 0.2, 5.0], dtype=torch.float64)
    pool = replace(cloud(8, 3), weights=weights / weights.sum())
    target, settings = cloud(20, 4), {"label_weight": 0.0, "tol": 1e-4}
    found = select(pool, target, 6, search=SearchOptions(steps=30, exchanges=6), **settings)
    everything = [
        otdd.dataset_distance(pool.subset(list(rows)), target, epsilon=found.result.epsilon, **settings).value
        for rows in itertools.combinations(range(8), 6)
    ]
    assert found.lower_bound <= min(everything) <= found.value * (1 + 1e-4)
    assert found.lower_bound > 0.5 * min(everything)


def test_no_subset_is_below_the_bound_and_the_choice_is_near_the_best() -> None:
    pool, target = cloud(9, 3), cloud(30, 4)
    found = select(pool, target, 3, label_weight=0.0, search=SearchOptions(steps=30, exchanges=12))
    everything = []
    for subset in itertools.combinations(range(9), 3):
        part = pool.subset(list(subset))
        value = otdd.dataset_distance(part, target, label_weight=0.0, epsilon=found.result.epsilon, tol=1e-4).value
        everything.append(value)
    best = min(everything)
    assert found.lower_bound <= best * (1 + 1e-3)
    assert found.relaxed_value <= best * (1 + 1e-3)
    assert found.value == pytest.approx(best, rel=0.02)
    assert sorted(everything).index(min(everything, key=lambda v: abs(v - found.value))) < 3


def test_the_weights_reach_a_small_gap() -> None:
    found = select(cloud(60, 5), cloud(50, 6), 20, label_weight=0.0, search=SearchOptions(exchanges=0))
    assert 0 <= found.relaxed_value - found.lower_bound <= 0.06 * found.relaxed_value


def test_masses_move_between_distant_modes() -> None:
    """Half of the pool in either mode, a fifth of the target in the second: weights must find that fifth."""
    x = torch.cat([cloud(20, 0).x - 6, cloud(20, 1).x + 6])
    target = torch.cat([cloud(40, 2).x - 6, cloud(10, 3).x + 6])
    pool, target = otdd.from_arrays(x, [0] * 40), otdd.from_arrays(target, [0] * 50)
    result = otdd.dataset_distance(pool, target, label_weight=0.0, relative_epsilon=0.05)
    constraints, _ = constrain(pool, 10, None)
    problem = _problem(result, constraints, otdd.DistanceOptions())
    found = problem.minimise(30, 0.01)
    assert float(found.weights[20:].sum()) == pytest.approx(0.2, abs=1e-3)
    assert found.value < 0.02 * result.value
