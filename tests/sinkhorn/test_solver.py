"""The solver against closed forms and the dense oracle; certificates, warm starts, hard cases."""

from __future__ import annotations

import math

import pytest
import torch

from otdd_flash import reference
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import NotConvergedWarning
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import Execution, SolverOptions, divergence, sinkhorn_divergence, solve
from otdd_flash.sinkhorn.schedule import annealing

TIGHT = SolverOptions(tol=1e-10, max_iterations=5000)


def uniform(n: int) -> torch.Tensor:
    return torch.full((n,), 1.0 / n, dtype=torch.float64)


def gaussian_cloud(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> PointCloud:
    points = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return PointCloud(points * scale + shift, uniform(n))


@pytest.mark.parametrize("relaxation", [None, 1.0, 1.5])
@pytest.mark.parametrize("relative_epsilon", [0.3, 0.02])
def test_divergence_equals_the_oracle(relaxation: float | None, relative_epsilon: float) -> None:
    cost = DotProductCost.build([gaussian_cloud(40, 5, 0), gaussian_cloud(30, 5, 1, shift=0.7)])
    epsilon = relative_epsilon * cost.mean(0, 1)
    found = divergence(cost, epsilon, options=SolverOptions(tol=1e-10, max_iterations=5000, relaxation=relaxation))
    x, y = (c.points for c in cost.clouds)
    expected = reference.divergence(x, y, uniform(40), uniform(30), epsilon)
    assert found.converged
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.gap < 1e-8


def test_reported_certificate_is_the_truth() -> None:
    cost = DotProductCost.build([gaussian_cloud(25, 3, 0), gaussian_cloud(35, 3, 1, shift=1.0)])
    operator = make_operator(cost, [(0, 1)], epsilon=0.1)
    for limit in (1, 4, 50):
        solution = solve(operator, 0.1, SolverOptions(tol=1e-6, max_iterations=limit))
        f, g = solution.potentials(0)
        C = reference.cost_matrix(cost.clouds[0].points, cost.clouds[1].points)
        r, c = reference.marginals(C, f, g, uniform(25), uniform(35), 0.1)
        error = float((r - uniform(25)).abs().sum() + (c - uniform(35)).abs().sum())
        assert float(solution.marginal_error) == pytest.approx(error, rel=1e-6, abs=1e-12)
        assert bool(solution.converged) == (error <= 1e-6)
        assert int(solution.iterations) <= limit + 1  # a two-level step counts two


@pytest.mark.parametrize("epsilon", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_small_epsilon_tells_the_truth(epsilon: float) -> None:
    """C16: 15 x 2 Gaussians from epsilon 1e-1 to 1e-6; converged means converged."""
    x, y = gaussian_cloud(15, 2, 3), gaussian_cloud(15, 2, 4, shift=0.5)
    cost = DotProductCost.build([x, y])
    found = divergence(cost, epsilon, debiased=False, options=SolverOptions(tol=1e-3, max_iterations=3000))
    C = reference.cost_matrix(x.points, y.points)
    r, c = reference.marginals(C, *found.potentials, uniform(15), uniform(15), epsilon)
    error = float((r - uniform(15)).abs().sum() + (c - uniform(15)).abs().sum())
    assert found.marginal_error == pytest.approx(error, rel=1e-5, abs=1e-8)
    assert found.converged == (error <= 1e-3)
    assert found.converged
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(C.numpy())
    exact = float(C[rows, columns].mean())
    assert exact - 1e-9 <= found.value + found.error <= exact + 5 * epsilon * 2.8 + 2 * found.error


def test_symmetric_problem_converges_in_tens_of_passes() -> None:
    cost = DotProductCost.build([gaussian_cloud(300, 8, 0)])
    epsilon = 0.01 * cost.mean(0, 0)
    solution = solve(make_operator(cost, [(0, 0)], epsilon=epsilon), epsilon, SolverOptions(tol=1e-8))
    assert bool(solution.converged)
    assert int(solution.iterations) <= 40
    torch.testing.assert_close(solution.f[0], solution.g[0])


@pytest.mark.parametrize(("n", "k", "m", "j"), [(40, 19, 61, 30), (40, 20, 61, 31), (50, 10, 50, 12)])
def test_far_clusters_of_unequal_mass(n: int, k: int, m: int, j: int) -> None:
    """A little mass must cross a wide gap, unseen until the potentials have moved by many epsilons."""
    sides = []
    for seed, (size, first) in enumerate(((n, k), (m, j))):
        points = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        points[:first] += 8
        sides.append(PointCloud(points, uniform(size)))
    cost = DotProductCost.build(sides)
    epsilon = 0.01 * cost.mean(0, 1)
    found = divergence(cost, epsilon, options=SolverOptions(max_iterations=300))
    x, y = (side.points for side in sides)
    expected = reference.divergence(x, y, uniform(n), uniform(m), epsilon, tol=1e-9)
    assert found.converged
    assert found.value == pytest.approx(expected, rel=1e-3)


def test_warm_start_needs_no_work() -> None:
    cost = DotProductCost.build([gaussian_cloud(50, 3, 0), gaussian_cloud(40, 3, 1)])
    operator = make_operator(cost, [(0, 1)], epsilon=0.05)
    first = solve(operator, 0.05, SolverOptions(tol=1e-8))
    again = solve(operator, 0.05, SolverOptions(tol=1e-7), initial=[first.potentials(0)])
    assert int(again.iterations) == 0
    assert float(again.dual) == pytest.approx(float(first.dual), abs=1e-10)


def test_hopeless_start_is_repaired_by_softmin() -> None:
    """Potentials so far off that every sum overflows or vanishes."""
    cost = DotProductCost.build([gaussian_cloud(20, 3, 0), gaussian_cloud(30, 3, 1)])
    epsilon = 0.05
    operator = make_operator(cost, [(0, 1), (1, 1)], epsilon=epsilon)
    from otdd_flash.types import Potentials

    bad = [
        Potentials(torch.full((20,), 1e4), torch.full((30,), 1e4)),
        Potentials(torch.full((30,), -1e4), torch.zeros(30)),
    ]
    found = solve(operator, epsilon, SolverOptions(tol=1e-6, max_iterations=5000), initial=bad)
    good = solve(operator, epsilon, SolverOptions(tol=1e-6, max_iterations=5000))
    assert bool(found.converged.all())
    gap = (found.dual - found.primal).abs() + (good.dual - good.primal).abs()
    assert bool(((found.dual - good.dual).abs() <= gap).all())
    assert float(gap.max()) < 1e-3


def test_far_points_at_tiny_epsilon() -> None:
    """C14: points x 10 at epsilon 1e-2: finite and near exact transport."""
    x, y = gaussian_cloud(40, 8, 0, scale=10.0), gaussian_cloud(40, 8, 1, scale=10.0, shift=3.0)
    cost = DotProductCost.build([x, y])
    found = divergence(cost, 1e-2, debiased=False, options=SolverOptions(tol=1e-3, max_iterations=20000))
    from scipy.optimize import linear_sum_assignment

    C = reference.cost_matrix(x.points, y.points)
    rows, columns = linear_sum_assignment(C.numpy())
    exact = float(C[rows, columns].mean())
    assert found.plan.dense().sum() == pytest.approx(1.0, abs=1e-2)
    assert found.converged
    assert abs(found.value - exact) <= found.error + 1e-2 * math.log(40)
    assert found.error < 1e-2 * exact


def test_identical_points_everywhere() -> None:
    """C33: all rows of both sides in one place."""
    found = sinkhorn_divergence(torch.ones(5, 3), torch.ones(7, 3), epsilon=0.1)
    assert found.converged
    assert abs(found.value) <= found.error + 1e-12


@pytest.mark.parametrize("duplicates", [2, 5])
def test_duplicated_rows_equal_weights(duplicates: int) -> None:
    """C37: every row k times is the same as weights k."""
    x, y = gaussian_cloud(12, 3, 0).points, gaussian_cloud(15, 3, 1).points
    weights = torch.arange(1.0, 13.0)
    repeats = torch.cat([x.repeat(duplicates, 1), x[:1]]), None
    plain = torch.full((12,), float(duplicates))
    plain[0] += 1
    a = sinkhorn_divergence(repeats[0], y, epsilon=0.2, options=TIGHT).value
    b = sinkhorn_divergence(x, y, a=plain, epsilon=0.2, options=TIGHT).value
    assert a == pytest.approx(b, rel=1e-9)
    other = sinkhorn_divergence(x, y, a=weights, epsilon=0.2, options=TIGHT).value
    assert abs(other - b) > 1e-3


def test_zero_weight_is_no_point() -> None:
    x, y = gaussian_cloud(12, 3, 0).points, gaussian_cloud(15, 3, 1).points
    a = torch.ones(12)
    a[[2, 7]] = 0
    with_zero = sinkhorn_divergence(x, y, a=a, epsilon=0.2, options=TIGHT).value
    without = sinkhorn_divergence(x[a > 0], y, epsilon=0.2, options=TIGHT).value
    assert with_zero == pytest.approx(without, rel=1e-10)


def test_not_converged_is_said() -> None:
    x, y = gaussian_cloud(30, 3, 0).points, gaussian_cloud(30, 3, 1, shift=2.0).points
    with pytest.warns(NotConvergedWarning, match="not converged after 2 iterations: the marginal error"):
        found = sinkhorn_divergence(x, y, epsilon=0.01, options=SolverOptions(tol=1e-6, max_iterations=2))
    assert not found.converged


@pytest.mark.parametrize(
    "bad", [{"tol": 0.0}, {"max_iterations": 0}, {"scaling": 1.0}, {"relaxation": 2.0}, {"rho_x": -1.0}]
)
def test_options_are_checked(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SolverOptions(**bad)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_epsilon_is_checked(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        sinkhorn_divergence(torch.randn(4, 2), torch.randn(4, 2), epsilon=epsilon)


def test_streamed_and_cached_agree() -> None:
    """C05: the memory mode does not change the number."""
    cost = DotProductCost.build([gaussian_cloud(90, 8, 0), gaussian_cloud(70, 8, 1, shift=0.3)])
    values = [divergence(cost, 0.3, execution=Execution(memory=memory)).value for memory in ("streamed", "cached")]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_annealing_schedule() -> None:
    assert annealing(16.0, 1.0, 0.5) == [16.0, 4.0]
    assert annealing(1.0, 2.0, 0.5) == []
    assert all(e > 0.3 for e in annealing(100.0, 0.3, 0.7))


def test_plan_streams_what_the_dense_plan_gives() -> None:
    cost = DotProductCost.build([gaussian_cloud(30, 3, 0), gaussian_cloud(20, 3, 1)])
    plan = divergence(cost, 0.2, options=TIGHT).plan
    P = plan.dense()
    torch.testing.assert_close(P.sum(1), uniform(30), rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(torch.cat(plan.marginals()), torch.cat([P.sum(1), P.sum(0)]))
    y = cost.clouds[1].points
    torch.testing.assert_close(plan.map(), (P @ y) / P.sum(1, keepdim=True))
    labels_x, labels_y = torch.arange(30) % 3, torch.arange(20) % 2
    coupling = plan.class_coupling(labels_x, labels_y)
    assert float(coupling[1, 0]) == pytest.approx(float(P[labels_x == 1][:, labels_y == 0].sum()), rel=1e-9)
    torch.testing.assert_close(plan.transfer_labels(labels_y).sum(1), torch.ones(30).double())
    with pytest.raises(ValueError, match="v must have 20 rows"):
        plan.apply(torch.ones(7))
