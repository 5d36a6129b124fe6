"""Options that make no sense are refused by name; extremes of scale and penalty keep their certificate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otdd_flash as otdd

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)), RNG.normal(size=(10, 3)) + 0.5
A, B = otdd.from_arrays(X, np.arange(12) % 3), otdd.from_arrays(Y, np.arange(10) % 2)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("debiased", "False", TypeError),
        ("strict", "x", TypeError),
        ("tol", 5, ValueError),
        ("tol", True, TypeError),
        ("tol", float("inf"), ValueError),
        ("tol", None, TypeError),
        ("epsilon", True, TypeError),
        ("epsilon", "x", TypeError),
        ("relative_epsilon", None, TypeError),
        ("max_iterations", 1.5, TypeError),
        ("memory_budget", -1, ValueError),
        ("seed", "x", TypeError),
        ("reach", "x", TypeError),
        ("reach", 1e200, ValueError),
        ("feature_weight", None, TypeError),
        ("options", 3, TypeError),
        ("precision", "fp128", ValueError),
        ("precision", None, ValueError),
        ("memory", "huge", ValueError),
        ("backend", "jax", ValueError),
        ("device", "abc", ValueError),
        ("device", 3.5, TypeError),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        otdd.dataset_distance(A, B, **{name: value})


def test_what_would_do_is_named() -> None:
    with pytest.raises(ValueError, match=r"precision must be one of auto, fp64, fp32, .*, got 'fp128'"):
        otdd.dataset_distance(A, B, precision="fp128")
    with pytest.raises(ValueError, match=r"device must be cpu, cuda, cuda:1, \.\.\. or None, got 'abc'"):
        otdd.dataset_distance(A, B, device="abc")


def test_a_gpu_that_is_not_there_is_refused_by_number() -> None:
    missing = f"cuda:{torch.cuda.device_count() if torch.cuda.is_available() else 0}"
    with pytest.raises(ValueError, match=f"device='{missing}' was asked for, but torch sees"):
        otdd.dataset_distance(A, B, device=missing)


def test_an_epsilon_beyond_the_digits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="epsilon=1e-60 is below what float64 resolves"):
        otdd.dataset_distance(A, B, epsilon=1e-60, max_iterations=5)


@pytest.mark.parametrize("scale", [1e30, 1e-20])
def test_features_of_any_float32_scale(scale: float) -> None:
    sides = [otdd.from_arrays((scale * z).astype(np.float32), np.zeros(len(z), int)) for z in (X, Y)]
    plain = [otdd.from_arrays(z.astype(np.float32), np.zeros(len(z), int)) for z in (X, Y)]
    found = otdd.dataset_distance(*sides, tol=1e-8)
    assert found.converged
    assert found.value == pytest.approx(scale**2 * otdd.dataset_distance(*plain, tol=1e-8).value, rel=1e-5)


def test_features_beyond_float64_are_refused() -> None:
    with pytest.raises(ValueError, match="rescale the features"):
        otdd.dataset_distance(otdd.from_arrays(X * 1e-160, [0] * 12), otdd.from_arrays(Y * 1e-160, [0] * 10))


def test_an_outlier_left_behind_does_not_spoil_the_certificate() -> None:
    """Its mass underflows, as it should with a short reach."""
    outlier = otdd.from_arrays(np.r_[X, [[12.0] * 3]], np.arange(13) % 3)
    found = otdd.dataset_distance(outlier, B, reach=0.5, label_distance=None, epsilon=0.1, tol=1e-6)
    assert found.converged
    assert found.value == pytest.approx(0.34344226, rel=1e-5)


def test_negligible_weights_do_not_decide_convergence() -> None:
    a = otdd.from_arrays(X.astype("f4"), [0] * 12, weights=[1] * 6 + [1e-30] * 6)
    b = otdd.from_arrays(Y.astype("f4"), [0] * 10)
    found = otdd.dataset_distance(a, b, tol=1e-5)
    six = otdd.dataset_distance(otdd.from_arrays(X[:6].astype("f4"), [0] * 6), b, epsilon=found.epsilon, tol=1e-5)
    assert found.converged
    assert found.value == pytest.approx(six.value, rel=1e-3)


@pytest.mark.parametrize("reach", [1e4, 1e6, 1e9])
def test_a_long_reach_is_balanced_transport(reach: float) -> None:
    far, balanced = (otdd.dataset_distance(A, B, reach=r, tol=1e-6) for r in (reach, None))
    assert far.converged
    assert far.value == pytest.approx(balanced.value, rel=1e-5)
    assert far.gap < 1e-2


def test_points_must_be_real_tensors() -> None:
    x, y = torch.tensor(X), torch.tensor(Y)
    assert otdd.sinkhorn_divergence(x.requires_grad_(), y, epsilon=0.1).converged
    for bad in (X, x + 0j):
        with pytest.raises(TypeError, match=r"x must be a (real )?torch tensor"):
            otdd.sinkhorn_divergence(bad, y, epsilon=0.1)
