"""Certificates in units of the cost: the optimal value lies in the stated interval, and separated groups are solved."""

from __future__ import annotations

import warnings

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import NotConvergedError, NotConvergedWarning
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution, SolverOptions, divergence, sinkhorn_divergence, solve
from otdd_flash.sinkhorn.aggregate import ground_groups, scale_to
from otdd_flash.sinkhorn.terms import Term, allowed_gaps, combine

DOUBLE = torch.float64


def cloud(n: int, d: int, seed: int, shift: float = 0.0) -> PointCloud:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, generator=generator, dtype=DOUBLE) + 0.1
    return PointCloud(torch.randn(n, d, generator=generator, dtype=DOUBLE) + shift, weights / weights.sum())


@pytest.mark.parametrize("limit", [1, 3, 10, 3000])
@pytest.mark.parametrize("pair", [(0, 1), (0, 0)])
def test_the_optimal_value_lies_between_dual_and_primal_value_however_early_a_solve_stops(
    pair: tuple[int, int], limit: int
) -> None:
    cost = DotProductCost.build([cloud(23, 3, 0), cloud(31, 3, 1, shift=0.6)])
    x, y = (cost.clouds[k] for k in pair)
    C = reference.cost_matrix(x.points, y.points)
    for epsilon in (3.0, 0.3, 0.03):
        truth = reference.ot_value(C, x.weights, y.weights, epsilon)
        operator = make_operator(cost, [pair], epsilon=epsilon)
        options = SolverOptions(tol=1e-9, max_iterations=limit)
        found = solve(operator, epsilon, options)
        assert float(found.dual) <= truth + 1e-12
        assert float(found.primal) >= truth - 1e-12
        if limit == 3000:
            assert float(found.gap) < 1e-6


@pytest.mark.parametrize(("rho_x", "rho_y"), [(2.0, 2.0), (None, 0.7), (1.5, None)])
def test_an_unbalanced_optimum_lies_in_its_interval(rho_x: float | None, rho_y: float | None) -> None:
    cost = DotProductCost.build([cloud(20, 2, 0), cloud(25, 2, 1, shift=1.0)])
    tight = SolverOptions(tol=1e-12, max_iterations=5000, rho_x=rho_x, rho_y=rho_y)
    truth = divergence(cost, 0.2, debiased=False, options=tight)
    for limit in (1, 2, 5, 20):
        options = SolverOptions(tol=1e-9, max_iterations=limit, rho_x=rho_x, rho_y=rho_y)
        found = divergence(cost, 0.2, debiased=False, options=options)
        assert found.value <= truth.value + 1e-11
        assert found.primal >= truth.value - 1e-11
    assert truth.gap < 1e-9


@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_two_points_whose_masses_differ_by_little(memory: str) -> None:
    """The mass that must cross is 0.0004 and costs 1: an L1 marginal error of 8e-4 hides all of the value."""
    points = torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
    found = sinkhorn_divergence(
        points, points, a=torch.tensor([0.5, 0.5], dtype=DOUBLE), b=torch.tensor([0.5004, 0.4996], dtype=DOUBLE),
        epsilon=0.005, execution=Execution(memory=memory),
    )  # fmt: skip
    assert found.converged
    assert found.value == pytest.approx(3.8373820e-4, rel=1e-6)
    assert found.error < 1e-6
    assert found.iterations < 60


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_two_groups_of_points_with_one_point_more_on_one_side(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0]] * 500 + [[10.0]] * 500, dtype=dtype)
    y = torch.tensor([[0.0]] * 500 + [[10.0]] * 501, dtype=dtype)
    a, b = (otdd.from_arrays(side, torch.zeros(len(side), dtype=torch.int64)) for side in (x, y))
    found = otdd.dataset_distance(a, b, label_distance=None)
    assert found.converged
    assert found.value == pytest.approx(0.04797, rel=1e-3)
    assert abs(found.value - 0.0479748365) <= found.error + 1e-9


def test_a_value_that_is_not_known_well_enough_is_not_converged_though_its_marginals_are() -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
    options = SolverOptions(tol=1e-2, max_iterations=10)
    with pytest.warns(NotConvergedWarning, match="value is only known to"):
        found = sinkhorn_divergence(
            points, points, a=torch.tensor([0.5, 0.5], dtype=DOUBLE), b=torch.tensor([0.502, 0.498], dtype=DOUBLE),
            epsilon=0.005, options=options,
        )  # fmt: skip
    assert found.marginal_error <= 1e-2
    assert not found.converged
    assert found.error > 1e-4


def test_float32_is_not_certified_beyond_what_it_resolves_and_auto_takes_float64() -> None:
    x, y = (torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    options = SolverOptions(tol=1e-7)
    auto = sinkhorn_divergence(x, y, epsilon=0.1, options=options)
    assert auto.info.precision == "fp64"
    assert auto.converged
    with pytest.warns(NotConvergedWarning, match="precision='fp64'"):
        low = sinkhorn_divergence(x, y, epsilon=0.1, options=options, execution=Execution(precision="fp32"))
    assert not low.converged
    assert low.marginal_error > 1e-7


def test_class_problems_that_do_not_converge_are_part_of_the_certificate() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(60, 4, generator=generator) for _ in range(2))
    labels = torch.arange(60) % 3
    a, b = (otdd.from_arrays(side, labels) for side in (x, y))
    options = otdd.DistanceOptions(label_distance="sinkhorn", label_epsilon=0.1, max_iterations=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        found = otdd.dataset_distance(a, b, options=options)
        assert not found.label_distances.converged
        assert not found.converged
        assert found.error >= found.label_distances.error > 0
        with pytest.raises(NotConvergedError):
            otdd.dataset_distance(a, b, options=options, strict=True)


def test_moment_distances_of_two_classes_apart() -> None:
    x = torch.tensor([[0.0]] * 500 + [[10.0]] * 500)
    y = torch.tensor([[0.0]] * 500 + [[10.0]] * 501)
    a, b = (otdd.from_arrays(side, (side[:, 0] > 5).long()) for side in (x, y))
    assert otdd.moment_distance(a, b, label_distance="means") == pytest.approx(0.0959, abs=5e-4)


def test_a_small_plan_is_scaled_through_entries_of_any_size() -> None:
    a, b = torch.tensor([0.5, 0.5], dtype=DOUBLE), torch.tensor([0.5004, 0.4996], dtype=DOUBLE)
    for tiny in (1e-3, 1e-30, 1e-300):
        plan = torch.tensor([[0.5, tiny], [tiny, 0.5]], dtype=DOUBLE)
        u, v = scale_to(plan, a, b, symmetric=False, goal=1e-13)
        scaled = u.exp()[:, None] * plan * v.exp()
        assert float((scaled.sum(1) - a).abs().sum() + (scaled.sum(0) - b).abs().sum()) < 1e-12


def test_a_symmetric_plan_keeps_its_symmetry() -> None:
    C = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) * 300
    plan = (-(C + C.T)).exp()
    a = torch.full((7,), 1 / 7, dtype=DOUBLE)
    u, v = scale_to(plan, a, a, symmetric=True, goal=1e-13)
    assert torch.equal(u, v)
    assert float(((u.exp()[:, None] * plan * v.exp()).sum(1) - a).abs().sum()) < 1e-12


def test_groups_that_lie_apart_in_features_or_in_labels_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.cat([torch.randn(10, 2, generator=generator, dtype=DOUBLE) + shift for shift in (0.0, 50.0)])
    labels = torch.arange(20) % 2
    table = torch.tensor([[0.0, 1e4], [1e4, 0.0]], dtype=DOUBLE)
    uniform = torch.full((20,), 0.05, dtype=DOUBLE)
    cost = DotProductCost.build([PointCloud(points, uniform, labels)] * 2, table=table)
    groups = ground_groups(cost, 0, 1, 4)
    kinds = 2 * (points[:, 0] > 25) + labels
    assert torch.equal(groups.rows, groups.columns)
    assert all(len(groups.rows[kinds == kind].unique()) == 1 for kind in range(4))
    assert len(groups.rows.unique()) == 4


def test_errors_of_a_debiased_value() -> None:
    dual = torch.tensor([3.0, 1.0, 2.0], dtype=DOUBLE)
    primal = dual + torch.tensor([0.1, 0.02, 0.04], dtype=DOUBLE)
    term = Term.of(0, (1, 2))
    bounds = combine(term, dual.tolist(), primal.tolist())
    assert bounds.value == 1.5
    assert bounds.gap == pytest.approx(0.13)
    assert bounds.error == pytest.approx(
        0.1
    )  # the value may be too small by the first gap, too large by half the others
    floor = torch.full_like(dual, 0.5)
    assert torch.allclose(allowed_gaps([term], dual, floor, 1e-2), torch.full_like(dual, 1.5e-2))
    part = Term.of(0, (1, 2), part=True)
    assert torch.allclose(allowed_gaps([part], dual, floor, 1e-2), torch.full_like(dual, 0.5e-2))
    assert allowed_gaps([Term((0,), (0.0,))], dual, floor, 1e-2).isinf().all()
