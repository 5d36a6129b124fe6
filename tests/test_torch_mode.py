"""The caller's torch mode stays outside: the same results under no_grad, inference mode, autocast, other defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.sinkhorn.autograd import differentiable_divergence


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
}


def clouds() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator, dtype=torch.float32) for n in (20, 24)]


X, Y = clouds()
A = otdd.from_arrays(X, torch.arange(20, dtype=torch.int64) % 2, name="a")
B = otdd.from_arrays(Y, torch.arange(24, dtype=torch.int64) % 2, name="b")

CALLS: dict[str, Callable[[], float]] = {
    "dataset_distance": lambda: otdd.dataset_distance(A, B).value,
    "sinkhorn labels": lambda: otdd.dataset_distance(A, B, label_distance="sinkhorn").value,
    "differentiable_distance": lambda: float(otdd.differentiable_distance(A, B).value),
    "SamplesLoss": lambda: float(otdd.SamplesLoss(blur=0.5)(X, Y)),
    "SamplesLoss to a tolerance": lambda: float(otdd.SamplesLoss(blur=0.5, tol=1e-4)(X, Y)),
    "sinkhorn_divergence": lambda: otdd.sinkhorn_divergence(X, Y, epsilon=0.5).value,
    "sinkhorn_batch": lambda: otdd.sinkhorn_batch([(X, Y)], epsilon=0.5)[0].value,
    "differentiable_divergence": lambda: float(differentiable_divergence(X, Y, epsilon=0.5).value),
    "gradient_flow": lambda: otdd.gradient_flow(A, B, steps=2).history[-1]["value"],
    "pairwise": lambda: float(otdd.pairwise([A, B]).values[0, 1]),
    "rank": lambda: otdd.rank([A], B, bootstrap=0).candidates[0].value,
    "values": lambda: float(otdd.values(A, B).scores().sum()),
    "select": lambda: otdd.select(A, B, 5).value,
    "check": lambda: otdd.check(A, B, permutations=20).p_value,
    "sliced_distance": lambda: float(otdd.sliced_distance(A, B, projections=20)),
    "moment_distance": lambda: otdd.moment_distance(A, B),
    "from_arrays": lambda: float(otdd.from_arrays(X.tolist(), [0, 1] * 10).x.sum()),
    "load": lambda: float(otdd.load("iris", max_samples=20).x.sum()),
}


@pytest.mark.filterwarnings("ignore::otdd_flash.NotConvergedWarning")
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_outside_of_any_mode(name: str) -> None:
    expected = CALLS[name]()
    for mode, enter in MODES.items():
        with enter():
            found = CALLS[name]()
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), mode


def test_a_flow_moves_without_gradients_of_the_caller() -> None:
    with torch.no_grad():
        flow = otdd.gradient_flow(A, B, steps=2)
    assert not torch.equal(flow.data.x, A.x)
    assert flow.history[-1]["value"] < flow.history[0]["value"]


def test_the_caller_decides_whether_there_is_a_graph() -> None:
    leaf = X.clone().requires_grad_()
    assert otdd.SamplesLoss(blur=0.5)(leaf, Y).requires_grad
    with torch.no_grad():
        assert not otdd.SamplesLoss(blur=0.5)(leaf, Y).requires_grad


def test_tensors_made_in_inference_mode_are_taken() -> None:
    with torch.inference_mode():
        x = X + 0.0
    found = otdd.sinkhorn_divergence(x, Y, epsilon=0.5).value
    assert found == pytest.approx(otdd.sinkhorn_divergence(X, Y, epsilon=0.5).value, rel=1e-6)
