"""Newton's methods on functions with known minima and saddles, and on a divergence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from otdd_flash.flows import (
    Adam,
    AdamNewton,
    LinearPullback,
    Method,
    NewtonCG,
    SinkhornObjective,
    TrustRegion,
    minimise,
)
from otdd_flash.sinkhorn.autograd import LabelTerm

SECOND_ORDER = [NewtonCG(tol=1e-9), TrustRegion(tol=1e-9)]
names = pytest.mark.parametrize("method", SECOND_ORDER, ids=lambda m: type(m).__name__)


@dataclass(frozen=True, eq=False)
class AutogradEvaluation:
    """Any torch function on the protocol."""

    function: Callable[[Tensor], Tensor]
    w: Tensor

    @property
    def value(self) -> float:
        return float(self.function(self.w))

    @property
    def gradient(self) -> Tensor:
        return torch.func.grad(self.function)(self.w)

    def hvp(self, v: Tensor) -> Tensor:
        return torch.func.jvp(torch.func.grad(self.function), (self.w,), (v,))[1]


def objective(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], AutogradEvaluation]:
    return lambda w: AutogradEvaluation(function, w)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rosenbrock(w: Tensor) -> Tensor:
    return (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2


def double_well(w: Tensor) -> Tensor:
    """Minima -1 at ``(+-1, 0)``, saddle 0 at the origin with curvature -4."""
    return w[0] ** 4 - 2 * w[0] ** 2 + w[1] ** 2


@names
def test_quadratic_in_a_few_steps(method: Method) -> None:
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    matrix, b = root @ root.T + torch.eye(6), torch.randn(6, generator=rng, dtype=torch.float64)
    found = minimise(objective(lambda w: 0.5 * w @ matrix @ w - b @ w), torch.zeros(6, dtype=torch.float64), method)
    assert found.converged
    assert found.steps <= 12
    torch.testing.assert_close(found.w, torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-8)


@names
def test_rosenbrock(method: Method) -> None:
    found = minimise(objective(rosenbrock), tensor(-1.2, 1.0), method)
    assert found.converged
    assert found.steps < 80
    torch.testing.assert_close(found.w, tensor(1.0, 1.0), rtol=1e-7, atol=1e-8)
    values = [record["value"] for record in found.history]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    # the last steps are quadratic: the gradient falls by more than the square root of its fall so far
    norms = [record["gradient_norm"] for record in found.history if record["event"] != "refused"]
    assert norms[-1] < 1e-3 * norms[-2]


@names
def test_negative_curvature_is_followed(method: Method) -> None:
    """From a point where the Hessian is indefinite to a minimum, not to the saddle that Newton's equation points at."""
    found = minimise(objective(double_well), tensor(0.1, 0.5), method)
    torch.testing.assert_close(found.w.abs(), tensor(1.0, 0.0), rtol=1e-7, atol=1e-7)
    assert found.value == pytest.approx(-1.0)


def test_trust_region_step_stays_inside_and_predicts_its_decrease() -> None:
    method = TrustRegion(radius=0.05)
    first = method.init(objective(rosenbrock), tensor(-1.2, 1.0))
    state = method.step(objective(rosenbrock), first)
    assert float((state.w - first.w).norm()) == pytest.approx(0.05)
    assert state.scale == pytest.approx(0.1)  # the model was right on the boundary: doubled


def test_trust_region_refuses_what_is_not_finite() -> None:
    def wall(w: Tensor) -> Tensor:
        return w[0] - torch.log(w[0])  # nan left of zero; the minimum is 1

    found = minimise(objective(wall), tensor(0.01), TrustRegion(radius=100.0))
    assert found.count("refused") == 0 or found.converged
    assert float(found.w) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="start"):
        minimise(objective(wall), tensor(-1.0), TrustRegion())


@names
def test_newton_alone_stops_at_an_exact_saddle_and_the_hybrid_leaves_it(method: Method) -> None:
    saddle = tensor(0.0, 0.0)
    assert minimise(objective(double_well), saddle, method).value == 0.0
    found = minimise(objective(double_well), saddle, AdamNewton())
    assert found.converged
    assert found.count("escape") == 1
    assert found.value == pytest.approx(-1.0)
    torch.testing.assert_close(found.w.abs(), tensor(1.0, 0.0), rtol=1e-6, atol=1e-6)
    looks = [record["curvature"] for record in found.history if record["curvature"] is not None]
    assert looks[0] == pytest.approx(-4.0)
    assert found.curvature == pytest.approx(2.0)


def test_hybrid_ends_at_a_minimum_from_afar() -> None:
    found = minimise(objective(rosenbrock), tensor(-1.2, 1.0), AdamNewton(adam=Adam(lr=0.05)), max_steps=300)
    assert found.converged
    torch.testing.assert_close(found.w, tensor(1.0, 1.0), rtol=1e-6, atol=1e-6)
    assert found.count("adam") > 0
    assert found.count("newton") > 0


def test_hybrid_says_when_nothing_lowers_a_degenerate_saddle() -> None:
    """Curvature negative by rounding alone: the state is marked, not walked for ever."""
    found = minimise(objective(lambda w: 1.0 + 0 * w.sum()), tensor(1.0, 2.0), AdamNewton())
    assert found.steps <= 3
    assert found.value == 1.0


def test_adam_equals_torch() -> None:
    w = tensor(-1.2, 1.0).requires_grad_()
    optimiser = torch.optim.Adam([w], lr=0.05, eps=1e-12)
    for _ in range(20):
        optimiser.zero_grad()
        rosenbrock(w).backward()
        optimiser.step()
    found = minimise(objective(rosenbrock), tensor(-1.2, 1.0), Adam(lr=0.05), max_steps=20)
    torch.testing.assert_close(found.w, w.detach(), rtol=1e-9, atol=1e-12)
    assert not found.converged


def test_history_and_callback_tell_of_every_step() -> None:
    seen = []
    found = minimise(objective(rosenbrock), tensor(-1.2, 1.0), NewtonCG(), callback=lambda s: seen.append(s.step))
    assert seen == list(range(1, found.steps + 1))
    assert [record["step"] for record in found.history] == [0, *seen]
    assert found.history[-1]["value"] == found.value


def cloud(n: int, seed: int, shift: float = 0.0) -> Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def test_divergence_objective_evaluates_its_own_derivatives() -> None:
    """Labelled: gradient and Hessian product against differences of value and gradient."""
    labels = LabelTerm(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.arange(8) % 2, torch.arange(6) % 2)
    solve = SinkhornObjective(cloud(6, 1, 0.5), 1.0, labels=labels)
    x, v, h = cloud(8, 0), cloud(8, 2), 1e-4
    here, there, back = solve(x), solve(x + h * v), solve(x - h * v)
    assert solve.solves == 3
    assert float((here.gradient * v).sum()) == pytest.approx((there.value - back.value) / (2 * h), rel=1e-5)
    torch.testing.assert_close(here.hvp(v), (there.gradient - back.gradient) / (2 * h), rtol=1e-4, atol=1e-6)


def test_trust_region_moves_a_cloud_onto_its_target() -> None:
    y = cloud(8, 1, 1.0)
    found = minimise(SinkhornObjective(y, 1.0), cloud(8, 0), TrustRegion(tol=1e-6), max_steps=60)
    assert found.converged
    assert 0 <= found.value + 1e-9 < 1e-6


def test_shuffled_regression_from_its_saddle() -> None:
    """``W = 0`` of centred inputs: Adam alone rests there, the hybrid leaves it and finds the truth."""
    X, W = cloud(24, 0), torch.tensor([[1.0, 0.5], [-0.3, 2.0]], dtype=torch.float64)
    X = X - X.mean(0)
    Y = (X @ W)[torch.randperm(24, generator=torch.Generator().manual_seed(1))]
    start = torch.zeros(2, 2, dtype=torch.float64)
    losses = {}
    for name, method in (("adam", Adam(lr=0.05, tol=1e-7)), ("hybrid", AdamNewton(newton=TrustRegion(tol=1e-7)))):
        found = minimise(LinearPullback(SinkhornObjective(Y, 1.0), X), start, method, max_steps=80)
        losses[name] = found.value
    assert found.converged
    assert found.count("escape") >= 1
    assert found.curvature > 0
    assert losses["hybrid"] < 0.2 * losses["adam"]


def test_pullback_is_the_chain_rule() -> None:
    rng = torch.Generator().manual_seed(3)
    design = torch.randn(5, 2, generator=rng, dtype=torch.float64)
    w, v = torch.randn(2, 2, 1, generator=rng, dtype=torch.float64)

    def function(z: Tensor) -> Tensor:
        return (z.square() * z.exp()).sum()

    at = LinearPullback(objective(function), design)(w)
    direct = AutogradEvaluation(lambda u: function(design @ u), w)
    assert math.isclose(at.value, direct.value)
    torch.testing.assert_close(at.gradient, direct.gradient)
    torch.testing.assert_close(at.hvp(v), direct.hvp(v))
