"""SamplesLoss against GeomLoss itself, and against finite differences where GeomLoss's gradient is another."""

from __future__ import annotations

import itertools

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.sinkhorn.averaged import averaged_schedule

geomloss = pytest.importorskip("geomloss")

SHAPES = [(None, 30, 40, 3), (None, 1, 5, 2), (3, 20, 20, 8), (2, 25, 10, 1)]
BLURS, SCALINGS = (0.02, 0.5), (0.5, 0.8)


def measures(batch: int | None, n: int, m: int, d: int, *, weighted: bool, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(n + m + d)
    lead = () if batch is None else (batch,)
    x, y = (torch.rand(*lead, k, d, generator=generator, dtype=torch.float64) for k in (n, m))
    y = 0.7 * y + 0.4
    if not weighted:
        return x.to(dtype), y.to(dtype)
    a, b = (torch.rand(*lead, k, generator=generator, dtype=torch.float64) + 0.1 for k in (n, m))
    a, b = a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)
    return a.to(dtype), x.to(dtype), b.to(dtype), y.to(dtype)


def evaluated(loss: torch.nn.Module, inputs) -> tuple[torch.Tensor, list[torch.Tensor]]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    value = loss(*leaves)
    value.sum().backward()
    return value.detach(), [t.grad for t in leaves]


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= tolerance * float(theirs.abs().max()) + 1e-12


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reach", [None, 0.3, 2.0])
@pytest.mark.parametrize("debias", [True, False])
def test_values_and_potentials_are_geomlosses(shape: tuple, weighted: bool, reach: float | None, debias: bool) -> None:
    inputs = measures(*shape, weighted=weighted)
    for blur, scaling in itertools.product(BLURS, SCALINGS):
        settings = {"blur": blur, "scaling": scaling, "reach": reach, "debias": debias}
        theirs, ours = geomloss.SamplesLoss(**settings)(*inputs), otdd.SamplesLoss(**settings)(*inputs)
        assert ours.dtype == theirs.dtype
        assert_near(ours, theirs, 1e-10)
        theirs = geomloss.SamplesLoss(**settings, potentials=True)(*inputs)
        ours = otdd.SamplesLoss(**settings, potentials=True)(*inputs)
        for p, q in zip(ours, theirs, strict=True):
            assert_near(p, q.detach().view_as(p), 1e-9)  # GeomLoss adds a batch dimension of one


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("blur", BLURS)
def test_gradients_are_geomlosses(shape: tuple, debias: bool, blur: float) -> None:
    """Of points and weights, balanced."""
    inputs = measures(*shape, weighted=True)
    _, theirs = evaluated(geomloss.SamplesLoss(blur=blur, debias=debias), inputs)
    _, ours = evaluated(otdd.SamplesLoss(blur=blur, debias=debias), inputs)
    for p, q in zip(ours, theirs, strict=True):
        assert_near(p, q, 1e-8)


@pytest.mark.parametrize("debias", [True, False])
def test_gradients_with_reach(debias: bool) -> None:
    """GeomLoss's are too small by a known factor; ours are the derivatives of the converged value."""
    blur, reach = 0.5, 0.6
    inputs = measures(None, 12, 15, 2, weighted=True)
    settings = {"blur": blur, "reach": reach, "debias": debias}
    _, theirs = evaluated(geomloss.SamplesLoss(**settings), inputs)
    _, ours = evaluated(otdd.SamplesLoss(**settings), inputs)
    factor = (reach**2 + blur**2 / 2) / (reach**2 + blur**2)
    for k in (1, 3):
        assert_near(factor * ours[k], theirs[k], 1e-8)
    exact = otdd.SamplesLoss(**settings, tol=1e-12, max_iterations=5000)
    _, gradients = evaluated(exact, inputs)
    for k, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        direction *= inputs[k].abs().max()
        h = 1e-5
        ends = []
        for sign in (h, -h):
            moved = list(inputs)
            moved[k] = inputs[k] + sign * direction * (inputs[k] if k in (0, 2) else 1)
            ends.append(float(exact(*moved)))
        slope = float((gradient * direction * (inputs[k] if k in (0, 2) else 1)).sum())
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [20, 200])
def test_low_precision_inputs(dtype: torch.dtype, n: int) -> None:
    """C09: as the same input cast to float32, which is GeomLoss in float64 to 1e-4; gradients in the input's dtype."""
    inputs = measures(None, n, n - 5, 4, weighted=False, dtype=dtype)
    value, gradients = evaluated(otdd.SamplesLoss(blur=0.1), inputs)
    single, single_gradients = evaluated(otdd.SamplesLoss(blur=0.1), [t.float() for t in inputs])
    theirs, their_gradients = evaluated(geomloss.SamplesLoss(blur=0.1), [t.double() for t in inputs])
    assert value.dtype == torch.float32
    assert float(value) == float(single)
    assert float(value) == pytest.approx(float(theirs), rel=1e-4)
    for p, q, r in zip(gradients, single_gradients, their_gradients, strict=True):
        assert p.dtype == dtype
        torch.testing.assert_close(p, q.to(dtype), rtol=0, atol=0)
        assert_near(q.double(), r, 1e-4)


def test_converged_value_is_the_optimum_and_the_schedules_is_not() -> None:
    """C38: ``tol`` gives the divergence of the dense oracle for the halved cost."""
    x, y = measures(None, 40, 30, 3, weighted=False)
    a, b = (torch.full((k,), 1.0 / k, dtype=torch.float64) for k in (40, 30))
    expected = reference.divergence(x, y, a, b, 0.01, feature_weight=0.5)
    converged = otdd.SamplesLoss(blur=0.1, tol=1e-9)
    assert float(converged(x, y)) == pytest.approx(expected, rel=1e-8)
    error = abs(float(otdd.SamplesLoss(blur=0.1)(x, y)) - expected)
    assert error > 1e-4 * expected
    assert "not converged" in repr(otdd.SamplesLoss())
    with pytest.warns(otdd.NotConvergedWarning):
        otdd.SamplesLoss(blur=0.01, tol=1e-12, max_iterations=2)(x, y)


@pytest.mark.parametrize("backend", ["tensorized", "online", "auto"])
def test_memory_mode_does_not_change_the_number(backend: str) -> None:
    """C05."""
    inputs = measures(2, 50, 60, 3, weighted=False, dtype=torch.float32)
    expected = geomloss.SamplesLoss(blur=0.05)(*(t.double() for t in inputs))
    assert_near(otdd.SamplesLoss(blur=0.05, backend=backend)(*inputs).double(), expected, 1e-4)


@pytest.mark.parametrize("shape", [(None, 30, 40, 3), (3, 20, 20, 8), (1, 1, 1, 2)])
@pytest.mark.parametrize("reach", [None, 0.6])
@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 3e-5)])
def test_stored_costs_give_what_blocks_give(
    shape: tuple, reach: float | None, debias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Values, all gradients and potentials of small problems, with unequal masses where a reach allows them."""
    a, x, b, y = measures(*shape, weighted=True, dtype=dtype)
    inputs = (a if reach is None else 1.5 * a, x, b, y)
    settings = {"blur": 0.1, "reach": reach, "debias": debias}
    small, large = (otdd.SamplesLoss(**settings, backend=backend) for backend in ("tensorized", "online"))
    (value, found), (expected, gradients) = evaluated(small, inputs), evaluated(large, inputs)
    assert_near(value, expected, tolerance)
    for p, q in zip(found, gradients, strict=True):
        assert_near(p, q, 10 * tolerance)
    for p, q in zip(*(otdd.SamplesLoss(**settings, backend=k, potentials=True)(*inputs)
                      for k in ("tensorized", "online")), strict=True):  # fmt: skip
        assert_near(p, q, 10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_cold_start_has_sums_that_need_a_running_maximum(dtype: torch.dtype) -> None:
    """Clouds a thousand blurs apart, and a schedule that starts at the blur."""
    x, y = measures(None, 20, 25, 2, weighted=False, dtype=dtype)
    settings = {"blur": 0.01, "diameter": 0.01, "debias": False}
    expected = geomloss.SamplesLoss(**settings)(x.double(), y.double() + 10)
    assert_near(otdd.SamplesLoss(**settings)(x, y + 10).double(), expected, 1e-5)


def test_only_what_is_asked_for_has_a_gradient() -> None:
    a, x, b, y = measures(None, 12, 15, 2, weighted=True)
    _, everything = evaluated(otdd.SamplesLoss(blur=0.1), (a, x, b, y))
    for k in range(4):
        inputs = [t.clone().requires_grad_(k == position) for position, t in enumerate((a, x, b, y))]
        otdd.SamplesLoss(blur=0.1)(*inputs).backward()
        torch.testing.assert_close(inputs[k].grad, everything[k], rtol=0, atol=0)
        assert all(t.grad is None for position, t in enumerate(inputs) if position != k)


def test_given_diameter_and_far_clouds() -> None:
    x, y = measures(None, 20, 25, 2, weighted=False)
    settings = {"blur": 0.05, "diameter": 4.0, "scaling": 0.7}
    assert_near(otdd.SamplesLoss(**settings)(x, y), geomloss.SamplesLoss(**settings)(x, y), 1e-10)
    near = otdd.SamplesLoss(blur=0.05)(x, y)
    far = otdd.SamplesLoss(blur=0.05, diameter=float((torch.cat([x, y]).amax(0) - torch.cat([x, y]).amin(0)).norm()))
    assert float(far(x + 1e4, y + 1e4)) == pytest.approx(float(near), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_points_of_no_weight(dtype: torch.dtype) -> None:
    """They change no value, and their potentials and weight gradients are GeomLoss's."""
    a, x, b, y = measures(None, 20, 25, 2, weighted=True, dtype=dtype)
    a[[3, 7]] = 0
    a = a / a.sum()
    keep = a > 0
    value, gradients = evaluated(otdd.SamplesLoss(blur=0.1), (a, x, b, y))
    theirs, their_gradients = evaluated(geomloss.SamplesLoss(blur=0.1), (a, x, b, y))
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    assert_near(value, theirs, tolerance)
    for p, q in zip(gradients, their_gradients, strict=True):
        assert_near(p, q, tolerance)
    diameter = float((torch.cat([x, y]).amax(0) - torch.cat([x, y]).amin(0)).norm())
    without = otdd.SamplesLoss(blur=0.1, diameter=diameter)(a[keep], x[keep], b, y)
    assert float(value) == pytest.approx(float(without), rel=tolerance)


def test_one_point_against_itself() -> None:
    """C17, C33 in this convention: half the squared distance; all points in one place give zero."""
    x, y = torch.zeros(1, 2), torch.tensor([[3.0, 0.0]])
    assert float(otdd.SamplesLoss(debias=False)(x, y)) == pytest.approx(4.5, rel=1e-6)
    assert float(otdd.SamplesLoss()(torch.ones(4, 2), torch.ones(3, 2))) == pytest.approx(0.0, abs=1e-9)


def test_trains_as_a_module() -> None:
    """The ways in which a loss is used: in a Module, with ``(n, 1)`` weights, a gradient on one side alone."""
    x, y = measures(None, 20, 25, 2, weighted=False)
    moving = x.clone().requires_grad_()
    loss = otdd.SamplesLoss(blur=0.05)
    optimiser = torch.optim.SGD([moving], lr=10.0)
    first = loss(moving, y).item()
    for _ in range(20):
        optimiser.zero_grad()
        loss(moving, y).backward()
        optimiser.step()
    assert loss(moving, y).item() < 0.05 * first
    a, b = (torch.full((n, 1), 1 / n, dtype=torch.float64) for n in (20, 25))
    assert float(loss(a, x, b, y)) == pytest.approx(float(loss(x, y)), rel=1e-9)
    assert not list(loss.parameters())


def test_cluster_labels_are_said_to_be_without_influence() -> None:
    a, x, b, y = measures(None, 20, 25, 2, weighted=True)
    loss = otdd.SamplesLoss(blur=0.1)
    with pytest.warns(UserWarning, match="dataset_distance"):
        value = loss(torch.arange(20) % 2, a, x, torch.arange(25) % 2, b, y)
    assert float(value) == float(loss(a, x, b, y))
    with pytest.warns(UserWarning, match="labels"), pytest.raises(ValueError, match="l_x must have 20 entries"):
        loss(torch.arange(19), a, x, torch.arange(25), b, y)
    assert float(loss(None, a, x, None, b, y)) == float(value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"loss": "gaussian"}, "not offered.*geomloss"),
        ({"loss": "energy"}, "sinkhorn"),
        ({"loss": "laplacian"}, "not offered"),
        ({"loss": "hausdorff"}, "reach"),
        ({"loss": "sinkhron"}, "geomloss knows"),
        ({"p": 1}, "only p=2"),
        ({"cost": lambda x, y: x}, "dataset_distance"),
        ({"kernel": "rbf"}, "kernel losses"),
        ({"blur": 0.0}, "blur"),
        ({"reach": -1.0}, "reach"),
        ({"scaling": 1.0}, "scaling"),
        ({"backend": "keops"}, "tensorized"),
    ],
)
def test_what_is_not_offered_is_refused(bad: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        otdd.SamplesLoss(**bad)


def test_inputs_are_checked() -> None:
    a, x, b, y = measures(None, 20, 25, 2, weighted=True)
    loss = otdd.SamplesLoss()
    for args, message in (
        ((x,), "got 1 arguments"),
        ((x, y[:, :1]), "x and y must be"),
        ((x, y[None]), "x and y must be"),
        ((a[:-1], x, b, y), r"weights a must have shape \(20,\), got \(19,\)"),
        ((-a, x, b, y), "weights a must be non-negative"),
        ((2 * a, x, b, y), "equal masses, got 2 and 1"),
        ((x * float("nan"), y), "x holds NaN"),
        ((x[:0], y), "must hold points"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*args)
    theirs = geomloss.SamplesLoss(blur=0.5, reach=1.0)(2 * a, x, b, y)
    assert_near(otdd.SamplesLoss(blur=0.5, reach=1.0)(2 * a, x, b, y), theirs, 1e-9)
    exact = otdd.SamplesLoss(blur=0.5, reach=1.0, tol=1e-11)(2 * a, x, b, y)
    slow = geomloss.SamplesLoss(blur=0.5, reach=1.0, scaling=0.99, diameter=20.0)(2 * a, x, b, y)
    assert_near(exact, slow, 1e-3)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("tol", [None, 1e-8])
def test_a_far_reach_tends_to_the_balanced_value(debias: bool, tol: float | None) -> None:
    inputs = measures(None, 20, 25, 2, weighted=True)
    settings = {"blur": 0.3, "debias": debias, "tol": tol, "max_iterations": 5000}
    expected, gradients = evaluated(otdd.SamplesLoss(**settings), inputs)
    assert float(expected) > 0.01
    for reach in (3e4, 1e6, 1e9, 1e200):
        value, found = evaluated(otdd.SamplesLoss(**settings, reach=reach), inputs)
        assert_near(value, expected, 1e-6)
        assert_near(found[1], gradients[1], 1e-5)
        difference = found[0] - gradients[0]  # weights: up to a constant, masses are prescribed
        assert float(difference.max() - difference.min()) < 1e-5


def test_unequal_masses_have_no_far_reach() -> None:
    a, x, b, y = measures(None, 20, 25, 2, weighted=True)
    with pytest.raises(ValueError, match="reach=1e\\+200 is too large for unequal masses"):
        otdd.SamplesLoss(blur=0.3, reach=1e200)(2 * a, x, b, y)
    value = float(otdd.SamplesLoss(blur=0.3, reach=1e3, tol=1e-8, debias=False)(2 * a, x, b, y))
    assert value == pytest.approx(1e6 * (2**0.5 - 1) ** 2, rel=1e-3)  # rho (sqrt(m) - sqrt(k))^2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"debias": "False"}, "debias must be True or False, got 'False'"),
        ({"debias": 0}, "debias must be True or False"),
        ({"potentials": "no"}, "potentials must be"),
        ({"blur": "0.1"}, "blur must be a number, got '0.1'"),
        ({"reach": 1j}, "reach must be a number"),
    ],
)
def test_types_of_settings(bad: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        otdd.SamplesLoss(**bad)


@pytest.mark.parametrize(
    "bad", [{"diameter": float("inf")}, {"diameter": float("nan")}, {"diameter": 1e200}, {"blur": 1e-200}]
)
def test_settings_beyond_floats(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        otdd.SamplesLoss(**bad)


def test_types_and_range_of_inputs() -> None:
    a, x, b, y = measures(None, 20, 25, 2, weighted=True)
    loss = otdd.SamplesLoss()
    for args, message in (
        ((x.numpy(), y), "x must be a torch tensor, got ndarray: pass torch tensors"),
        ((x, y.tolist()), "y must be a torch tensor, got list"),
        ((a.tolist(), x, b, y), "a must be a torch tensor, got list"),
    ):
        with pytest.raises(TypeError, match=message):
            loss(*args)
    for args, message in (
        ((x + 0j, y), "x must be real, got torch.complex128"),
        ((a, x, b + 0j, y), "b must be real"),
        ((x * 1e200, y), "rescale the points"),
        ((x.float() * 1e25, y.float()), "rescale the points"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*args)
        with pytest.raises(ValueError, match=message):
            otdd.SamplesLoss(diameter=1.0)(*args)


def test_schedule() -> None:
    assert averaged_schedule(1.0, 0.25, 0.5) == pytest.approx([1.0, 1.0, 0.25, 0.0625])
    assert averaged_schedule(0.1, 0.5, 0.5) == pytest.approx([0.01, 0.25])
    assert averaged_schedule(0.0, 0.5, 0.5) == [0.25]


@pytest.mark.gpu
def test_same_on_the_gpu() -> None:
    inputs = measures(2, 300, 200, 3, weighted=True, dtype=torch.float32)
    expected, gradients = evaluated(otdd.SamplesLoss(blur=0.1), [t.double() for t in inputs])
    value, found = evaluated(otdd.SamplesLoss(blur=0.1), [t.cuda() for t in inputs])
    assert_near(value.cpu().double(), expected, 1e-4)
    for p, q in zip(found, gradients, strict=True):
        assert_near(p.cpu().double(), q, 1e-3)


@pytest.mark.parametrize(
    ("d", "blur", "most"), [(512, 0.1, 5e-4), (64, 0.05, 5e-4), (3, 0.01, 1e-4), (512, 0.02, 1e-6)]
)
def test_float32_gradients_have_geomlosses_digits_or_more(d: int, blur: float, most: float) -> None:
    """Block by block, of costs that are thousands of epsilons; of hundreds of thousands, in float64."""
    inputs = measures(None, 90, 70, d, weighted=False, dtype=torch.float32)
    _, expected = evaluated(geomloss.SamplesLoss(blur=blur), [t.double() for t in inputs])
    _, theirs = evaluated(geomloss.SamplesLoss(blur=blur), inputs)
    _, ours = evaluated(otdd.SamplesLoss(blur=blur, backend="online"), inputs)
    for p, q, exact in zip(ours, theirs, expected, strict=True):
        error, theirs_error = (float((t.double() - exact).abs().max() / exact.abs().max()) for t in (p, q))
        assert error < min(most, 2 * theirs_error)
