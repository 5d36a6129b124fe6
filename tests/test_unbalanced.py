"""Unbalanced and semi-unbalanced transport against POT, a plain dense fixed point, and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import make_operator
from otdd_flash.sinkhorn import SolverOptions, divergence, sinkhorn_divergence, solve

INF = math.inf


def cloud(n: int, seed: int, mass: float = 1.0, shift: float = 0.0) -> PointCloud:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, 3, generator=generator, dtype=torch.float64) + shift
    weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    return PointCloud(points, mass * weights / weights.sum())


def tight(rho_x: float, rho_y: float) -> SolverOptions:
    soft = [None if rho == INF else rho for rho in (rho_x, rho_y)]
    return SolverOptions(tol=1e-11, max_iterations=5000, rho_x=soft[0], rho_y=soft[1])


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p * (p / q).log() - p + q).sum())


def primal_value(P: torch.Tensor, C: torch.Tensor, a: torch.Tensor, b: torch.Tensor, eps: float, *rho: float) -> float:
    """The objective, as it is defined, of any plan."""
    value = float((P * C).sum()) + eps * kl(P, a[:, None] * b[None, :])
    for marginal, weights, strength in ((P.sum(1), a, rho[0]), (P.sum(0), b, rho[1])):
        value += 0.0 if strength == INF else strength * kl(marginal, weights)
    return value


def oracle(C: torch.Tensor, a: torch.Tensor, b: torch.Tensor, eps: float, *rho: float) -> tuple[float, torch.Tensor]:
    """Value and plan by the plain fixed point, to 1e-12: alternating, or averaged for a cloud against itself."""
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    damping = [1.0 if r == INF else r / (r + eps) for r in rho]
    for _ in range(20000):
        f_new = damping[0] * reference.softmin(C, g, b.log(), eps)
        if a is b:
            g = f_new = (f + f_new) / 2
        else:
            g = damping[1] * reference.softmin(C.T, f_new, a.log(), eps)
        moved, f = float((f_new - f).abs().max()), f_new
        if moved < 1e-13:
            break
    assert moved < 1e-12
    P = reference.plan(C, f, g, a, b, eps)
    return primal_value(P, C, a, b, eps, *rho), P


PENALTIES = [(1.0, 1.0), (0.3, 5.0), (2.0, INF), (INF, 0.5)]


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("masses", [(1.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("eps", [2.0, 0.2])
def test_value_and_plan_equal_the_dense_fixed_point(rho: tuple, masses: tuple, eps: float) -> None:
    x, y = cloud(20, 0, masses[0]), cloud(15, 1, masses[1], shift=0.7)
    cost = DotProductCost.build([x, y])
    C = reference.cost_matrix(x.points, y.points)
    expected, P = oracle(C, x.weights, y.weights, eps, *rho)
    found = divergence(cost, eps, debiased=False, options=tight(*rho))
    assert found.converged
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.primal == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(found.plan.dense(), P, rtol=1e-7, atol=1e-12)
    assert found.certificates[0]["mass"] == pytest.approx(float(P.sum()), rel=1e-8)


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("masses", [(1.0, 1.0), (0.5, 3.0)])
def test_divergence_keeps_each_clouds_penalty(rho: tuple, masses: tuple) -> None:
    """Sejourne et al. (2019), definition 5; the self problem of a cloud is penalised on both sides as the cloud is."""
    eps = 0.5
    x, y = cloud(20, 0, masses[0]), cloud(15, 1, masses[1], shift=0.7)

    def value(p: PointCloud, q: PointCloud, *strengths: float) -> float:
        C = reference.cost_matrix(p.points, q.points)
        return oracle(C, p.weights, q.weights, eps, *strengths)[0]

    expected = value(x, y, *rho) - value(x, x, rho[0], rho[0]) / 2 - value(y, y, rho[1], rho[1]) / 2
    expected += eps / 2 * (masses[0] - masses[1]) ** 2
    found = divergence(DotProductCost.build([x, y]), eps, options=tight(*rho))
    assert found.value == pytest.approx(expected, rel=1e-8, abs=1e-10)
    assert found.value > 0


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("masses", [(1.0, 1.0), (0.5, 3.0)])
def test_agrees_with_pot(rho: tuple, masses: tuple) -> None:
    """POT's ``reg_type="kl"`` is KL to ``a b^T``, as here; its plan is compared, and the objective of its plan."""
    ot = pytest.importorskip("ot")
    eps = 0.5
    x, y = cloud(20, 0, masses[0]), cloud(15, 1, masses[1], shift=0.7)
    C = reference.cost_matrix(x.points, y.points)
    P = ot.unbalanced.sinkhorn_unbalanced(
        x.weights, y.weights, C, eps, rho, reg_type="kl", numItermax=100000, stopThr=1e-14
    )
    found = divergence(DotProductCost.build([x, y]), eps, debiased=False, options=tight(*rho))
    assert found.value == pytest.approx(primal_value(P, C, x.weights, y.weights, eps, *rho), rel=1e-6)
    torch.testing.assert_close(found.plan.dense(), P, rtol=1e-4, atol=1e-9)


def test_two_diracs_closed_form() -> None:
    """Masses m, k at cost C move ``log p = (-C + (eps + rho) log(m k)) / (eps + 2 rho)``."""
    eps, rho, m, k, C = 0.3, 0.8, 0.5, 2.0, 4.0
    p = math.exp((-C + (eps + rho) * math.log(m * k)) / (eps + 2 * rho))
    ot_xy = -(eps + 2 * rho) * p + eps * m * k + rho * (m + k)

    def self_value(mass: float) -> float:
        own = math.exp((eps + rho) * math.log(mass * mass) / (eps + 2 * rho))
        return -(eps + 2 * rho) * own + eps * mass * mass + 2 * rho * mass

    expected = ot_xy - self_value(m) / 2 - self_value(k) / 2 + eps / 2 * (m - k) ** 2
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    weights = {"a": torch.tensor([m]), "b": torch.tensor([k])}
    raw, debiased = (
        sinkhorn_divergence(x, y, **weights, epsilon=eps, debiased=d, options=tight(rho, rho)) for d in (False, True)
    )
    assert raw.value == pytest.approx(ot_xy, rel=1e-10)
    assert debiased.value == pytest.approx(expected, rel=1e-10)
    assert raw.certificates[0]["mass"] == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("rho", [1e3, 1e6, 1e9])
def test_large_penalty_gives_the_balanced_value(rho: float) -> None:
    """And in hardly more passes: the shift between the potentials is solved for, not iterated."""
    x, y = cloud(40, 0), cloud(30, 1, shift=0.7)
    cost = DotProductCost.build([x, y])
    balanced = divergence(cost, 0.3, options=SolverOptions(tol=1e-9))
    soft = divergence(cost, 0.3, options=SolverOptions(tol=1e-9, rho_x=rho, rho_y=rho))
    assert soft.converged
    assert soft.value == pytest.approx(balanced.value, rel=20 / rho, abs=1e-7)
    assert soft.iterations <= 1.2 * balanced.iterations


def test_penalty_bounds_what_outliers_cost() -> None:
    """A far outlier dominates the balanced value and is left behind, for ``rho`` times its mass, by the unbalanced."""
    x = cloud(30, 0)
    y = PointCloud(torch.cat([cloud(30, 0).points, torch.full((1, 3), 15.0)]), torch.full((31,), 1 / 31.0).double())
    cost = DotProductCost.build([x, y])
    assert divergence(cost, 1.0, debiased=False).value > 15
    assert divergence(cost, 1.0, debiased=False, options=tight(1.0, 1.0)).value < 2.0


def test_each_problem_of_a_batch_has_its_own_penalty() -> None:
    x, y = cloud(20, 0), cloud(15, 1, shift=0.7)
    cost = DotProductCost.build([x, y])
    batch = solve(make_operator(cost, [(0, 1), (1, 0), (0, 0)], epsilon=0.5), 0.5, tight(0.4, 3.0))
    C = reference.cost_matrix(x.points, y.points)
    expected = oracle(C, x.weights, y.weights, 0.5, 0.4, 3.0)[0]
    own = oracle(reference.cost_matrix(x.points, x.points), x.weights, x.weights, 0.5, 0.4, 0.4)[0]
    assert batch.dual.tolist() == pytest.approx([expected, expected, own], rel=1e-8)
    three = DotProductCost.build([x, y, cloud(10, 2)])
    with pytest.raises(ValueError, match="cloud 2"):
        solve(make_operator(three, [(0, 2)], epsilon=0.5), 0.5, tight(0.4, 3.0))


def test_unequal_masses_need_a_penalty() -> None:
    cost = DotProductCost.build([cloud(5, 0), cloud(6, 1, mass=2.0)])
    with pytest.raises(ValueError, match=r"equal masses, got 1 and 2.*rho_x"):
        divergence(cost, 0.5)
    assert divergence(cost, 0.5, options=tight(1.0, INF)).converged


def blobs(n: int, seed: int, shift: float = 0.0) -> otdd.LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return otdd.from_arrays(torch.randn(n, 4, generator=generator) + 2 * y[:, None] + shift, y)


def test_reach_in_dataset_distance() -> None:
    """``rho = reach^2`` in units of the cost; one ``reach`` for both sides or one for each; a large one is balanced."""
    a, b = blobs(60, 0), blobs(50, 1, shift=1.0)
    settings = {"label_weight": 0.0, "epsilon": 0.5, "tol": 1e-7, "precision": "fp64"}
    balanced = otdd.dataset_distance(a, b, **settings)
    both = otdd.dataset_distance(a, b, reach=1.5, **settings)
    expected = sinkhorn_divergence(a.x.double(), b.x.double(), epsilon=0.5, options=tight(2.25, 2.25)).value
    assert both.value == pytest.approx(expected, rel=1e-5)
    assert both.value < balanced.value
    assert (both.reach_x, both.reach_y) == (1.5, 1.5)
    semi = otdd.dataset_distance(a, b, reach_y=1.5, **settings)
    assert (semi.reach_x, semi.reach_y) == (None, 1.5)
    assert semi.certificates[0]["mass"] == pytest.approx(1.0, abs=1e-6)
    assert both.certificates[0]["mass"] < 0.999
    assert otdd.dataset_distance(a, b, reach=1e4, **settings).value == pytest.approx(balanced.value, rel=1e-5)
    assert otdd.dataset_distance(a, a, reach=1.5, label_weight=0.0).value == 0.0


def test_reach_is_checked() -> None:
    a = blobs(20, 0)
    with pytest.raises(ValueError, match="reach_y must be finite and between"):
        otdd.dataset_distance(a, a, reach_y=-1.0)
    with pytest.raises(ValueError, match="reach or reach_x, reach_y"):
        otdd.dataset_distance(a, a, reach=1.0, reach_x=2.0)
