from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.distance import DistanceOptions
from otdd_flash.flows import (
    AugmentedFlow,
    Clustering,
    DatasetTransport,
    Dynamics,
    Euler,
    FeatureFlow,
    Flow,
    Grid,
    InteractionEnergy,
    InternalEnergy,
    JointFlow,
    LineSearch,
    Momentum,
    Noisy,
    PotentialEnergy,
    Stepper,
    StepRefusedError,
    TiedFlow,
    TorchOptimizer,
    feature_transport,
    gradient_flow,
)
from otdd_flash.flows.projections import Box, project_simplex
from otdd_flash.ops import Execution
from otdd_flash.types import LabeledDataset

FEATURES = DistanceOptions(label_distance=None, epsilon=0.1, tol=1e-9)
DIAGONAL = DistanceOptions(label_distance="gaussian_diag", epsilon=0.2, tol=1e-8, max_iterations=5000)
QUADRATIC = PotentialEnergy(lambda x: x.square().sum(1))


def points(*rows: tuple[float, ...], dtype: torch.dtype = torch.float64) -> LabeledDataset:
    return otdd.from_arrays(torch.tensor(rows, dtype=dtype), list(range(len(rows))))


def blobs(centres: Tensor, *, n: int = 12, spread: float = 0.2, seed: int = 0, name: str = "blobs") -> LabeledDataset:
    """``n`` samples around each centre, a class each."""
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(len(centres) * n, centres.shape[1], generator=generator, dtype=torch.float64)
    y = torch.arange(len(centres)).repeat_interleave(n)
    return replace(otdd.from_arrays(centres[y] + noise, y), name=name)


SOURCE = blobs(torch.tensor([[0.0, 0.0], [0.0, 4.0]]).double(), seed=1, name="left")
TARGET = blobs(torch.tensor([[5.0, 0.0], [5.0, 4.0]]).double(), spread=0.4, seed=2, name="right")


# steppers


def test_euler_from_dirac_to_dirac_is_exponential() -> None:
    rate, steps = 0.1, 7
    start, goal = points((0.0, 2.0)), points((1.0, -1.0))
    moved = gradient_flow(start, goal, steps=steps, stepper=Euler(rate), options=FEATURES)
    factor = (1 - 2 * rate) ** steps
    torch.testing.assert_close(moved.data.x, goal.x + factor * (start.x - goal.x))
    assert [h["value"] for h in moved.history] == pytest.approx([10 * (1 - 2 * rate) ** (2 * k) for k in range(8)])


@pytest.mark.parametrize("n", [1, 5])
def test_the_rate_does_not_depend_on_the_number_of_samples(n: int) -> None:
    start = points(*[(1.0 + i, 2.0) for i in range(n)])
    moved = gradient_flow(start, QUADRATIC, steps=4, stepper=Euler(0.1))
    torch.testing.assert_close(moved.data.x, 0.8**4 * start.x)


def test_weights_do_not_change_the_path_in_a_potential() -> None:
    start = otdd.from_arrays(torch.tensor([[1.0], [3.0]]).double(), [0, 1], weights=[0.9, 0.1])
    moved = gradient_flow(start, QUADRATIC, steps=2, stepper=Euler(0.25))
    torch.testing.assert_close(moved.data.x, start.x / 4)
    assert moved.value == pytest.approx((0.9 * 1 + 0.1 * 9) / 16)


def test_momentum_is_polyaks() -> None:
    rate, decay = 0.05, 0.5
    moved = gradient_flow(points((1.0,)), QUADRATIC, steps=6, stepper=Momentum(rate, decay))
    x, v = 1.0, 0.0
    for _ in range(6):
        v = decay * v - rate * 2 * x
        x += v
    assert float(moved.data.x) == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        ("Adam", {"lr": 0.1}),
        ("RMSprop", {"lr": 0.05}),
        ("LBFGS", {"lr": 0.3, "max_iter": 3}),
    ],
)
def test_a_torch_optimiser_does_what_it_does_alone(name: str, settings: dict[str, Any]) -> None:
    start = points((1.0, -3.0))
    moved = gradient_flow(start, QUADRATIC, steps=5, stepper=TorchOptimizer(name, settings))
    x = start.x.clone().requires_grad_()
    optimizer = getattr(torch.optim, name)([x], **settings)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    torch.testing.assert_close(moved.data.x, x.detach())


def test_unknown_optimiser_is_refused() -> None:
    with pytest.raises(ValueError, match="no optimiser 'Adamant'"):
        TorchOptimizer("Adamant")


def test_line_search_falls_where_euler_diverges() -> None:
    steep = PotentialEnergy(lambda x: 50 * x.square().sum(1))
    assert gradient_flow(points((1.0,)), steep, steps=3, stepper=Euler(0.1)).value > 50
    found = gradient_flow(points((1.0,)), steep, steps=8, stepper=LineSearch(0.1))
    values = [h["value"] for h in found.history]
    assert all(new < old for old, new in itertools.pairwise(values))
    assert found.value < 1e-2 * values[0]
    # 0.1, 0.05, 0.025 and 0.0125 are tried: the last is the first with |1 - 100 rate| below one
    assert found.history[1]["rate"] == 0.0125


def test_line_search_counts_the_projected_move() -> None:
    """All coordinates but one are held by the box: the promise of the full gradient could never be kept."""
    start = points((0.0, 0.0, 0.0, 0.5))
    pull = PotentialEnergy(lambda x: 10 * x[:, :3].sum(1) + (x[:, 3] - 1).square())
    found = gradient_flow(start, pull, steps=20, stepper=LineSearch(0.2), projection=Box())
    torch.testing.assert_close(found.data.x, torch.tensor([[0.0, 0.0, 0.0, 1.0]]).double(), atol=1e-3, rtol=0)


def test_line_search_stalls_at_a_minimum() -> None:
    found = gradient_flow(points((0.0,)), QUADRATIC, steps=5, stepper=LineSearch())
    assert (found.reason, found.steps, found.value) == ("stalled", 1, 0.0)


def test_noise_has_its_variance_and_seed() -> None:
    start = otdd.from_arrays(torch.zeros(4000, 1, dtype=torch.float64), [0] * 4000)
    flat = PotentialEnergy(lambda x: 0 * x[:, 0])
    moved = [
        gradient_flow(start, flat, steps=3, stepper=Noisy(Euler(0.1), 0.5), seed=seed).data.x for seed in (0, 0, 1)
    ]
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], moved[2])
    assert float(moved[0].var()) == pytest.approx(3 * 2 * 0.1 * 0.5, rel=0.1)


def test_noise_and_line_search_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="line search cannot be combined with noise"):
        Noisy(LineSearch(), 0.1)


# projections


def test_projections() -> None:
    moved = gradient_flow(points((0.2, 0.9)), points((-1.0, 3.0)), steps=4, stepper=Euler(0.4), options=FEATURES,
                          projection=Box())  # fmt: skip
    torch.testing.assert_close(moved.data.x, torch.tensor([[0.0, 1.0]]).double())
    on_grid = gradient_flow(points((0.0, 0.0)), points((0.5, 0.3)), steps=3, stepper=Euler(0.3), options=FEATURES,
                            projection=Grid())  # fmt: skip
    levels = on_grid.data.x * 255
    torch.testing.assert_close(levels, levels.round())
    torch.testing.assert_close(levels, torch.tensor([[119.0, 72.0]]).double(), atol=1.0, rtol=0)


def test_simplex_projection_is_the_nearest_point() -> None:
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.5, 0.5, 0.6], [-1.0, -1.0, -4.0]]).double()
    expected = [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4], [0.5, 0.5, 0.0]]
    torch.testing.assert_close(
        project_simplex(rows).expand(4, 3)[[0, 1, 3]], torch.tensor(expected).double()[[0, 1, 3]]
    )
    torch.testing.assert_close(project_simplex(rows)[2], rows[2] - 0.2)


# objectives


def test_potential_energy() -> None:
    start = points((1.0, 2.0), (-3.0, 0.5))
    moved = gradient_flow(start, QUADRATIC, steps=9, stepper=Euler(0.07))
    torch.testing.assert_close(moved.data.x, (1 - 2 * 0.07) ** 9 * start.x)


def test_interaction_energy_contracts_to_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """``K = |x - x'|^2``: the velocity of a point is ``2 (x - mean)``."""
    monkeypatch.setattr("otdd_flash.flows.objectives._PAIRS", 5)
    start = points((1.0, 0.0), (3.0, 1.0), (-2.0, 5.0))
    attraction = InteractionEnergy(lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square())
    moved = gradient_flow(start, attraction, steps=5, stepper=Euler(0.1))
    mean = start.x.mean(0)
    torch.testing.assert_close(moved.data.x, mean + 0.8**5 * (start.x - mean))
    assert moved.history[0]["value"] == pytest.approx(float((start.x - mean).square().sum(1).mean()))


def test_internal_energy_and_sums() -> None:
    """``|mean|^2`` pulls the mean alone; the sum with a potential adds its gradient."""
    mean_square = InternalEnergy(lambda x, a: (a @ x).square().sum())
    start = points((1.0, 0.0), (3.0, 2.0))
    mean = start.x.mean(0)
    moved = gradient_flow(start, mean_square, steps=3, stepper=Euler(0.1))
    torch.testing.assert_close(moved.data.x, start.x - mean + 0.8**3 * mean)
    both = gradient_flow(start, mean_square + 0.5 * QUADRATIC, steps=3, stepper=Euler(0.1))
    torch.testing.assert_close(both.data.x, 0.9**3 * (start.x - mean) + 0.7**3 * mean)
    record = both.history[0]
    assert record["value"] == pytest.approx(record["internal_0"] + 0.5 * record["potential_1"])


def test_sum_with_transport_keeps_its_warm_start() -> None:
    objective = feature_transport(TARGET, FEATURES) + 0.1 * QUADRATIC
    found = Flow(objective, stepper=Euler(0.05)).run(SOURCE, steps=2)
    assert {"0.f", "0.g", "0.f_self", "0.target_g", "0.epsilon"} <= set(found.state.at.memory)


@pytest.mark.parametrize("label_distance", [None, "means", "gaussian_diag", "gaussian", "sinkhorn"])
def test_value_is_the_dataset_distance(label_distance: str | None) -> None:
    options = replace(DIAGONAL, label_distance=label_distance)
    found = Flow(DatasetTransport(TARGET, options), FeatureFlow("detached")).init(SOURCE)
    assert found.at.value == pytest.approx(otdd.dataset_distance(SOURCE, TARGET, options=options).value, rel=1e-7)


def test_warm_start_gives_the_value_of_a_cold_one_and_solves_the_target_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[list] = []
    make = Execution.operator
    monkeypatch.setattr(
        Execution, "operator", lambda self, cost, pairs, **kw: (solved.append(pairs), make(self, cost, pairs, **kw))[1]
    )
    flow = Flow(DatasetTransport(TARGET, DIAGONAL), stepper=Euler(0.02))
    found = flow.run(SOURCE, steps=3)
    assert solved.count([(1, 1)]) == 1
    assert solved.count([(0, 1), (0, 0)]) == 4
    cold = otdd.dataset_distance(found.data, TARGET, options=DIAGONAL)
    assert found.value == pytest.approx(cold.value, rel=1e-6)
    again = flow.problem.evaluate(found.state.variables, found.state)
    assert again.record["iterations"] == 0
    assert again.value == pytest.approx(found.value, rel=1e-12)


def test_flow_at_its_target_stays_there() -> None:
    """C11: the gradient at zero is 0, not NaN."""
    found = gradient_flow(TARGET, replace(TARGET, name="copy"), steps=2, stepper=Euler(0.3), options=DIAGONAL)
    assert found.value == 0.0
    torch.testing.assert_close(found.data.x, TARGET.x, atol=1e-12, rtol=0)


def test_other_conventions_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no convention"):
        DatasetTransport(TARGET, DistanceOptions(convention="microsoft"))


@pytest.mark.parametrize("reach", [{"reach": 4.0}, {"reach_y": 4.0}, {"reach_x": 4.0, "reach_y": 3.0}])
def test_an_unbalanced_flow_follows_the_gradient_of_its_value(reach: dict) -> None:
    options = replace(DIAGONAL, tol=1e-9, max_iterations=5000, **reach)
    step = gradient_flow(SOURCE, TARGET, steps=1, stepper=Euler(0.1), options=options)
    x = SOURCE.x.clone().requires_grad_()
    found = otdd.differentiable_distance(replace(SOURCE, x=x), TARGET, options=options)
    (gradient,) = torch.autograd.grad(found.value, x)
    torch.testing.assert_close((SOURCE.x - step.data.x) / 0.1, SOURCE.n * gradient, rtol=1e-3, atol=1e-5)
    longer = gradient_flow(SOURCE, TARGET, steps=5, stepper=Euler(0.1), options=options)
    assert longer.value < found.value.item()
    assert longer.value == pytest.approx(otdd.dataset_distance(longer.data, TARGET, options=options).value, rel=1e-6)


# dynamics

DYNAMICS: list[Callable[[], Dynamics]] = [
    lambda: FeatureFlow("attached"),
    lambda: FeatureFlow("detached"),
    TiedFlow,
    lambda: AugmentedFlow(None),
    lambda: AugmentedFlow(Clustering(every=5)),
    lambda: AugmentedFlow(Clustering("dbscan", every=5)),
    lambda: JointFlow(TARGET),
]


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_every_dynamics_reaches_the_target(dynamics: Callable[[], Dynamics]) -> None:
    found = gradient_flow(SOURCE, TARGET, steps=25, dynamics=dynamics(), stepper=LineSearch(0.2), options=DIAGONAL)
    values = [h["value"] for h in found.history]
    assert all(new <= old for old, new in itertools.pairwise(values))
    assert values[-1] < 0.02 * values[0]
    # both classes found their counterpart
    moved = otdd.dataset_distance(found.data, TARGET, options=DIAGONAL).plan.class_coupling(found.data.y, TARGET.y)
    torch.testing.assert_close(moved.max(1).values, torch.tensor([0.5, 0.5]).double(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("dynamics", [DYNAMICS[0], DYNAMICS[2], DYNAMICS[3], DYNAMICS[6]])
def test_velocity_is_the_gradient_over_the_mass(dynamics: Callable[[], Dynamics]) -> None:
    """Finite differences of the value along random directions of all variables together."""
    flow = Flow(DatasetTransport(TARGET, replace(DIAGONAL, tol=1e-11)), dynamics())
    state = flow.init(SOURCE)
    masses = flow.dynamics.masses(state.variables, state.data)
    generator = torch.Generator().manual_seed(3)
    direction = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in state.variables.items()
    }
    h = 1e-5
    values = [
        flow.problem.evaluate({k: v + sign * h * direction[k] for k, v in state.variables.items()}, state).value
        for sign in (1, -1)
    ]
    slope = sum(float(masses[k] @ (state.at.velocity[k] * direction[k]).sum(1)) for k in masses)
    assert slope == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-6)


def test_detached_moments_hold_the_table_within_a_step() -> None:
    """With one class a side the table is one number: detached, it does not pull at all."""
    start, goal = (blobs(torch.tensor([[c, 0.0]]).double(), n=3, seed=s) for c, s in ((0.0, 1), (3.0, 2)))
    labelled = Flow(DatasetTransport(goal, DIAGONAL), FeatureFlow("detached")).init(start)
    alone = Flow(feature_transport(goal, DIAGONAL)).init(start)
    torch.testing.assert_close(labelled.at.velocity["x"], alone.at.velocity["x"], atol=1e-6, rtol=0)
    assert labelled.at.value > alone.at.value + 8
    attached = Flow(DatasetTransport(goal, DIAGONAL), FeatureFlow("attached")).init(start)
    # the mean of the class is pulled as strongly by the labels as by the features
    ratio = attached.at.velocity["x"].mean(0)[0] / alone.at.velocity["x"].mean(0)[0]
    assert float(ratio) == pytest.approx(2.0, rel=1e-6)


def test_tied_statistics_move_as_one_row_a_class() -> None:
    found = Flow(DatasetTransport(TARGET, DIAGONAL), TiedFlow(), Euler(0.25)).run(SOURCE, steps=1)
    from otdd_flash.flows.particles import diagonal_statistics

    # transport is one class to one class here, so that the statistics go half the way at rate 1/4
    expected = (diagonal_statistics(SOURCE) + diagonal_statistics(TARGET)) / 2
    torch.testing.assert_close(found.state.variables["statistics"], expected, atol=1e-6, rtol=0)


def test_fixed_labels_stay() -> None:
    found = gradient_flow(SOURCE, TARGET, steps=3, dynamics=AugmentedFlow(None), options=DIAGONAL)
    assert torch.equal(found.data.y, SOURCE.y)


@pytest.mark.parametrize("clustering", [Clustering("kmeans", clusters=3, every=5), Clustering("dbscan", every=5)])
def test_two_classes_become_the_three_of_the_target(clustering: Clustering) -> None:
    three = blobs(torch.tensor([[5.0, 0.0], [5.0, 4.0], [5.0, 8.0]]).double(), n=8, seed=4)
    options = replace(DIAGONAL, epsilon=1.0, tol=1e-3)
    found = gradient_flow(
        SOURCE, three, steps=10, dynamics=AugmentedFlow(clustering), stepper=Euler(0.25), options=options
    )
    assert found.data.num_classes == 3
    centres = torch.stack([found.data.x[found.data.y == c].mean(0) for c in range(3)])
    assert sorted(centres[:, 1].tolist()) == pytest.approx([0, 4, 8], abs=0.3)
    assert found.history[4]["classes"] == 2
    assert found.history[5]["classes"] == 3


def test_joint_flow_takes_the_targets_classes() -> None:
    found = gradient_flow(SOURCE, TARGET, steps=15, dynamics=JointFlow(TARGET), options=DIAGONAL)
    assert found.data.class_names == ("right 0", "right 1")
    assert torch.equal(found.data.y, SOURCE.y)
    rows = found.state.variables["labels"]
    torch.testing.assert_close(rows.sum(1), torch.ones(SOURCE.n).double())
    assert float(rows.min()) >= 0


def test_label_statistics_need_diagonal_gaussians() -> None:
    with pytest.raises(ValueError, match="label_distance='gaussian_diag'"):
        gradient_flow(SOURCE, TARGET, steps=1, dynamics=TiedFlow(), options=DistanceOptions())


# what must not go wrong


def wide(seed: int, *, name: str) -> LabeledDataset:
    """10 points a class in d = 784, 300 columns constant (C04)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(20, 784, generator=generator)
    x[:, :300] = 0.5
    return replace(otdd.from_arrays(x, [f"class {i // 10}" for i in range(20)]), name=name)


@pytest.mark.parametrize(("label_distance", "moments"), [("gaussian_diag", "attached"), ("gaussian", "detached")])
def test_few_points_constant_columns_and_a_collapsing_class(label_distance: str, moments: Any) -> None:
    start, goal = wide(1, name="start"), wide(2, name="goal")
    options = DistanceOptions(label_distance=label_distance)
    # a strong pull to the mean: the step lands every point in one place
    collapse = DatasetTransport(goal, options) + 1e4 * PotentialEnergy(lambda x: (x - 0.5).square().sum(1))
    found = gradient_flow(start, collapse, steps=3, dynamics=FeatureFlow(moments), stepper=Euler(0.5 / 1e4))
    assert bool(found.data.x.isfinite().all())
    assert all(math.isfinite(h["value"]) for h in found.history)
    assert float(found.data.x.var(0).max()) < 1e-6


def test_a_step_beyond_all_numbers_is_refused_with_its_class() -> None:
    start = wide(1, name="start")
    away = PotentialEnergy(lambda x: x.square().sum(1) * torch.cat([torch.zeros(10), torch.ones(10)]))
    with pytest.raises(StepRefusedError, match=r"step 1 was refused: x of class 'class 1' .*10 of 20 rows") as caught:
        gradient_flow(start, away, steps=3, stepper=Euler(1e30))
    assert caught.value.state is not None
    assert torch.equal(caught.value.state.variables["x"], start.x)


def test_a_step_beyond_the_precision_is_refused_with_its_class() -> None:
    """Finite, but so far away that rounding of the costs is above epsilon."""
    words = r"step 1 was refused: costs up to .* in torch.float32 \(class 'class [01]' lies farthest out\)"
    options = replace(FEATURES, epsilon=1.0, tol=1e-2)
    with pytest.raises(StepRefusedError, match=words):
        gradient_flow(wide(1, name="start"), wide(2, name="goal"), steps=3, stepper=Euler(1e5), options=options)


def test_line_search_survives_a_rate_beyond_all_numbers() -> None:
    found = gradient_flow(points((1.0,)), QUADRATIC, steps=1, stepper=LineSearch(1e199, shrink=1e-10, trials=25))
    assert found.value < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_same_input_cast_up(dtype: torch.dtype) -> None:
    """C09."""
    low = [replace(side, x=side.x.to(dtype)) for side in (SOURCE, TARGET)]
    high = [replace(side, x=side.x.to(torch.float32)) for side in low]
    found, expected = (
        gradient_flow(a, b, steps=3, stepper=Euler(0.1), options=replace(DIAGONAL, tol=1e-4)) for a, b in (low, high)
    )
    assert found.data.x.dtype == dtype
    assert found.value == expected.value
    assert torch.equal(found.data.x, expected.data.x.to(dtype))


@pytest.mark.parametrize("stepper", [Euler, Momentum, LineSearch])
def test_bad_rates_are_refused(stepper: type[Stepper]) -> None:
    with pytest.raises(ValueError, match=r"rate must be finite and greater than 0, got -1.0"):
        stepper(-1.0)  # type: ignore[call-arg]
