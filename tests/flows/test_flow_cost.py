"""What a step of a flow costs: solves, passes, gradients, and copies of the features that live at once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.distance import DistanceOptions
from otdd_flash.flows import (
    Box,
    DatasetTransport,
    Euler,
    Flow,
    LineSearch,
    PotentialEnergy,
    StepRefusedError,
    gradient_flow,
    warm,
)
from otdd_flash.ops.blocked import BlockedOperator
from otdd_flash.types import LabeledDataset
from tests.live_bytes import LiveBytes


def pictures(n: int, d: int, seed: int, *, classes: int = 4) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.rand(classes, d, generator=generator)[y] + 0.2 * torch.randn(n, d, generator=generator)
    return otdd.from_arrays(x.clamp(0, 1), y)


SOURCE, TARGET = pictures(120, 20, 1), pictures(120, 20, 2)
OPTIONS = DistanceOptions(label_distance="gaussian_diag", tol=1e-2)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Solves by their problems, passes over the cross problem, and products with a plan."""
    counts: Counter[Any] = Counter()
    solve, marginals, apply = warm.solve, BlockedOperator.marginals, BlockedOperator.apply_plan

    def counting_solve(operator: Any, *args: Any, **kwargs: Any) -> Any:
        counts[operator.problems] += 1
        return solve(operator, *args, **kwargs)

    def counting_marginals(self: BlockedOperator, f: Any, g: Any, epsilon: float, active: Any = None) -> Any:
        counts["passes"] += self.problems[0] == (0, 1) and (active is None or bool(active[0]))
        return marginals(self, f, g, epsilon, active)

    def counting_apply(self: BlockedOperator, problem: int, *args: Any, **kwargs: Any) -> Any:
        counts["apply", self.problems[problem]] += 1
        return apply(self, problem, *args, **kwargs)

    monkeypatch.setattr(warm, "solve", counting_solve)
    monkeypatch.setattr(BlockedOperator, "marginals", counting_marginals)
    monkeypatch.setattr(BlockedOperator, "apply_plan", counting_apply)
    return counts


def test_a_step_is_one_solve_and_one_gradient(counted: Counter[Any]) -> None:
    flow = Flow(DatasetTransport(TARGET, OPTIONS), stepper=LineSearch(0.1))
    state = flow.init(SOURCE)
    _ = state.at.velocity
    assert (counted[((1, 1),)], counted[((0, 1), (0, 0))]) == (1, 1)
    counted.clear()
    state = flow.step(state)
    assert state.rate == 0.1
    assert counted[((0, 1), (0, 0))] == counted["apply", (0, 1)] == counted["apply", (0, 0)] == 1
    # the target's self term is a constant: neither solved nor differentiated again
    assert counted[((1, 1),)] == counted["apply", (1, 1)] == 0


def test_a_rejected_trial_is_one_solve_and_no_gradient(counted: Counter[Any]) -> None:
    flow = Flow(DatasetTransport(TARGET, OPTIONS), stepper=LineSearch(1.6))
    state = flow.init(SOURCE)
    _ = state.at.velocity
    counted.clear()
    state = flow.step(state)
    trials = 1 + round(math.log2(1.6 / state.rate))
    assert trials > 1
    assert counted[((0, 1), (0, 0))] == trials
    assert counted["apply", (0, 1)] == counted["apply", (0, 0)] == 1


def test_a_moved_start_takes_fewer_passes_than_the_last_potentials(
    counted: Counter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[int, float]:
        flow = Flow(DatasetTransport(TARGET, replace(OPTIONS, tol=1e-3)), stepper=Euler(0.1))
        state = flow.init(SOURCE)
        counted.clear()
        for _ in range(5):
            state = flow.step(state)
        return counted["passes"], state.at.value

    moved, value = run()
    start = warm._start
    monkeypatch.setattr(warm, "_start", lambda operator, epsilon, memory, _: start(operator, epsilon, memory, 0.0))
    last, same_value = run()
    assert value == pytest.approx(same_value, rel=1e-3)
    assert moved < 0.85 * last


def test_a_velocity_let_go_is_taken_again() -> None:
    flow = Flow(DatasetTransport(TARGET, OPTIONS))
    state = flow.step(flow.init(SOURCE))
    before, speed = state.at.velocity["x"], state.at.speed
    state.at.release()
    assert state.at.known is None
    torch.testing.assert_close(state.at.velocity["x"], before, rtol=1e-5, atol=1e-6)
    assert state.at.speed == pytest.approx(speed)


def test_a_place_without_a_gradient_is_refused_and_a_line_search_stops_short_of_it() -> None:
    """The value is finite everywhere, its gradient is NaN from one half down."""
    edge = PotentialEnergy(lambda x: (x + 0 * ((x - 0.5) * (x > 0.5)).sqrt())[:, 0])
    start = otdd.from_arrays(torch.tensor([[1.0]]).double(), ["only"])
    found = gradient_flow(start, edge, steps=1, stepper=LineSearch(1.0))
    assert (found.history[1]["rate"], float(found.data.x)) == (0.25, 0.75)
    with pytest.raises(StepRefusedError, match="step 1 was refused: x of class 'only'") as caught:
        gradient_flow(start, edge, steps=1, stepper=Euler(1.0))
    assert caught.value.state is not None
    assert float(caught.value.state.variables["x"]) == 1.0


def test_a_step_holds_few_copies_of_the_features() -> None:
    """Features, their last place, velocity and the solver's operands; once there were forty."""
    source, target = pictures(600, 400, 1), pictures(600, 400, 2)
    options = replace(OPTIONS, memory="streamed", epsilon=4.0)
    flow = Flow(DatasetTransport(target, options), stepper=LineSearch(0.1), projection=Box())
    state = flow.init(source)
    _ = state.at.velocity
    with LiveBytes() as alive:
        flow.step(state)
    assert alive.peak < 18 * source.x.numel() * source.x.element_size()
