"""The caller's torch mode stays outside: the same results under no_grad, inference mode, autocast, other defaults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.selection.select import SearchOptions
from otdd_flash.torch_mode import plain_torch


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
LABELS = [0, 1] * 10
DISTANCE = otdd.dataset_distance(A, B)


def from_dataframe() -> float:
    frame = pytest.importorskip("pandas").DataFrame({"u": X[:, 0].tolist(), "v": X[:, 1].tolist(), "label": LABELS})
    return float(otdd.from_dataframe(frame, label="label").x.sum())


def from_huggingface() -> float:
    table = pytest.importorskip("datasets").Dataset.from_dict({"u": X.tolist(), "label": LABELS})
    return float(otdd.from_huggingface(table, features="u").x.sum())


def from_torch() -> float:
    return float(otdd.from_torch(torch.utils.data.TensorDataset(X, A.y)).x.sum())


def selector() -> float:
    pytest.importorskip("sklearn")
    found = otdd.OTDDSelector(5, steps=3, exchanges=2).fit(X.numpy(), A.y.numpy(), target=B)
    return found.selection_.value


def report(tmp_path: Path) -> float:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    return float(otdd.report(DISTANCE, tmp_path / "report.html").stat().st_size)


def hessian() -> float:
    return float((otdd.SinkhornHessian(otdd.sinkhorn_divergence(X, Y, epsilon=0.5)) @ X.new_ones(60)).sum())


def labelled_divergence() -> float:
    table = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    return float(otdd.differentiable_divergence(X, Y, epsilon=0.5, labels=otdd.LabelTerm(table, A.y, B.y)).value)


def drift_callback() -> float:
    found = otdd.DriftCallback(otdd.DriftCheck(A, permutations=20), every=1, on_drift=lambda found: None)(Y, B.y)
    assert found is not None
    return found.value


def made_by_hand() -> float:
    data = otdd.LabeledDataset(X, A.y, ("0", "1"), weights=A.normalised_weights)
    return float(data.normalised_weights @ data.x.double().sum(1))


def screened() -> float:
    found = otdd.screen_then_refine(
        [A, B], lambda s: float(s.x.sum()), lambda s: otdd.dataset_distance(s, B).value, keep=1
    )
    return next(iter(found.refined.values()))


# by public name, with a word on which way where there are several
CALLS: dict[str, Callable[..., float]] = {
    "dataset_distance": lambda: otdd.dataset_distance(A, B).value,
    "dataset_distance, sinkhorn labels": lambda: otdd.dataset_distance(A, B, label_distance="sinkhorn").value,
    "dataset_distance, Microsoft's": lambda: otdd.dataset_distance(A, B, convention="microsoft").conventional["value"],
    "differentiable_distance": lambda: float(otdd.differentiable_distance(A, B).value),
    "SamplesLoss": lambda: float(otdd.SamplesLoss(blur=0.5)(X, Y)),
    "SamplesLoss, to a tolerance": lambda: float(otdd.SamplesLoss(blur=0.5, tol=1e-4)(X, Y)),
    "sinkhorn_divergence": lambda: otdd.sinkhorn_divergence(X, Y, epsilon=0.5).value,
    "sinkhorn_batch": lambda: otdd.sinkhorn_batch([(X, Y)], epsilon=0.5)[0].value,
    "SinkhornHessian": hessian,
    "differentiable_divergence": lambda: float(otdd.differentiable_divergence(X, Y, epsilon=0.5).value),
    "LabelTerm": labelled_divergence,
    "gradient_flow": lambda: otdd.gradient_flow(A, B, steps=2).history[-1]["value"],
    "pairwise": lambda: float(otdd.pairwise([A, B]).values[0, 1]),
    "rank": lambda: otdd.rank([A], B, bootstrap=0).candidates[0].value,
    "values": lambda: float(otdd.values(A, B).scores().sum()),
    "select": lambda: otdd.select(A, B, 5, search=SearchOptions(steps=3, exchanges=2)).value,
    "OTDDSelector": selector,
    "check": lambda: otdd.check(A, B, permutations=20).p_value or 0.0,
    "assert_same_distribution": lambda: otdd.assert_same_distribution(A, A, permutations=20).value,
    "DriftCheck": lambda: otdd.DriftCheck(A, permutations=20).update(Y, B.y).compute().value,
    "DriftCheck, against itself": lambda: otdd.DriftCheck(A, null="reference", permutations=20, cache=None).update(
        A.subset(range(6))
    ).compute().value,
    "DriftCallback": drift_callback,
    "sliced_distance": lambda: float(otdd.sliced_distance(A, B, projections=20)),
    "moment_distance": lambda: otdd.moment_distance(A, B),
    "screening_matrix": lambda: float(otdd.screening_matrix([A, B], projections=20)[0, 1]),
    "screening_matrix, of moments": lambda: float(otdd.screening_matrix([A, B], method="moments")[0, 1]),
    "screen_then_refine": screened,
    "Screen": lambda: float(otdd.pairwise([A, B], screen=otdd.Screen(keep=1)).values[0, 1]),
    "from_arrays": lambda: float(otdd.from_arrays(X.tolist(), LABELS).x.sum()),
    "from_dataframe": from_dataframe,
    "from_huggingface": from_huggingface,
    "from_torch": from_torch,
    "load": lambda: float(otdd.load("iris", max_samples=20).x.sum()),
    "LabeledDataset": made_by_hand,
    "report": report,
}  # fmt: skip
# records that others make or take, whose methods are tried above, and errors
RECORDS = {
    "CheckOptions", "CheckResult", "DistanceMatrix", "DistanceOptions", "DistanceResult", "DistributionShiftError",
    "MicrosoftConvention", "NotConvergedError", "NotConvergedWarning", "Potentials", "SampleValues", "Selection",
}  # fmt: skip


def test_every_public_name_is_tried() -> None:
    tried = {name.split(",")[0] for name in CALLS}
    public = {name for name in dir(otdd) if not name.startswith("_")}
    assert tried.isdisjoint(RECORDS)
    assert tried | RECORDS == public


@pytest.mark.filterwarnings("ignore::otdd_flash.NotConvergedWarning")
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_outside_of_any_mode(name: str, tmp_path: Path) -> None:
    given = (tmp_path,) if name == "report" else ()
    expected = CALLS[name](*given)
    for mode, enter in MODES.items():
        with enter():
            before = torch.get_default_dtype()
            found = CALLS[name](*given)
            assert torch.get_default_dtype() == before
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), mode


def test_a_flow_moves_without_gradients_of_the_caller() -> None:
    with torch.no_grad():
        flow = otdd.gradient_flow(A, B, steps=2)
    assert not torch.equal(flow.data.x, A.x)
    assert flow.history[-1]["value"] < flow.history[0]["value"]


def test_the_caller_decides_whether_there_is_a_graph() -> None:
    """Also where another mode has to be left, which switches gradients on."""
    leaf = X.clone().requires_grad_()
    autocast = MODES["autocast"]
    for loss in (otdd.SamplesLoss(blur=0.5), lambda x, y: otdd.differentiable_divergence(x, y, epsilon=0.5).value):
        assert loss(leaf, Y).requires_grad
        with autocast():
            assert loss(leaf, Y).requires_grad
        with autocast(), torch.no_grad():
            assert not loss(leaf, Y).requires_grad
        with torch.no_grad():
            assert not loss(leaf, Y).requires_grad
        with torch.inference_mode():
            assert not loss(leaf, Y).requires_grad


def inference_tensors() -> tuple[torch.Tensor, otdd.LabeledDataset]:
    with torch.inference_mode():
        x = X + 0.0
        data = otdd.LabeledDataset(x, A.y, A.class_names)
    assert x.is_inference()
    assert data.x.is_inference()
    return x, data


TAKERS: dict[str, Callable[[Any, Any], float]] = {
    "alone": lambda x, data: otdd.sinkhorn_divergence(x, Y, epsilon=0.5).value,
    "by name": lambda x, data: otdd.sinkhorn_divergence(x=x, y=Y, epsilon=0.5).value,
    "beside a leaf": lambda x, data: gradient_beside(x),
    "in a list of pairs": lambda x, data: otdd.sinkhorn_batch([(x, Y)], epsilon=0.5)[0].value,
    "in a data set": lambda x, data: otdd.gradient_flow(data, B, steps=2).history[-1]["value"],
    "in a list of data sets": lambda x, data: float(otdd.pairwise([data, B]).values[0, 1]),
    "in a dictionary": lambda x, data: float(otdd.pairwise({"a": data, "b": B}).values[0, 1]),
}


def gradient_beside(x: torch.Tensor) -> float:
    """The graph saves the other side for the backward pass, which no tensor of inference mode can be."""
    leaf = Y.clone().requires_grad_()
    otdd.differentiable_divergence(x, leaf, epsilon=0.5).value.backward()
    assert leaf.grad is not None
    return float(leaf.grad.abs().sum())


@pytest.mark.parametrize("name", TAKERS)
def test_tensors_made_in_inference_mode_are_taken(name: str) -> None:
    assert TAKERS[name](*inference_tensors()) == pytest.approx(TAKERS[name](X, A), rel=1e-6)


@pytest.mark.parametrize("holder", [lambda x, d: x, lambda x, d: [(x, d)], lambda x, d: {"a": d, "b": [x]}])
def test_no_tensor_of_inference_mode_comes_in(holder: Callable[[Any, Any], Any]) -> None:
    def found(value: Any) -> bool:
        if isinstance(value, dict | list | tuple):
            return any(map(found, value.values() if isinstance(value, dict) else value))
        return (value.x if isinstance(value, otdd.LabeledDataset) else value).is_inference()

    given = holder(*inference_tensors())
    assert found(given)
    assert not plain_torch(found)(given)
    assert not plain_torch(lambda *, value: found(value))(value=given)


def test_threads_leave_the_callers_default_dtype() -> None:
    """Threads that overlap: the first one in is the first one out."""
    inside, go_on = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    seen: list[torch.dtype] = []

    @plain_torch
    def work(number: int) -> None:
        inside[number].set()
        assert go_on[number].wait(10)
        seen.append(torch.get_default_dtype())

    with default_dtype(torch.float64):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for number, thread in enumerate(threads):
            thread.start()
            assert inside[number].wait(10)
        for number, thread in enumerate(threads):
            go_on[number].set()
            thread.join(10)
        assert seen == [torch.float32, torch.float32]
        assert torch.get_default_dtype() == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_an_error_leaves_the_callers_default_dtype() -> None:
    with default_dtype(torch.float64):
        with pytest.raises(TypeError):
            otdd.dataset_distance(A, None)  # type: ignore[arg-type]
        assert torch.get_default_dtype() == torch.float64
