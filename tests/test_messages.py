"""Wrong arguments of public functions are refused by name, before anything is computed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import flows, screening
from otdd_flash.sinkhorn import Execution, SolverOptions

ROOT = Path(__file__).resolve().parents[1]
RNG = np.random.default_rng(0)
A = otdd.from_arrays(RNG.normal(size=(12, 2)), np.arange(12) % 3)
B = otdd.from_arrays(RNG.normal(size=(10, 2)) + 0.5, np.arange(10) % 2)

ONE_SET_FOR_TWO: list[Callable[..., Any]] = [
    otdd.dataset_distance, otdd.differentiable_distance, otdd.gradient_flow, otdd.sliced_distance,
    otdd.moment_distance, otdd.values, otdd.check, otdd.assert_same_distribution,
]  # fmt: skip
WITH_OPTIONS: list[Callable[..., Any]] = [
    otdd.dataset_distance, otdd.differentiable_distance, otdd.gradient_flow, otdd.values, otdd.check,
    otdd.assert_same_distribution, lambda a, b, **given: otdd.select(a, b, 3, **given),
    lambda a, b, **given: otdd.rank([a], b, bootstrap=0, **given), lambda a, b, **given: otdd.pairwise([a, b], **given),
    lambda a, b, **given: flows.transfer_check(a, a, b, **given),
    lambda a, b, **given: flows.feature_transport(b, **given),
]  # fmt: skip


@pytest.mark.parametrize("wrong", [None, "mnist", A.x, (A.x, A.y), 3.5], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("function", ONE_SET_FOR_TWO, ids=lambda function: function.__name__)
def test_what_is_no_data_set_is_named_with_the_way_to_make_one(function: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"(source|pool|reference) must be a LabeledDataset, got .*from_arrays"):
        function(wrong, B)
    if function is not otdd.gradient_flow:
        with pytest.raises(TypeError, match=r"(target|batch) must be a LabeledDataset, got .*from_arrays"):
            function(A, wrong)


@pytest.mark.parametrize("wrong", [{"tol": 1e-3}, {}, 0, False, "", (), A], ids=repr)
@pytest.mark.parametrize("function", WITH_OPTIONS)
def test_options_of_another_type_are_refused_falsy_ones_too(function: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"options must be a (Distance|Check)Options or None, got .*Options\(\.\.\.\)"):
        function(A, B, options=wrong)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(TypeError, match=r"no argument max_iteration \(did you mean max_iterations"):
        otdd.dataset_distance(A, B, max_iteration=5)
    with pytest.raises(TypeError, match=r"gradient_flow has no argument colour; besides its own it takes dynamics"):
        otdd.gradient_flow(A, B, colour=5)
    with pytest.raises(TypeError, match=r"check has no argument permutation \(did you mean permutations"):
        otdd.check(A, B, permutation=5)


FLAGS: list[tuple[str, Callable[[Any], Any]]] = [
    ("parts", lambda flag: otdd.values(A, B, parts=flag)),
    ("debiased", lambda flag: otdd.sinkhorn_divergence(A.x, B.x, epsilon=1.0, debiased=flag)),
    ("debiased", lambda flag: otdd.differentiable_divergence(A.x, B.x, epsilon=1.0, debiased=flag)),
    ("strict", lambda flag: otdd.sinkhorn_batch([(A.x, B.x)], epsilon=1.0, strict=flag)),
    ("deterministic", lambda flag: Execution(deterministic=flag)),
    ("inner_debiased", lambda flag: otdd.MicrosoftConvention(inner_debiased=flag)),
    ("download", lambda flag: otdd.load("iris", download=flag)),
]


@pytest.mark.parametrize(("name", "call"), FLAGS)
@pytest.mark.parametrize("flag", ["False", 1, None])
def test_a_flag_is_a_bool(name: str, call: Callable[[Any], Any], flag: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {flag!r}"):
        call(flag)


NUMBERS: list[tuple[str, Callable[[], Any]]] = [
    ("steps", lambda: otdd.gradient_flow(A, B, steps=float("nan"))),  # type: ignore[arg-type]
    ("steps", lambda: otdd.gradient_flow(A, B, steps=float("inf"))),  # type: ignore[arg-type]
    ("steps", lambda: otdd.gradient_flow(A, B, steps=1.5)),  # type: ignore[arg-type]
    ("steps", lambda: otdd.gradient_flow(A, B, steps=2**63)),
    ("seed", lambda: otdd.gradient_flow(A, B, seed="0")),
    ("rate", lambda: flows.Euler(rate="fast")),  # type: ignore[arg-type]
    ("rate", lambda: flows.LineSearch(rate=float("nan"))),
    ("temperature", lambda: flows.Noisy(flows.Euler(), float("nan"))),
    ("patience", lambda: flows.EarlyStopping(patience=0.5)),  # type: ignore[arg-type]
    ("max_inner", lambda: flows.NewtonCG(max_inner=-1)),
    ("workers", lambda: otdd.pairwise([A, B], workers="2")),  # type: ignore[arg-type]
    ("workers", lambda: otdd.pairwise([A, B], workers=0)),
    ("max_samples", lambda: otdd.dataset_distance(A, B, max_samples=5.0)),
    ("seed", lambda: otdd.dataset_distance(A, B, max_samples=5, seed=None)),
    ("seed", lambda: otdd.sliced_distance(A, B, seed=1.5)),  # type: ignore[arg-type]
    ("quantiles", lambda: otdd.screening_matrix([A, B], quantiles="7")),  # type: ignore[arg-type]
    ("keep", lambda: otdd.screen_then_refine([1, 2], abs, abs, keep=float("nan"))),
    ("n_to_select", lambda: otdd.select(A, B, "3")),  # type: ignore[arg-type]
    ("level", lambda: otdd.rank([A], B, bootstrap=0, level=float("nan"))),
    ("threshold", lambda: otdd.CheckOptions(threshold="1")),  # type: ignore[arg-type]
    ("tol", lambda: SolverOptions(tol="1e-3")),  # type: ignore[arg-type]
    ("epsilon", lambda: otdd.sinkhorn_divergence(A.x, B.x, epsilon=[1.0])),  # type: ignore[arg-type]
    ("feature_weight", lambda: otdd.moment_distance(A, B, feature_weight=-1)),
    ("relative_epsilon", lambda: otdd.moment_distance(A, B, relative_epsilon=-0.5)),
]


@pytest.mark.parametrize(("name", "call"), NUMBERS)
def test_a_number_is_refused_by_name(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be .*, got "):
        call()


def test_numbers_of_numpy_become_plain_ones() -> None:
    options = otdd.DistanceOptions(epsilon=np.float32(0.5), max_samples=np.int64(5), feature_weight=2)
    assert (type(options.epsilon), type(options.max_samples), options.feature_weight) == (float, int, 2.0)
    assert otdd.dataset_distance(A, B, relative_epsilon=np.float32(0.5)).to_dict()["relative_epsilon"] == 0.5


def test_flows_name_what_they_were_given() -> None:
    with pytest.raises(TypeError, match=r"resume must be a Checkpoint or None, got 'path': give flows\.Check"):
        otdd.gradient_flow(A, B, resume="path")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"stepper must be a Stepper, got the class Euler: give flows\.LineSearch\(\)"):
        otdd.gradient_flow(A, B, stepper=flows.Euler)
    with pytest.raises(TypeError, match=r"callbacks must be a list of flows\.Callback, got function"):
        otdd.gradient_flow(A, B, callbacks=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projection must give a tensor of the shape of the features, got None"):
        otdd.gradient_flow(A, B, projection=lambda x: None)
    with pytest.raises(TypeError, match="objective must be a function, got None"):
        flows.minimise(None, A.x, flows.NewtonCG())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"method must be NewtonCG\(\), .* or alike, got the class NewtonCG"):
        flows.minimise(flows.SinkhornObjective(B.x, 1.0), A.x, flows.NewtonCG)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"w must be a torch tensor, got ndarray of shape \(12, 2\)"):
        flows.minimise(flows.SinkhornObjective(B.x, 1.0), A.x.numpy(), flows.NewtonCG())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="flowed must have the 12 rows of source, one each, got 10"):
        flows.transfer_check(A, B, B)


def test_a_hessian_names_what_it_was_given() -> None:
    with pytest.raises(TypeError, match="found must be a Divergence, got None"):
        otdd.SinkhornHessian(None)  # type: ignore[arg-type]
    hessian = otdd.SinkhornHessian(otdd.sinkhorn_divergence(A.x, B.x, epsilon=1.0))
    with pytest.raises(TypeError, match="v must be a torch tensor, got list: give"):
        hessian @ list(range(100))  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"right must have shape \(12, 2\) or \(24,\) or \(24, n\), got \(3,\)"):
        hessian.solve(torch.ones(3))
    with pytest.raises(ValueError, match="right holds NaN or infinity"):
        hessian.solve(torch.full((24,), torch.nan))
    with pytest.raises(ValueError, match="start must be finite and not zero"):
        hessian.extreme_eigenvalues(start=torch.zeros(24))
    with pytest.raises(TypeError, match=r"count must be an integer, got 1\.0"):
        hessian.extreme_eigenvalues(1.0)  # type: ignore[arg-type]


TENSORS: list[tuple[Callable[[], torch.Tensor], str]] = [
    (lambda: torch.quantize_per_tensor(A.x.float(), 0.1, 0, torch.quint8), r"plain numbers, got torch\.quint8.*dequan"),
    (lambda: A.x.to_sparse(), r"dense tensor, got torch\.sparse_coo: call to_dense\(\)"),
    (lambda: A.x + 0j, "real torch tensor, got torch.complex128"),
    (lambda: A.x.to("meta"), "on the device meta and holds no numbers"),
]


@pytest.mark.parametrize(("make", "message"), TENSORS)
def test_tensors_without_plain_numbers_are_refused(make: Callable[[], torch.Tensor], message: str) -> None:
    calls = (
        lambda x: otdd.sinkhorn_divergence(x, B.x, epsilon=1.0),
        lambda x: otdd.differentiable_divergence(x, B.x, epsilon=1.0),
        lambda x: otdd.sinkhorn_batch([(x, B.x)], epsilon=1.0),
        lambda x: flows.SinkhornObjective(B.x, 1.0)(x),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call(make())


def test_values_name_what_they_were_asked_for() -> None:
    values = otdd.values(A, B, relative_epsilon=0.1)
    assert values.mislabelled(0).tolist() == []
    for wrong, message in ((0.1, "an integer, got 0.1"), (-1, "at least 0, got -1"), (True, "an integer, got True")):
        with pytest.raises((TypeError, ValueError), match=f"count must be {message}"):
            values.mislabelled(wrong)
    with pytest.raises(ValueError, match=r"part must be one of total, features, labels, got \["):
        values.scores(["total"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="within_class must be True or False, got 'no'"):
        values.order(within_class="no")  # type: ignore[arg-type]


def test_a_data_set_made_by_hand_has_its_parts_checked() -> None:
    with pytest.raises(TypeError, match=r"x must be a Tensor, got ndarray.*from_arrays"):
        otdd.LabeledDataset(A.x.numpy(), A.y, A.class_names)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"y must be \(12,\) int64, got \(10,\)"):
        otdd.LabeledDataset(A.x, B.y, A.class_names)
    with pytest.raises(ValueError, match=r"weights must be \(12,\), one a row of x, got \(3,\)"):
        otdd.LabeledDataset(A.x, A.y, A.class_names, weights=torch.ones(3))
    with pytest.raises(ValueError, match="device must be one that holds numbers"):
        A.to("meta")


def test_lists_of_sets_name_the_entry() -> None:
    with pytest.raises(TypeError, match=r"datasets\[1\] must be a LabeledDataset, got None"):
        otdd.screening_matrix([A, None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="datasets must be a list of LabeledDataset, got"):
        screening.Slices.draw(A)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pool must hold at least one data set, got none"):
        otdd.select([], B, 3)


def test_mutated_calls_are_answered_well() -> None:
    """A short run of the script; the long one is ``scripts/mutate_calls.py --count 6000``."""
    command = [sys.executable, str(ROOT / "scripts" / "mutate_calls.py"), "--count", "150", "--seed", "7"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    assert "150 calls of" in found.stdout
