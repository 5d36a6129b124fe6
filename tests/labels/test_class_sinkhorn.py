"""Class-to-class Sinkhorn: the batch equals single problems, and the oracle."""

from __future__ import annotations

import itertools

import pytest
import torch

from otdd_flash import dataset_distance, from_arrays, load, reference
from otdd_flash.errors import NotConvergedWarning
from otdd_flash.labels import LabelSinkhorn, class_samples, class_sinkhorn, label_distances
from otdd_flash.sinkhorn import Execution, SolverOptions

TIGHT = SolverOptions(tol=1e-9, max_iterations=5000)


def ragged(seed: int, sizes: list[int], d: int = 4, dtype: torch.dtype = torch.float64):
    rng = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(y), d, generator=rng, dtype=torch.float64) + 0.5 * y[:, None]
    return from_arrays(x.to(dtype), y, weights=torch.rand(len(y), generator=rng, dtype=torch.float64) + 0.2)


SOURCE, TARGET = ragged(0, [17, 1, 30]), ragged(1, [9, 25])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batched_equals_pair_by_pair_and_the_oracle(dtype: torch.dtype) -> None:
    source, target = ragged(0, [17, 1, 30], dtype=dtype), ragged(1, [9, 25], dtype=dtype)
    tol = 1e-9 if dtype == torch.float64 else 1e-5
    settings = LabelSinkhorn(epsilon=0.5, options=SolverOptions(tol=tol, max_iterations=5000))
    joint = label_distances(source, target, method="sinkhorn", sinkhorn=settings).joint()
    classes = class_samples(source) + class_samples(target)
    for i, j in itertools.combinations(range(5), 2):
        p, q = classes[i], classes[j]
        single, _ = class_sinkhorn.sinkhorn_table([p, q], settings)
        assert float(joint[i, j]) == pytest.approx(float(single[0, 1]), abs=1e-6 if dtype == torch.float64 else 1e-4)
        expected = reference.divergence(p.points, q.points, p.weights, q.weights, 0.5)
        assert float(joint[i, j]) == pytest.approx(expected, abs=1e-7 if dtype == torch.float64 else 1e-4)
    assert torch.equal(joint, joint.T)
    assert not joint.diagonal().any()


def test_one_solve_with_every_self_term_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list = []
    make = Execution.operator
    monkeypatch.setattr(Execution, "operator", lambda self, c, p, **k: seen.append(list(p)) or make(self, c, p, **k))
    label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=LabelSinkhorn(relative_epsilon=0.2))
    (problems,) = seen
    assert sorted(problems) == sorted(itertools.combinations_with_replacement(range(5), 2))


def test_without_debiasing_the_table_is_the_entropic_value() -> None:
    settings = LabelSinkhorn(epsilon=0.5, debiased=False, options=TIGHT)
    table = label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=settings).source_target
    p, q = class_samples(SOURCE)[2], class_samples(TARGET)[1]
    expected = reference.ot_value(reference.cost_matrix(p.points, q.points), p.weights, q.weights, 0.5)
    assert float(table[2, 1]) == pytest.approx(expected, abs=1e-7)


def test_relative_epsilon_is_a_fraction_of_the_mean_class_to_class_cost() -> None:
    classes = class_samples(SOURCE) + class_samples(TARGET)
    costs = [
        float(p.weights @ reference.cost_matrix(p.points, q.points) @ q.weights)
        for p, q in itertools.combinations(classes, 2)
    ]
    mean = sum(costs) / len(costs)
    assert class_sinkhorn.mean_class_cost(classes) == pytest.approx(mean, rel=1e-12)
    result = label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=LabelSinkhorn(relative_epsilon=0.2))
    assert result.certificate["epsilon"] == pytest.approx(0.2 * mean, rel=1e-12)
    assert result.parameters["relative_epsilon"] == 0.2


def test_nearly_equal_classes_stay_within_the_stated_gap() -> None:
    """C07: 50 points in R^160 within 0.25 of each other against the same plus 1e-3 noise; nothing is clamped."""
    rng = torch.Generator().manual_seed(7)
    x = 0.01 * torch.randn(50, 160, generator=rng, dtype=torch.float64)
    y = x + 1e-3 * torch.randn(50, 160, generator=rng, dtype=torch.float64)
    result = label_distances(from_arrays(x, [0] * 50), from_arrays(y, [0] * 50), method="sinkhorn")
    value, gap = float(result.source_target), result.certificate["gap"]
    u = torch.full((50,), 0.02, dtype=torch.float64)
    expected = reference.divergence(x, y, u, u, result.certificate["epsilon"])
    assert value == pytest.approx(expected, abs=gap + 1e-12)
    assert value >= -gap


def test_translation_of_a_class() -> None:
    """The divergence of a class to itself moved by ``t`` is ``|t|^2`` whatever epsilon."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = LabelSinkhorn(relative_epsilon=0.3, options=TIGHT)
    result = label_distances(
        from_arrays(x, [0] * 40), from_arrays(x + 2, [0] * 40), method="sinkhorn", sinkhorn=settings
    )
    assert float(result.source_target) == pytest.approx(12.0, abs=1e-7)


def test_streamed_equals_cached() -> None:
    tables = []
    for memory in ("streamed", "cached"):
        settings = LabelSinkhorn(relative_epsilon=0.1, options=TIGHT, execution=Execution(memory=memory))
        tables.append(label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=settings))
    assert torch.allclose(tables[0].joint(), tables[1].joint(), rtol=1e-8)
    assert [table.certificate["memory"] for table in tables] == ["streamed", "cached"]


@pytest.mark.data
def test_images_in_float32(data_root) -> None:
    names = ("mnist", "fashion_mnist")
    source, target = (load(name, split="train", max_samples=300, seed=0, data_root=data_root) for name in names)
    settings = LabelSinkhorn(epsilon=5.0, options=SolverOptions(tol=1e-5))
    result = label_distances(source, target, method="sinkhorn", sinkhorn=settings)
    p, q = class_samples(source)[3], class_samples(target)[7]
    expected = reference.divergence(p.points, q.points, p.weights, q.weights, 5.0)
    assert result.certificate["precision"] == "fp32"
    assert float(result.source_target[3, 7]) == pytest.approx(expected, rel=1e-5)


def test_not_converged_names_the_worst_pair() -> None:
    settings = LabelSinkhorn(relative_epsilon=1e-3, options=SolverOptions(tol=1e-12, max_iterations=2))
    with pytest.warns(NotConvergedWarning, match=r"of 15 class problems .* arrays/\d to arrays/\d"):
        result = label_distances(SOURCE, TARGET, method="sinkhorn", sinkhorn=settings)
    assert result.certificate["converged"] is False


def test_nothing_to_solve() -> None:
    """One class in all, or every sample in one point: distance zero, no epsilon to be had."""
    x = torch.ones(6, 3)
    data = from_arrays(x, [0] * 6)
    assert float(label_distances(data, data, method="sinkhorn").source_target) == 0.0
    two = from_arrays(x, [0, 0, 1, 1, 1, 1])
    assert not label_distances(two, two, method="sinkhorn").joint().any()


def test_one_class_against_itself_is_at_distance_zero() -> None:
    one = ragged(0, [12])
    # nothing is solved: there are no two classes whose distance could give an epsilon
    for given, epsilon in ((None, 0.0), (0.3, 0.3)):
        found = dataset_distance(one, one, label_distance="sinkhorn", label_epsilon=given)
        assert found.value == 0
        assert found.label_distances.joint().tolist() == [[0.0, 0.0], [0.0, 0.0]]
        assert found.label_distances.certificate["epsilon"] == epsilon
        assert found.label_distances.converged


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"relative_epsilon": float("nan")}])
def test_epsilon_must_be_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="epsilon must be finite and greater than 0"):
        LabelSinkhorn(**wrong)
