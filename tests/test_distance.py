"""dataset_distance: oracle values on real images, invariances, options, the result as a record."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.errors import BackendUnavailableError

METHODS = ["means", "gaussian_diag", "gaussian", "sinkhorn"]


def blobs(n: int, classes: int, d: int, seed: int, shift: float = 0.0) -> otdd.LabeledDataset:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = 3 * np.random.default_rng(99).normal(size=(classes, d))
    return otdd.from_arrays(centres[y] + rng.normal(size=(n, d)) + shift, y, name=f"blobs {seed}")


def oracle(result: otdd.DistanceResult, a: otdd.LabeledDataset, b: otdd.LabeledDataset) -> float:
    """The debiased value by dense float64 Sinkhorn for the label table that the result used."""
    table = result.label_distances.joint()
    labels = (table, a.y, b.y + a.num_classes)
    x, y = a.x.double(), b.x.double()
    return reference.divergence(x, y, a.normalised_weights, b.normalised_weights, result.epsilon, label_cost=labels)


@pytest.fixture(scope="module")
def images(data_root) -> list[otdd.LabeledDataset]:
    """The first 600 training images of MNIST and Fashion-MNIST."""
    names = ("mnist", "fashion_mnist")
    return [otdd.load(name, data_root=data_root).subset(torch.arange(600)) for name in names]


@pytest.mark.data
@pytest.mark.parametrize("epsilon", [10.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
def test_mnist_to_fashion_equals_the_dense_oracle(images, method: str, epsilon: float) -> None:
    a, b = images
    tight = otdd.dataset_distance(
        a, b, label_distance=method, epsilon=epsilon, tol=1e-8, precision="fp64", max_iterations=5000
    )
    expected = oracle(tight, a, b)
    assert tight.converged
    assert tight.precision == "fp64"
    assert tight.value == pytest.approx(expected, rel=1e-6)
    single = otdd.dataset_distance(
        a, b, label_distance=tight.label_distances, epsilon=epsilon, tol=1e-5, precision="fp32", max_iterations=5000
    )
    assert single.precision == "fp32"
    assert single.value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_distance_to_itself_is_zero(method: str) -> None:
    """C10: not one bit left over, for the same object and for a copy."""
    a = otdd.load("digits").subset(torch.arange(0, 1797, 9))
    copy = otdd.from_arrays(a.x.clone(), a.y.clone())
    for other in (a, copy):
        result = otdd.dataset_distance(a, other, label_distance=method)
        assert result.value == 0.0
        assert result.root == 0.0
        assert result.converged


@pytest.mark.parametrize("method", METHODS)
def test_symmetric_in_its_arguments(method: str) -> None:
    """C32: n = 300, m = 200, loose tolerance: equal within the stated error."""
    a, b = blobs(300, 3, 4, 0), blobs(200, 4, 4, 1, shift=1.0)
    ab = otdd.dataset_distance(a, b, label_distance=method, tol=1e-2)
    ba = otdd.dataset_distance(b, a, label_distance=method, tol=1e-2)
    assert ab.value > 1.0
    assert abs(ab.value - ba.value) <= ab.error + ba.error
    tight = [otdd.dataset_distance(p, q, label_distance=method, tol=1e-9).value for p, q in ((a, b), (b, a))]
    assert tight[0] == pytest.approx(tight[1], rel=1e-7)


def test_names_of_classes_do_not_matter() -> None:
    """C01: labels {3, 4} against {0..4}; the same with words."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 5)), rng.normal(size=(60, 5)) + 1
    small, large = np.where(np.arange(40) % 2, 3, 4), np.arange(60) % 5
    words = np.where(np.arange(40) % 2, "cat", "dog")
    values = [
        otdd.dataset_distance(otdd.from_arrays(X, y), otdd.from_arrays(Y, large), tol=1e-9).value
        for y in (small, words, small * 100 - 7)
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-9)
    assert values[2] == pytest.approx(values[0], rel=1e-9)


def test_a_class_of_one_row_is_a_dirac() -> None:
    """C02: labels 1..5 over 40 rows, one class of a single row."""
    rng = np.random.default_rng(0)
    y = np.r_[[1], 2 + np.arange(39) % 4]
    a, b = otdd.from_arrays(rng.normal(size=(40, 6)), y), blobs(50, 3, 6, 1)
    result = otdd.dataset_distance(a, b, tol=1e-8)
    assert a.num_classes == 5
    assert result.value == pytest.approx(oracle(result, a, b), rel=1e-6)


def test_different_widths_are_refused_with_advice() -> None:
    """C03."""
    with pytest.raises(ValueError, match=r"4.*7|7.*4") as error:
        otdd.dataset_distance(blobs(50, 2, 4, 0), blobs(60, 2, 7, 0))
    assert "embed" in str(error.value)


@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0])
def test_gaussian_classes_closed_form(scale: float) -> None:
    """C06: W2^2(N(0, I), N(m, s^2 I)) = |m|^2 + d (1 - s)^2 within sampling error; Gaussian <= exact."""
    d, n = 3, 2000
    rng = np.random.default_rng(5)
    mean = np.array([1.0, -2.0, 0.5])
    a = otdd.from_arrays(rng.normal(size=(n, d)), np.zeros(n, int))
    b = otdd.from_arrays(mean + scale * rng.normal(size=(n, d)), np.zeros(n, int))
    expected = mean @ mean + d * (1 - scale) ** 2
    result = otdd.dataset_distance(a, b, label_distance="gaussian", relative_epsilon=0.02)
    table = float(result.label_distances.source_target)
    assert table == pytest.approx(expected, rel=0.1)
    assert result.value / 2 == pytest.approx(expected, rel=0.15)  # features and labels each bring it once
    exact = otdd.dataset_distance(a, b, label_weight=0.0, epsilon=0.02, tol=1e-4, debiased=False).value
    assert table <= exact * 1.001


def test_close_clouds_never_go_negative_beyond_the_error() -> None:
    """C07: 50 points in R^160 within 0.25 of each other, moved by 1e-3."""
    rng = np.random.default_rng(0)
    X = 0.25 * rng.uniform(size=(50, 160)) / math.sqrt(160)
    y = np.arange(50) % 2
    a, b = otdd.from_arrays(X, y), otdd.from_arrays(X + 1e-3 * rng.normal(size=X.shape), y)
    for precision, tol in (("fp32", 1e-5), ("fp64", 1e-6)):
        result = otdd.dataset_distance(a, b, precision=precision, tol=tol, max_iterations=5000)
        assert result.value >= -result.error
        assert result.converged
    assert result.value == pytest.approx(oracle(result, a, b), rel=1e-3)


def test_debiasing_puts_the_minimum_at_equality() -> None:
    """C08: N(0, 1) against N(0, s^2)."""
    rng = np.random.default_rng(0)
    base, other = rng.normal(size=(400, 1)), rng.normal(size=(400, 1))
    scales = [0.1, 0.4, 0.7, 1.0, 1.3, 2.0]
    a = otdd.from_arrays(base, np.zeros(400, int))
    sets = [otdd.from_arrays(s * other, np.zeros(400, int)) for s in scales]
    values = [otdd.dataset_distance(a, b, epsilon=1.0, tol=1e-6).value for b in sets]
    assert min(values) == values[3]
    biased = [otdd.dataset_distance(a, b, epsilon=1.0, tol=1e-6, debiased=False, label_weight=0.0).value for b in sets]
    assert min(biased) != biased[3]  # what debiasing repairs


def test_two_diracs() -> None:
    """C17: at distance 3, squared 9, root 3, both named."""
    a, b = otdd.from_arrays([[0.0, 0.0]], [0]), otdd.from_arrays([[3.0, 0.0]], [0])
    record = otdd.dataset_distance(a, b, label_weight=0.0).to_dict()
    assert record["value"] == pytest.approx(9.0, rel=1e-6)
    assert record["root"] == pytest.approx(3.0, rel=1e-6)


def test_same_seed_same_bits() -> None:
    """C20: five seeds on n = 200; each repeats to the last bit, and small samples are said."""
    values = []
    pool = otdd.load("digits")
    for seed in range(5):
        a, b = (otdd.load("digits", classes=c, max_samples=200, seed=seed) for c in (range(5), range(5, 10)))
        first, second = (otdd.dataset_distance(a, b, seed=seed) for _ in range(2))
        assert first.value == second.value
        assert any("small sample" in note for note in first.notes)
        values.append(first.value)
    assert 0 < np.std(values) < 0.2 * np.mean(values)
    one, two = (otdd.dataset_distance(pool, pool, max_samples=200, seed=3) for _ in range(2))
    assert one.n == two.n == 200
    assert one.value == two.value == 0.0  # the draw depends on the data, not on the side


def test_size_is_told_before_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """C29: n = 65,536, m = 32,768."""
    from otdd_flash.distance import describe_size

    class Side:
        def __init__(self, n: int) -> None:
            self.n, self.d = n, 64

    line = describe_size(Side(65536), Side(32768), "streamed")  # type: ignore[arg-type]
    assert "96 MiB" in line
    assert "18,432 MiB" in line
    with caplog.at_level(logging.INFO, logger="otdd_flash"):
        otdd.dataset_distance(blobs(20, 2, 3, 0), blobs(30, 2, 3, 1))
    assert "20 x 30 points" in caplog.text


def test_memory_that_does_not_fit_is_an_error_with_sizes() -> None:
    """C29."""
    with pytest.raises(MemoryError, match=r"n=200, m=150, d=4.*memory='streamed'"):
        otdd.dataset_distance(blobs(200, 2, 4, 0), blobs(150, 2, 4, 1), memory="cached", memory_budget=1000)


def test_default_result_is_converged() -> None:
    """C38: the number is converged to the stated tolerance, not "after the schedule ended"."""
    a, b = blobs(150, 3, 6, 0), blobs(120, 3, 6, 1, shift=0.5)
    result = otdd.dataset_distance(a, b)
    f, g = result.potentials
    labels = (result.label_distances.joint(), a.y, b.y + 3)
    C = reference.cost_matrix(a.x, b.x, label_cost=labels)
    r, c = reference.marginals(C, f, g, a.normalised_weights, b.normalised_weights, result.epsilon)
    error = float((r - a.normalised_weights).abs().sum() + (c - b.normalised_weights).abs().sum())
    assert result.converged
    assert error <= result.tol
    assert result.value == pytest.approx(oracle(result, a, b), abs=result.error)
    assert result.epsilon == pytest.approx(0.01 * float(C.mean()), rel=1e-9)


def test_not_converged_is_loud_and_strict_raises() -> None:
    a, b = blobs(60, 3, 6, 0), blobs(50, 3, 6, 1, shift=2.0)
    with pytest.warns(otdd.NotConvergedWarning):
        assert not otdd.dataset_distance(a, b, max_iterations=1, tol=1e-9, label_distance="means").converged
    with pytest.raises(otdd.NotConvergedError, match="max_iterations"):
        otdd.dataset_distance(a, b, max_iterations=1, tol=1e-9, strict=True, label_distance="means")


def test_record_is_plain_json() -> None:
    """C23: json in and out is the identity."""
    a, b = blobs(60, 3, 6, 0), blobs(50, 2, 6, 1)
    record = otdd.dataset_distance(a, b).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for key in ("value", "root", "converged", "marginal_error", "gap", "epsilon", "relative_epsilon", "precision"):
        assert key in record
    assert record["class_counts"] == [{"0": 20, "1": 20, "2": 20}, {"0": 25, "1": 25}]


def test_weights_and_duplicates_agree() -> None:
    """C37 with labels: every row three times is the same as weights 3, that is, as no weights."""
    a, b = blobs(30, 2, 4, 0), blobs(40, 2, 4, 1)
    tripled = otdd.from_arrays(a.x.repeat(3, 1), a.y.repeat(3))
    weighted = otdd.from_arrays(a.x, a.y, weights=np.full(30, 3))
    values = [otdd.dataset_distance(side, b, tol=1e-9).value for side in (a, tripled, weighted)]
    assert values[1] == pytest.approx(values[0], rel=1e-7)
    assert values[2] == pytest.approx(values[0], rel=1e-7)


def test_label_and_feature_weights() -> None:
    a, b = blobs(60, 3, 6, 0), blobs(50, 2, 6, 1, shift=1.0)
    base = otdd.dataset_distance(a, b, epsilon=1.0, tol=1e-9)
    doubled = otdd.dataset_distance(a, b, epsilon=2.0, tol=1e-9, feature_weight=2.0, label_weight=2.0)
    assert doubled.value == pytest.approx(2 * base.value, rel=1e-7)
    features = otdd.dataset_distance(a, b, epsilon=1.0, tol=1e-9, label_weight=0.0)
    assert features.value == pytest.approx(
        reference.divergence(a.x, b.x, a.normalised_weights, b.normalised_weights, 1.0), rel=1e-7
    )
    assert features.label_method == "none"


def test_explicit_triton_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    with pytest.raises(BackendUnavailableError, match="backend='torch'"):
        otdd.dataset_distance(blobs(20, 2, 3, 0), blobs(20, 2, 3, 1), backend="triton")


def test_misspelt_and_misplaced_arguments() -> None:
    a = blobs(20, 2, 3, 0)
    with pytest.raises(TypeError, match=r"no argument epsilom"):
        otdd.dataset_distance(a, a, epsilom=1.0)
    with pytest.raises(TypeError, match=r"target must be a LabeledDataset, got ndarray.*from_arrays"):
        otdd.dataset_distance(a, np.zeros((3, 2)))
    for name, value in (("epsilon", -1.0), ("relative_epsilon", 0.0), ("tol", -1.0), ("label_weight", -2.0)):
        with pytest.raises(ValueError, match=name):
            otdd.dataset_distance(a, blobs(20, 2, 3, 1), **{name: value})


def test_large_features_keep_the_default_precision() -> None:
    """C31: features x 30, n = 512, d = 784: within 1e-4 of float64, the mode recorded."""
    x = 30 * torch.randn(2, 512, 784, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    sets = [otdd.from_arrays(z + 3 * s, torch.arange(512) % 4) for s, z in enumerate(x)]
    exact = otdd.dataset_distance(*sets, label_distance="means", precision="fp64", tol=1e-7)
    got = otdd.dataset_distance(*sets, label_distance="means", tol=1e-5)
    assert got.precision == got.to_dict()["precision"] == "fp32"
    assert got.value == pytest.approx(exact.value, rel=1e-4)


def test_far_from_the_origin() -> None:
    """Moving both sides by 1e4 changes nothing: clouds are centred in float64."""
    a, b = blobs(60, 2, 4, 0), blobs(60, 2, 4, 1, shift=1.0)
    near = otdd.dataset_distance(a, b, tol=1e-6).value
    moved = [otdd.from_arrays(s.x + 1e4, s.y) for s in (a, b)]
    assert otdd.dataset_distance(*moved, tol=1e-6).value == pytest.approx(near, rel=1e-6)


@pytest.mark.parametrize("labels", [None, "means"])
def test_all_points_in_one_place_are_at_distance_zero(labels: str | None) -> None:
    """Rounding of the centre leaves a mean cost of 1e-48 there, of which no epsilon may be a fraction."""
    x = torch.full((5, 3), 0.1 + 0.2, dtype=torch.float64)
    a, b = otdd.from_arrays(x, [0, 1, 0, 1, 0]), otdd.from_arrays(x[:3].clone(), [0, 1, 1])
    found = otdd.dataset_distance(a, b, label_distance=labels)
    assert found.converged
    assert abs(found.value) <= 1e-15
    assert found.mean_cost == 0.0
