"""Derivatives of unbalanced divergences: of one value, by finite differences of it, first and second."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.sinkhorn import SolverOptions, sinkhorn_divergence
from otdd_flash.sinkhorn.autograd import LabelTerm, differentiable_divergence
from otdd_flash.sinkhorn.hessian import SinkhornHessian

EPSILON = 0.4
PENALTIES = [(0.7, 0.7), (0.5, 3.0), (0.7, None), (None, 2.0)]


def tight(rho: tuple) -> SolverOptions:
    return SolverOptions(tol=1e-13, max_iterations=9000, rho_x=rho[0], rho_y=rho[1])


def clouds(n: int, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points and weights of masses about 4 and 6."""
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(k, 2, generator=rng, dtype=torch.float64) + shift for k, shift in ((n, 0.0), (m, 0.5)))
    a, b = (torch.rand(k, generator=rng, dtype=torch.float64) + 0.1 for k in (n, m))
    return x, y, a, 1.5 * b


def unrolled(x: Tensor, y: Tensor, a: Tensor, b: Tensor, rho: tuple, *, symmetric: bool) -> Tensor:
    """``OT(a, b)`` as its definition has it, by plain iterations that autograd can follow."""
    C = (x[:, None] - y[None]).square().sum(-1)
    damping = [1.0 if r is None else r / (r + EPSILON) for r in rho]
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(300):
        if symmetric:
            f = g = (f + damping[0] * reference.softmin(C, g, b.log(), EPSILON)) / 2
        else:
            f = damping[0] * reference.softmin(C, g, b.log(), EPSILON)
            g = damping[1] * reference.softmin(C.T, f, a.log(), EPSILON)
    P = a[:, None] * b * ((f[:, None] + g - C) / EPSILON).exp()

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p * (p / q).log() - p + q).sum()

    value = (P * C).sum() + EPSILON * kl(P, a[:, None] * b)
    soft = [(r, p, w) for r, p, w in zip(rho, (P.sum(1), P.sum(0)), (a, b), strict=True) if r is not None]
    return value + sum(r * kl(p, w) for r, p, w in soft)


def dense(x: Tensor, y: Tensor, a: Tensor, b: Tensor, rho: tuple, *, debiased: bool) -> Tensor:
    value = unrolled(x, y, a, b, rho, symmetric=False)
    if not debiased:
        return value
    selves = unrolled(x, x, a, a, (rho[0],) * 2, symmetric=True), unrolled(y, y, b, b, (rho[1],) * 2, symmetric=True)
    return value - selves[0] / 2 - selves[1] / 2 + EPSILON / 2 * (a.sum() - b.sum()).square()


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_value_and_gradients_equal_autograd_through_a_dense_solve(rho: tuple, debiased: bool, memory: str) -> None:
    leaves = [t.requires_grad_() for t in clouds(7, 6)]
    x, y, a, b = leaves
    found = differentiable_divergence(
        x, y, a=a, b=b, epsilon=EPSILON, debiased=debiased, options=tight(rho),
        execution=otdd.sinkhorn.Execution(memory=memory),
    )  # fmt: skip
    expected = dense(x, y, a, b, rho, debiased=debiased)
    assert found.value.item() == pytest.approx(expected.item(), rel=1e-9)
    gradients = torch.autograd.grad(found.value, leaves), torch.autograd.grad(expected, leaves)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("rho", PENALTIES)
def test_first_and_second_derivatives_in_all_inputs(rho: tuple, debiased: bool) -> None:
    """Points, weights, label table and feature weight, and every mixed second derivative."""
    table = torch.tensor([[0.0, 0.3, 0.8], [0.3, 0.0, 0.5], [0.8, 0.5, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1]), torch.tensor([2, 1, 2])

    def value(x: Tensor, y: Tensor, a: Tensor, b: Tensor, table: Tensor, weight: Tensor) -> Tensor:
        return differentiable_divergence(
            x, y, a=a, b=b, labels=LabelTerm(table, *labels), feature_weight=weight, epsilon=EPSILON,
            debiased=debiased, options=tight(rho),
        ).value  # fmt: skip

    leaves = [t.requires_grad_() for t in (*clouds(4, 3), table, torch.tensor(0.8, dtype=torch.float64))]
    assert torch.autograd.gradcheck(value, leaves, eps=1e-5, atol=1e-7, rtol=1e-6)
    assert torch.autograd.gradgradcheck(value, leaves, eps=1e-5, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("side", ["x", "y"])
def test_hessian_is_the_derivative_of_the_gradient(rho: tuple, debiased: bool, side: str) -> None:
    x, y, a, b = clouds(30, 25)
    settings = {"a": a, "b": b, "epsilon": EPSILON, "debiased": debiased, "options": tight(rho)}
    found = sinkhorn_divergence(x, y, **settings)
    v = torch.randn((x if side == "x" else y).shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradient(h: float) -> Tensor:
        leaves = {"x": x.clone(), "y": y.clone()}
        leaves[side] = (leaves[side] + h * v).requires_grad_()
        return torch.autograd.grad(differentiable_divergence(**leaves, **settings).value, leaves[side])[0]

    h = 1e-4
    expected = (8 * (gradient(h) - gradient(-h)) - (gradient(2 * h) - gradient(-2 * h))) / (12 * h)
    for memory in ("streamed", "cached"):
        product = SinkhornHessian(found, side=side, memory=memory) @ v
        assert float((product - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize(
    "reach", [{"reach": 1.2}, {"reach_x": 1.2}, {"reach_y": 0.8}, {"reach_x": 1.0, "reach_y": 2.0}]
)
@pytest.mark.parametrize("moments", ["attached", "detached"])
def test_dataset_distance_with_a_reach(reach: dict, moments: str) -> None:
    rng = torch.Generator().manual_seed(2)
    sides = []
    for n, shift in ((12, 0.0), (10, 0.6)):
        y = torch.arange(n) % 2
        x = torch.randn(n, 3, generator=rng, dtype=torch.float64) + y[:, None] + shift
        sides.append(otdd.from_arrays(x, y, weights=torch.rand(n, generator=rng) + 0.5))
    options = {"epsilon": 0.8, "tol": 1e-12, "max_iterations": 5000, "label_distance": "gaussian_diag", **reach}
    source, target = sides
    if moments == "detached":
        options["label_distance"] = otdd.dataset_distance(source, target, **options).label_distances
    x = source.x.clone().requires_grad_()
    found = otdd.differentiable_distance(replace(source, x=x), target, moments=moments, **options)
    assert found.value.item() == otdd.dataset_distance(source, target, **options).value
    (gradient,) = torch.autograd.grad(found.value, x)
    v = torch.randn(x.shape, generator=rng, dtype=torch.float64)
    h = 1e-4
    ends = [otdd.dataset_distance(replace(source, x=source.x + s * v), target, **options).value for s in (h, -h)]
    assert float((gradient * v).sum()) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("masses", [(1.0, 1.0), (2.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("debias", [True, False])
def test_one_unbalanced_value_everywhere(masses: tuple, debias: bool) -> None:
    """``SamplesLoss`` halves the cost; GeomLoss's own value holds a constant more where nothing is debiased."""
    x, y, a, b = clouds(12, 10)
    a, b = (mass * w / w.sum() for mass, w in zip(masses, (a, b), strict=True))
    blur, reach = 0.5, 0.8
    rho = 2 * reach**2
    expected = sinkhorn_divergence(x, y, a=a, b=b, epsilon=2 * blur**2, debiased=debias, options=tight((rho, rho)))
    settings = {"blur": blur, "reach": reach, "debias": debias}
    exact = otdd.SamplesLoss(**settings, tol=1e-12, max_iterations=5000)
    assert float(exact(a, x, b, y)) == pytest.approx(expected.value / 2, rel=1e-9)
    geomloss = pytest.importorskip("geomloss")
    constant = 0.0 if debias else blur**2 * ((masses[0] + masses[1]) / 2 - masses[0] * masses[1])
    theirs = float(geomloss.SamplesLoss(**settings)(a, x, b, y)) - constant
    assert float(otdd.SamplesLoss(**settings)(a, x, b, y)) == pytest.approx(theirs, rel=1e-9)
    leaves = [t.clone().requires_grad_() for t in (a, b)]
    gradients = torch.autograd.grad(exact(leaves[0], x, leaves[1], y), leaves)
    for k, gradient in enumerate(gradients):
        for i in range(3):
            ends = []
            for h in (1e-5, -1e-5):
                moved = [a.clone(), b.clone()]
                moved[k][i] += h
                ends.append(float(exact(moved[0], x, moved[1], y)))
            assert float(gradient[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8)
