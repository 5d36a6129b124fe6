"""Gradients against finite differences of the oracle, autograd through a dense solve, gradcheck and GeomLoss."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from otdd_flash import reference
from otdd_flash.errors import NotConvergedWarning
from otdd_flash.sinkhorn import Execution, SolverOptions, implicit
from otdd_flash.sinkhorn.autograd import DivergenceInputs, LabelTerm, differentiable_divergence

TIGHT = SolverOptions(tol=1e-12, max_iterations=5000)
EPSILON = 0.6


@dataclass(frozen=True, eq=False)
class Data:
    """Everything that a divergence depends on, as leaves."""

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    table: Tensor
    feature_weight: Tensor
    label_weight: Tensor
    x_labels: Tensor
    y_labels: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.x, self.y, self.a, self.b, self.table, self.feature_weight, self.label_weight


def data(n: int = 12, m: int = 9, d: int = 3, seed: int = 0) -> Data:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    table = draw(5, 5).square()
    table = (table + table.T).fill_diagonal_(0.0)
    leaves = draw(n, d), draw(m, d) + 0.5, draw(n).abs() + 0.2, draw(m).abs() + 0.2, table
    scalars = torch.tensor(0.8, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    leaves = tuple(leaf.requires_grad_() for leaf in (*leaves, *scalars))
    return Data(*leaves, torch.arange(n) % 2, torch.arange(m) % 3 + 2)


def value(case: Data, leaves: tuple[Tensor, ...], *, labelled: bool, debiased: bool, memory: str = "auto") -> Tensor:
    x, y, a, b, table, w, label_weight = leaves
    labels = LabelTerm(table, case.x_labels, case.y_labels, label_weight) if labelled else None
    return differentiable_divergence(
        x, y, epsilon=EPSILON, a=a, b=b, labels=labels, feature_weight=w, debiased=debiased, options=TIGHT,
        execution=Execution(memory=memory),
    ).value  # fmt: skip


def oracle(case: Data, leaves: tuple[Tensor, ...], *, labelled: bool, debiased: bool) -> float:
    """The same number from the dense float64 oracle."""
    x, y, a, b, table, w, label_weight = (leaf.detach() for leaf in leaves)
    label_cost = (label_weight * (table + table.T) / 2, case.x_labels, case.y_labels) if labelled else None
    a, b, w = a / a.sum(), b / b.sum(), float(w)
    if debiased:
        return reference.divergence(x, y, a, b, EPSILON, feature_weight=w, label_cost=label_cost)
    return reference.ot_value(reference.cost_matrix(x, y, feature_weight=w, label_cost=label_cost), a, b, EPSILON)


def unrolled(C: Tensor, a: Tensor, b: Tensor, *, symmetric: bool) -> Tensor:
    """``OT_eps`` by plain iterations that autograd can follow."""
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(40 if symmetric else 400):
        if symmetric:
            f = g = (f + reference.softmin(C, g, b.log(), EPSILON)) / 2
        else:
            f = reference.softmin(C, g, b.log(), EPSILON)
            g = reference.softmin(C.T, f, a.log(), EPSILON)
    return a @ f + b @ g - EPSILON * (reference.plan(C, f, g, a, b, EPSILON).sum() - 1)


def dense(case: Data, leaves: tuple[Tensor, ...], *, labelled: bool, debiased: bool) -> Tensor:
    """The divergence as a graph over dense iterations."""
    x, y, a, b, table, w, label_weight = leaves
    a, b, table = a / a.sum(), b / b.sum(), (table + table.T) / 2
    sides = ((x, a, case.x_labels), (y, b, case.y_labels))

    def term(i: int, j: int) -> Tensor:
        (p, p_weights, rows), (q, q_weights, columns) = sides[i], sides[j]
        C = w * (p[:, None] - q[None]).square().sum(-1)
        C = C + label_weight * table[rows][:, columns] if labelled else C
        return unrolled(C, p_weights, q_weights, symmetric=i == j)

    total = term(0, 1)
    return total - term(0, 0) / 2 - term(1, 1) / 2 if debiased else total


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-3))


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_every_gradient_equals_autograd_through_a_dense_solve(labelled: bool, debiased: bool, memory: str) -> None:
    case = data()
    leaves = case.leaves if labelled else (*case.leaves[:4], case.feature_weight)
    found = torch.autograd.grad(value(case, case.leaves, labelled=labelled, debiased=debiased, memory=memory), leaves)
    expected = torch.autograd.grad(dense(case, case.leaves, labelled=labelled, debiased=debiased), leaves)
    for ours, theirs in zip(found, expected, strict=True):
        assert relative(ours, theirs) <= 1e-6


def test_features_by_groups_of_columns_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    case = data()
    whole = torch.autograd.grad(value(case, case.leaves, labelled=True, debiased=True), case.leaves)
    monkeypatch.setattr(implicit, "_GROUP_ELEMENTS", {"cpu": 15})  # of 12 x 3: three groups
    grouped = torch.autograd.grad(value(case, case.leaves, labelled=True, debiased=True), case.leaves)
    for one, other in zip(whole, grouped, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("debiased", [True, False])
def test_every_gradient_equals_finite_differences_of_the_oracle(debiased: bool) -> None:
    case = data()
    found = torch.autograd.grad(value(case, case.leaves, labelled=True, debiased=debiased), case.leaves)
    rng = torch.Generator().manual_seed(7)
    for k, (leaf, gradient) in enumerate(zip(case.leaves, found, strict=True)):
        direction = torch.randn(leaf.shape, generator=rng, dtype=torch.float64)
        h = 1e-4
        sides = []
        for sign in (h, -h):
            moved = tuple(x.detach() + sign * direction if i == k else x for i, x in enumerate(case.leaves))
            sides.append(oracle(case, moved, labelled=True, debiased=debiased))
        slope = (sides[0] - sides[1]) / (2 * h)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("debiased", [True, False])
def test_gradcheck_and_gradgradcheck(debiased: bool) -> None:
    """First and second derivatives in all inputs at once, mixed ones included."""
    case = data(n=4, m=3, d=2)

    def function(*leaves: Tensor) -> Tensor:
        return value(case, leaves, labelled=True, debiased=debiased)

    assert torch.autograd.gradcheck(function, case.leaves, eps=1e-5, atol=1e-7, rtol=1e-6)
    assert torch.autograd.gradgradcheck(function, case.leaves, eps=1e-5, atol=1e-6, rtol=1e-5)


def test_third_derivative_is_refused() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    found = differentiable_divergence(x, x.detach() + 0.3, epsilon=0.5, options=TIGHT).value
    (g,) = torch.autograd.grad(found, x, create_graph=True)
    (h,) = torch.autograd.grad(g[0, 0], x, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable twice"):
        h.sum().backward()


def test_translation_has_a_known_gradient() -> None:
    """``S(x, x + t) = |t|^2`` at every epsilon: gradient ``-2 a_i t``, table of one class without effect."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(20, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    t = torch.randn(5, generator=rng, dtype=torch.float64)
    a = torch.rand(20, generator=rng, dtype=torch.float64) + 0.1
    found = differentiable_divergence(x, x.detach() + t, epsilon=3.0, a=a, b=a, options=TIGHT)
    (gradient,) = torch.autograd.grad(found.value, x, retain_graph=True)
    torch.testing.assert_close(gradient, -2 * (a / a.sum())[:, None] * t, rtol=1e-8, atol=1e-10)
    (root,) = torch.autograd.grad(found.root, x)
    torch.testing.assert_close(root, gradient / (2 * t.norm()), rtol=1e-8, atol=1e-10)


def test_table_gradient_is_the_coupling_of_classes() -> None:
    case = data()
    found = torch.autograd.grad(value(case, case.leaves, labelled=True, debiased=False), case.table)[0]
    inputs = DivergenceInputs.prepare(
        case.x, case.y, a=case.a, b=case.b, feature_weight=case.feature_weight,
        labels=LabelTerm(case.table, case.x_labels, case.y_labels, case.label_weight),
    )  # fmt: skip
    plan = inputs.solve(EPSILON, debiased=False, options=TIGHT).plan
    coupling = plan.class_coupling(case.x_labels, case.y_labels - 2)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    expected[:2, 2:] = float(case.label_weight.detach()) * coupling
    torch.testing.assert_close(found, (expected + expected.T) / 2)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_weights_gradient_is_the_potential_less_its_mean(scale: float) -> None:
    case = data()
    a = (scale * case.a.detach()).requires_grad_()
    found = differentiable_divergence(case.x, case.y, epsilon=EPSILON, a=a, debiased=False, options=TIGHT)
    f = found.certificate.potentials.f
    mean = (a.detach() / a.detach().sum()) @ f
    torch.testing.assert_close(torch.autograd.grad(found.value, a)[0], (f - mean) / a.detach().sum())


def test_root_of_two_identical_points_has_gradient_zero() -> None:
    """C11: zero, not NaN, for the value and its root."""
    x = torch.zeros(2, 3, requires_grad=True)
    for y in (x.detach().clone(), x.clone()):
        found = differentiable_divergence(x, y, epsilon=0.1)
        for number in (found.value, found.root):
            (gradient,) = torch.autograd.grad(number, x, retain_graph=True)
            assert float(number) == 0.0
            assert torch.equal(gradient, torch.zeros_like(x))


def test_root_at_a_shuffled_copy_has_gradient_zero() -> None:
    """Zero within rounding is zero: otherwise rounding noise divided by its own root."""
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    y = x.detach().flip(0).clone()
    found = differentiable_divergence(x, y, epsilon=2.0, options=TIGHT)
    (gradient,) = torch.autograd.grad(found.root, x)
    assert abs(float(found.value)) < 1e-12
    assert float(gradient.abs().max()) == 0.0


def test_gradient_with_respect_to_both_sides_is_antisymmetric() -> None:
    """A common shift changes nothing."""
    case = data()
    gx, gy = torch.autograd.grad(value(case, case.leaves, labelled=True, debiased=True), (case.x, case.y))
    torch.testing.assert_close(gx.sum(0), -gy.sum(0), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [20, 200])
def test_gradients_come_back_in_the_dtype_of_the_input(dtype: torch.dtype, n: int) -> None:
    """C09: and equal those of the same input cast to float32."""
    rng = torch.Generator().manual_seed(n)
    x, y = (torch.randn(n, 3, generator=rng).to(dtype) + shift for shift in (0.0, 0.5))
    gradients = []
    for cast in (dtype, torch.float64 if dtype == torch.float64 else torch.float32):
        leaf = x.to(cast).requires_grad_()
        found = differentiable_divergence(leaf, y.to(cast), epsilon=0.5, options=SolverOptions(tol=1e-5)).value
        gradients.append(torch.autograd.grad(found, leaf)[0])
    assert gradients[0].dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradients[0].double(), gradients[1].double(), rtol=tolerance, atol=tolerance / n)


def test_error_is_proportional_to_the_tolerance() -> None:
    """A loose gradient is the exact one of the problem whose weights are the plan's own marginals."""
    case = data(n=40, m=30)
    x, y = case.x.detach(), case.y.detach()
    exact = gradient_of(x, y, TIGHT)
    errors = []
    for tol in (1e-2, 1e-4, 1e-6):
        options = SolverOptions(tol=tol)
        inputs = DivergenceInputs.prepare(x, y)
        found = inputs.solve(EPSILON, debiased=False, options=options)
        r, c = found.plan.marginals()
        loose = gradient_of(x, y, options)
        assert relative(loose, r.sum() * gradient_of(x, y, TIGHT, a=r, b=c)) < 1e-9
        errors.append(relative(loose, exact))
    assert errors[0] < 1e-1
    assert errors[1] < 2e-2 * errors[0] + 1e-9
    assert errors[2] < 2e-2 * errors[1] + 1e-9


def gradient_of(x: Tensor, y: Tensor, options: SolverOptions, **weights: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    found = differentiable_divergence(leaf, y, epsilon=EPSILON, debiased=False, options=options, **weights).value
    return torch.autograd.grad(found, leaf)[0]


@pytest.mark.parametrize("debiased", [True, False])
def test_gradients_equal_geomloss(debiased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its convention: half the squared distance, epsilon = blur^2; its last epsilon held until it has converged."""
    geomloss = pytest.importorskip("geomloss")
    samples = importlib.import_module("geomloss._legacy.sinkhorn_samples")
    plain = samples.scaling_parameters

    def held(*args: object, **named: object) -> tuple:
        diameter, eps, schedule, rho = plain(*args, **named)
        return diameter, eps, [*schedule, *[schedule[-1]] * 300], rho

    monkeypatch.setattr(samples, "scaling_parameters", held)
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(60, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.rand(50, 2, generator=rng, dtype=torch.float64) + 0.3
    loss = geomloss.SamplesLoss("sinkhorn", p=2, blur=0.3, scaling=0.5, debias=debiased, backend="tensorized")
    expected = torch.autograd.grad(loss(x, y), x)[0]
    ours = differentiable_divergence(x, y, epsilon=0.09, feature_weight=0.5, debiased=debiased, options=TIGHT).value
    assert relative(torch.autograd.grad(ours, x)[0], expected) < 1e-4


def test_float32_gradient_is_near_float64() -> None:
    case = data(n=60, m=50, d=8)
    gradients = [gradient_of(case.x.detach().to(t), case.y.detach().to(t), SolverOptions(tol=1e-5)) for t in
                 (torch.float32, torch.float64)]  # fmt: skip
    assert relative(gradients[0].double(), gradients[1]) < 1e-4


def test_unwanted_inputs_get_no_gradient_and_upstream_is_applied() -> None:
    case = data()
    x = case.x.detach().requires_grad_()
    found = differentiable_divergence(x, case.y.detach(), epsilon=EPSILON, options=TIGHT).value
    single = torch.autograd.grad(found, x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(-3 * found, x)[0], -3 * single)


def test_not_converged_is_said() -> None:
    case = data()
    with pytest.warns(NotConvergedWarning):
        differentiable_divergence(case.x, case.y, epsilon=0.01, options=SolverOptions(tol=1e-9, max_iterations=1))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"a": torch.ones(5)}, "a must have shape"),
        ({"b": -torch.ones(9)}, "b must be non-negative"),
        ({"feature_weight": -1.0}, "feature_weight"),
        ({"labels": LabelTerm(torch.zeros(2, 3), torch.zeros(12).long(), torch.zeros(9).long())}, "table must be"),
        ({"labels": LabelTerm(torch.zeros(2, 2), torch.zeros(12).long(), torch.full((9,), 2))}, "y_labels must lie"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, match: str) -> None:
    case = data()
    with pytest.raises(ValueError, match=match):
        differentiable_divergence(case.x, case.y, epsilon=0.5, **change)
