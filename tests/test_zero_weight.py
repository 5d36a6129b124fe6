"""A point of weight zero is the same as no point: all numbers of a padded cloud are those of the cloud alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.flows.second_order import SinkhornObjective
from otdd_flash.sinkhorn import Execution, SolverOptions, sinkhorn_batch, sinkhorn_divergence
from otdd_flash.sinkhorn.autograd import differentiable_divergence
from otdd_flash.sinkhorn.hessian import SinkhornHessian

NEAR, FAR = 0.0, 1e3
PADDINGS = [(1, NEAR), (10, FAR), (1000, NEAR), (1000, FAR)]
PENALTIES = [(None, None), (0.5, 0.5), (None, 2.0)]


class Padded(NamedTuple):
    """A cloud with and without points of weight zero; ``kept`` are the places of its own points."""

    x: Tensor
    a: Tensor
    own: Tensor
    weights: Tensor
    kept: Tensor
    absent: Tensor


def padded(n: int, seed: int, count: int, shift: float, dtype: torch.dtype = torch.float64) -> Padded:
    rng = torch.Generator().manual_seed(seed)
    own = torch.rand(n, 2, generator=rng, dtype=torch.float64) + 0.3 * seed
    weights = torch.rand(n, generator=rng, dtype=torch.float64) + 0.2
    weights = weights / weights.sum()
    rest = torch.rand(count, 2, generator=rng, dtype=torch.float64) + shift
    order = torch.randperm(n + count, generator=rng)
    x, a = torch.empty(n + count, 2, dtype=torch.float64), torch.zeros(n + count, dtype=torch.float64)
    kept, absent = order[:n].sort().values, order[n:].sort().values
    x[kept], x[absent], a[kept] = own, rest, weights
    return Padded(x.to(dtype), a, own.to(dtype), weights, kept, absent)


def both(count: int, shift: float, dtype: torch.dtype = torch.float64) -> tuple[Padded, Padded]:
    return padded(12, 0, count, shift, dtype), padded(9, 1, count, -shift, dtype)


def tight(rho: tuple[float | None, float | None] = (None, None)) -> SolverOptions:
    return SolverOptions(tol=1e-11, max_iterations=20000, rho_x=rho[0], rho_y=rho[1])


def same(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("count", "shift"), PADDINGS)
@pytest.mark.parametrize("blur", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_value_potentials_plan_and_map(count: int, shift: float, blur: float, memory: str) -> None:
    x, y = both(count, shift)
    settings = {"epsilon": blur**2, "options": tight(), "execution": Execution(memory=memory)}
    found = sinkhorn_divergence(x.x, y.x, a=x.a, b=y.a, **settings)
    plain = sinkhorn_divergence(x.own, y.own, a=x.weights, b=y.weights, **settings)
    assert found.converged
    assert found.iterations == pytest.approx(plain.iterations, rel=0.05, abs=1)  # sums are taken in another order
    assert found.value == pytest.approx(plain.value, rel=1e-9)
    (f, g), selves = found.potentials, found.self_potentials
    assert selves is not None
    assert plain.self_potentials is not None
    for side, mine, theirs in ((x, f, plain.potentials.f), (x, selves[0], plain.self_potentials[0]),
                               (y, g, plain.potentials.g), (y, selves[1], plain.self_potentials[1])):  # fmt: skip
        same(mine[side.kept], theirs)
    C = reference.cost_matrix(x.x, y.x)
    scale = float(C.max()) * 1e-14 + 1e-9
    same(f[x.absent], reference.softmin(C, g, y.a.log(), blur**2)[x.absent], scale)
    same(g[y.absent], reference.softmin(C.T, f, x.a.log(), blur**2)[y.absent], scale)
    own = reference.softmin(reference.cost_matrix(x.x, x.x), selves[0], x.a.log(), blur**2)
    same(selves[0][x.absent], own[x.absent], scale)
    plan = found.plan
    assert float(plan.apply(torch.ones(len(y.a), dtype=torch.float64))[x.absent].abs().max()) == 0.0
    images = plan.map()
    same(images[x.kept], plain.plan.map())
    conditional = torch.softmax((g[y.kept] - C[x.absent][:, y.kept]) / blur**2 + y.weights.log(), 1)
    same(images[x.absent], conditional @ y.own, 1e-6)
    labels = plan.transfer_labels(torch.arange(len(y.a)) % 3)
    same(labels.sum(1), torch.ones(len(x.a), dtype=torch.float64))


@pytest.mark.parametrize("rho", PENALTIES[1:])
def test_unbalanced(rho: tuple) -> None:
    x, y = both(10, FAR)
    found = sinkhorn_divergence(x.x, y.x, a=x.a, b=y.a, epsilon=0.1, options=tight(rho))
    plain = sinkhorn_divergence(x.own, y.own, a=x.weights, b=y.weights, epsilon=0.1, options=tight(rho))
    assert found.value == pytest.approx(plain.value, rel=1e-9)
    same(found.potentials.f[x.kept], plain.potentials.f)
    damping = 1.0 if rho[0] is None else 1 / (1 + 0.1 / rho[0])
    C = reference.cost_matrix(x.x, y.x)
    expected = damping * reference.softmin(C, found.potentials.g, y.a.log(), 0.1)
    torch.testing.assert_close(found.potentials.f[x.absent], expected[x.absent], rtol=1e-9, atol=0)
    same(found.plan.map()[x.kept], plain.plan.map())
    assert bool(found.plan.map().isfinite().all())


@pytest.mark.parametrize("shift", [NEAR, 1e6])
def test_precision_is_chosen_by_the_points_with_weight(shift: float) -> None:
    x, y = both(10, shift, torch.float32)
    found = sinkhorn_divergence(x.x, y.x, a=x.a, b=y.a, epsilon=0.1)
    plain = sinkhorn_divergence(x.own, y.own, a=x.weights, b=y.weights, epsilon=0.1)
    assert found.info.precision == plain.info.precision == "fp32"
    assert found.value == pytest.approx(plain.value, rel=1e-5)
    assert bool(found.potentials.f.isfinite().all())


def test_a_cloud_and_its_padded_copy_are_one() -> None:
    x, y = padded(12, 0, 5, NEAR), padded(12, 0, 17, FAR)
    found = sinkhorn_divergence(x.own, y.x, a=x.weights, b=y.a, epsilon=0.1, options=tight())
    assert found.value == 0.0
    assert found.potentials.f.shape == (12,)
    assert found.potentials.g.shape == (29,)
    both_padded = sinkhorn_divergence(x.x, y.x, a=x.a, b=y.a, epsilon=0.1, options=tight())
    assert both_padded.value == 0.0
    expected = reference.softmin(reference.cost_matrix(y.x, x.own), found.potentials.f, x.weights.log(), 0.1)
    same(found.potentials.g, expected, 1e-7)
    a, b = x.a.clone().requires_grad_(), y.a.clone().requires_grad_()
    points = x.x.clone().requires_grad_()
    value = differentiable_divergence(points, y.x, a=a, b=b, epsilon=0.1, options=tight()).value
    for gradient in torch.autograd.grad(value, (points, a, b)):
        assert float(gradient.abs().max()) == 0.0


@pytest.mark.parametrize(("count", "shift"), PADDINGS)
@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("debiased", [True, False])
def test_gradients_and_hessian(count: int, shift: float, rho: tuple, debiased: bool) -> None:
    x, y = both(count, shift)
    settings = {"epsilon": 0.1, "options": tight(rho), "debiased": debiased}
    gradients = []
    for points, a, other, b in ((x.x, x.a, y.x, y.a), (x.own, x.weights, y.own, y.weights)):
        leaves = [t.clone().requires_grad_() for t in (points, a, other, b)]
        found = differentiable_divergence(leaves[0], leaves[2], a=leaves[1], b=leaves[3], **settings)
        gradients.append((found.value.detach(), *torch.autograd.grad(found.value, leaves)))
    mine, theirs = gradients
    same(mine[0], theirs[0])
    for k, side in ((1, x), (3, y)):
        same(mine[k][side.kept], theirs[k])
        same(mine[k + 1][side.kept], theirs[k + 1], 1e-8)
        assert float(mine[k][side.absent].abs().max()) == 0.0
    found = sinkhorn_divergence(x.x, y.x, a=x.a, b=y.a, **settings)
    plain = sinkhorn_divergence(x.own, y.own, a=x.weights, b=y.weights, **settings)
    for name, side in (("x", x), ("y", y)):
        v = torch.randn(side.x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        product = SinkhornHessian(found, side=name) @ v
        same(product[side.kept], SinkhornHessian(plain, side=name) @ v[side.kept], 1e-7)
        assert float(product[side.absent].abs().max()) == 0.0


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("debiased", [True, False])
def test_weight_gradient_is_the_derivative_of_putting_mass_there(rho: tuple, debiased: bool) -> None:
    """By one-sided differences, extrapolated to no mass at all."""
    x, y = both(3, NEAR)

    def value(a: Tensor) -> Tensor:
        return differentiable_divergence(
            x.x, y.x, a=a, b=y.a, epsilon=0.1, options=tight(rho), debiased=debiased
        ).value  # fmt: skip

    a = x.a.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(a), a)
    start = float(value(x.a))
    for i in x.absent.tolist():
        slopes = []
        for h in (1e-4, 2e-4):
            moved = x.a.clone()
            moved[i] = h
            slopes.append((float(value(moved)) - start) / h)
        assert 2 * slopes[0] - slopes[1] == pytest.approx(float(gradient[i]), abs=1e-5)


@pytest.mark.parametrize("rho", PENALTIES)
@pytest.mark.parametrize("debiased", [True, False])
def test_second_derivatives_where_mass_is_put_at_such_points(rho: tuple, debiased: bool) -> None:
    """In points and weights at once, by one-sided differences of the gradient, extrapolated to no step at all."""
    x, y = both(3, NEAR)
    starts = [x.x, x.a, y.x, y.a]
    rng = torch.Generator().manual_seed(1)
    v = [torch.randn(t.shape, generator=rng, dtype=torch.float64) for t in starts]
    for k, side in ((1, x), (3, y)):
        v[k][side.absent] = v[k][side.absent].abs()

    def gradient(h: float, *, graph: bool = False) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        leaves = [(t + h * d).requires_grad_() for t, d in zip(starts, v, strict=True)]
        value = differentiable_divergence(
            leaves[0], leaves[2], a=leaves[1], b=leaves[3], epsilon=0.1, options=tight(rho), debiased=debiased
        ).value
        return leaves, torch.autograd.grad(value, leaves, create_graph=graph)

    leaves, first = gradient(0.0, graph=True)
    products = torch.autograd.grad(sum((g * d).sum() for g, d in zip(first, v, strict=True)), leaves)
    h = 2e-5
    steps = [gradient(k * h)[1] for k in (1, 2, 3)]
    for product, start, *ends in zip(products, first, *steps, strict=True):
        slope = (-11 * start.detach() + 18 * ends[0] - 9 * ends[1] + 2 * ends[2]) / (6 * h)
        torch.testing.assert_close(product, slope, rtol=1e-4, atol=1e-4 * float(slope.abs().max()))


def test_objective_that_passes_its_padded_target() -> None:
    y = padded(12, 0, 5, NEAR)
    objective = SinkhornObjective(y.x, 0.1, a=y.weights, b=y.a)
    first = objective(y.own + 0.1)
    assert objective(y.own).value == 0.0
    again = objective(y.own + 0.1)
    assert again.value == pytest.approx(first.value, rel=1e-7)
    same(again.hvp(y.own), first.hvp(y.own), 1e-6)


@pytest.mark.parametrize("tol", [None, 1e-7])
def test_samples_loss_with_half_the_target_away(tol: float | None) -> None:
    """All mass must go to the one point that has weight: half of it by one."""
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    settings = {"blur": 0.01, "scaling": 0.9, "debias": False, "tol": tol}
    value = otdd.SamplesLoss(**settings)(a, x, b, x.detach())
    to_x, to_a, to_b = torch.autograd.grad(value, (x, a, b))
    assert value.item() == pytest.approx(0.25, rel=1e-9)
    same(to_x, torch.tensor([[0.0], [0.5]], dtype=torch.float64))
    f, g = otdd.SamplesLoss(**settings, potentials=True)(a, x, b, x)
    same(f - f[0], torch.tensor([0.0, 0.5], dtype=torch.float64))
    same(to_a - to_a[0], f - f[0])
    same(to_b, g, 1e-6)
    near = 0.5 - 1e-4 * float(torch.tensor(2.0).log())  # the half at the other end would stay: -C plus eps log 1/a
    assert float(g[0] - g[1]) == pytest.approx(near, abs=1e-6)


@pytest.mark.parametrize(("count", "shift"), PADDINGS)
@pytest.mark.parametrize("blur", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("reach", [None, 0.5])
@pytest.mark.parametrize("tol", [None, 1e-8])
def test_samples_loss(count: int, shift: float, blur: float, reach: float | None, tol: float | None) -> None:
    x, y = both(count, shift)
    for debias in (True, False):
        loss = otdd.SamplesLoss(blur=blur, reach=reach, tol=tol, debias=debias, max_iterations=20000)
        results = []
        for inputs in ((x.a, x.x, y.a, y.x), (x.weights, x.own, y.weights, y.own)):
            leaves = [t.clone().requires_grad_() for t in inputs]
            value = loss(*leaves)
            results.append((value.detach(), *torch.autograd.grad(value, leaves)))
        mine, theirs = results
        same(mine[0], theirs[0])
        for k, side in ((1, x), (3, y)):
            same(mine[k][side.kept], theirs[k], 1e-7)
            same(mine[k + 1][side.kept], theirs[k + 1], 1e-7)
            assert float(mine[k + 1][side.absent].abs().max()) == 0.0
            assert bool(mine[k].isfinite().all())


def test_samples_loss_of_a_batch_with_padding_of_its_own_each() -> None:
    sides = [padded(6 + k, k, 6 - k, FAR) for k in range(4)]
    x, a = torch.stack([side.x for side in sides]), torch.stack([side.a for side in sides])
    y = torch.rand(4, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    b = torch.full((4, 5), 0.2, dtype=torch.float64)
    loss = otdd.SamplesLoss(blur=0.1, diameter=2.0)
    points = x.clone().requires_grad_()
    values = loss(a, points, b, y)
    (gradient,) = torch.autograd.grad(values.sum(), points)
    for k, side in enumerate(sides):
        own = side.own.clone().requires_grad_()
        single = loss(side.weights, own, b[k], y[k])
        same(values[k].detach(), single.detach())
        same(gradient[k][side.kept], torch.autograd.grad(single, own)[0])
    with pytest.raises(ValueError, match="positive sum for every measure"):
        loss(a * torch.tensor([1.0, 0, 1, 1])[:, None], x, b, y)


@pytest.mark.parametrize("shift", [NEAR, 1e6])
def test_batch_of_pairs(shift: float) -> None:
    sides = [padded(5 + k, k, 3 * k, shift, torch.float32) for k in range(4)]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 3)]
    mine = sinkhorn_batch(
        [(sides[i].x, sides[j].x, sides[i].a, sides[j].a) for i, j in pairs],
        epsilon=0.1,
        options=SolverOptions(tol=1e-6),
    )
    theirs = sinkhorn_batch(
        [(sides[i].own, sides[j].own, sides[i].weights, sides[j].weights) for i, j in pairs], epsilon=0.1,
        options=SolverOptions(tol=1e-6),
    )  # fmt: skip
    for (i, _), one, other in zip(pairs, mine, theirs, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-5, abs=1e-7)
        assert one.potentials.f.shape == sides[i].a.shape
        same(one.potentials.f[sides[i].kept], other.potentials.f, 1e-5)


def test_data_sets_leave_such_rows_out() -> None:
    x, y = padded(40, 0, 8, FAR), padded(30, 1, 8, FAR)
    labels = [torch.arange(len(side.a)) % 3 for side in (x, y)]
    mine = [otdd.from_arrays(s.x, c, weights=s.a) for s, c in zip((x, y), labels, strict=True)]
    theirs = [otdd.from_arrays(s.own, c[s.kept], weights=s.weights) for s, c in zip((x, y), labels, strict=True)]
    assert mine[0].dropped == {"zero weight": 8}
    for method in ("gaussian", "sinkhorn"):
        assert otdd.dataset_distance(*mine, label_distance=method).value == pytest.approx(
            otdd.dataset_distance(*theirs, label_distance=method).value, rel=1e-12
        )
    options = otdd.DistanceOptions(label_distance="means")
    ends = [otdd.gradient_flow(*pair, steps=2, options=options).data.x for pair in (mine, theirs)]
    same(*ends)


@pytest.mark.parametrize("label_distance", ["gaussian", "gaussian_diag", "means", "sinkhorn"])
def test_a_class_without_mass_is_not_there(label_distance: str) -> None:
    side, target = padded(12, 0, 5, NEAR), padded(9, 1, 0, NEAR)
    classes = torch.arange(12) % 2
    y = torch.full((17,), 2)
    y[side.kept] = classes
    whole = otdd.LabeledDataset(side.x, y, ("0", "1", "2"), side.a, name="a")
    alone = otdd.from_arrays(side.own, classes, weights=side.weights, name="a")
    other = otdd.from_arrays(target.own, torch.arange(9) % 2, name="b")
    calls: list[Callable[[otdd.LabeledDataset], float]] = [
        lambda data: otdd.dataset_distance(data, other, label_distance=label_distance, tol=1e-8).value,
        lambda data: float(otdd.pairwise([data, other], label_distance=label_distance, tol=1e-8).values[0, 1]),
        lambda data: otdd.rank([data], other, label_distance=label_distance, bootstrap=0, tol=1e-8).candidates[0].value,
        lambda data: otdd.moment_distance(data, other),
    ]
    for call in calls:
        assert call(whole) == pytest.approx(call(alone), rel=1e-6)


@pytest.mark.parametrize("method", ["means", "gaussian_diag", "gaussian", "sinkhorn"])
def test_a_far_class_without_mass_changes_nothing(method: str) -> None:
    """Neither the bound of the costs, nor class problems, nor the stated error may see it, alone or in a matrix."""
    far, target, near = _with_a_far_class()
    settings = {"label_distance": method, "tol": 1e-6}
    found, plain = (otdd.dataset_distance(side, target, **settings) for side in (far, near))
    assert found.converged
    assert found.value == pytest.approx(plain.value, rel=1e-5)
    assert found.error == pytest.approx(plain.error, rel=0.5)
    matrix, alone = (
        otdd.pairwise({"a": side, "b": target}, **settings, epsilon=0.5, label_epsilon=0.5) for side in (far, near)
    )
    assert matrix.converged
    assert float(matrix.values[0, 1]) == pytest.approx(float(alone.values[0, 1]), rel=1e-5)


def test_points_without_mass_stay_where_they_are_in_a_flow() -> None:
    far, target, near = _with_a_far_class()
    absent = far.normalised_weights == 0
    moved, plain = (otdd.gradient_flow(side, target, steps=2) for side in (far, near))
    assert torch.equal(moved.data.x[absent], far.x[absent])
    torch.testing.assert_close(moved.data.x[~absent], plain.data.x, rtol=1e-4, atol=1e-4)


def _with_a_far_class() -> tuple[otdd.LabeledDataset, otdd.LabeledDataset, otdd.LabeledDataset]:
    """A made set whose class ``b`` is far away and without mass, a target, and the set without that class."""
    rng = torch.Generator().manual_seed(3)
    x, y = torch.randn(20, 2, generator=rng, dtype=torch.float64), torch.arange(20) % 2
    target = otdd.from_arrays(torch.randn(20, 2, generator=rng, dtype=torch.float64) + 3, y.numpy())
    far = otdd.LabeledDataset(
        x=torch.where(y[:, None] == 1, 1e9, x), y=y, class_names=("a", "b"), weights=(y == 0).double() / 10
    )
    return far, target, far.subset(y == 0)
