"""convention="microsoft": the numbers of that program, digit for digit, and the converged ones beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.sinkhorn import Execution

# microsoft/otdd on scikit-learn's digits / 16 in float64, entreg 0.1: A-B and, with transposed pictures, A-T.
VALUES = [
    ({"inner": "exact"}, "B", 2.463746),
    ({"inner": "exact"}, "T", 14.970269),
    ({"inner": "exact", "inner_debiased": True}, "B", 2.244738),
    ({"inner": "exact", "inner_debiased": True}, "T", 14.751257),
    ({"lambda_y": 0.0}, "B", 1.019097),
    ({"lambda_y": 0.0}, "T", 6.987625),
    ({"inner": "exact", "lambda_x": 0.5, "lambda_y": 2.0}, "B", 3.247157),
    ({"inner": "gaussian"}, "B", 1.630367),
    ({"inner": "gaussian"}, "T", 14.313068),
    ({"inner": "gaussian_diag"}, "B", 1.356158),
    ({"inner": "gaussian_diag"}, "T", 13.762040),
    ({"inner": "means"}, "B", 1.362891),
]


@pytest.fixture(scope="module")
def digits() -> dict[str, otdd.LabeledDataset]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X / 16
    transposed = X[800:1600].reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 64)
    parts = {"A": (X[:800], y[:800]), "B": (X[800:1600], y[800:1600]), "T": (transposed, y[800:1600])}
    return {name: otdd.from_arrays(*part, name=name) for name, part in parts.items()}


@pytest.mark.parametrize(("settings", "target", "expected"), VALUES)
def test_values_of_microsoft_otdd(digits: dict, settings: dict, target: str, expected: float) -> None:
    convention = otdd.MicrosoftConvention(**settings)
    result = otdd.dataset_distance(digits["A"], digits[target], convention=convention, tol=1e-2)
    assert result.conventional["value"] == pytest.approx(expected, rel=1e-5)
    assert result.conventional["converged"] is False
    assert result.value > result.conventional["value"] + result.error


def test_converged_value_beside_it(digits: dict) -> None:
    """About 2.554 for the exact A-B problem: the optimum of the very problem that the other number stops short of."""
    convention = otdd.MicrosoftConvention(inner="exact")
    result = otdd.dataset_distance(digits["A"], digits["B"], convention=convention, tol=1e-6, max_iterations=3000)
    assert result.converged
    assert result.value == pytest.approx(2.554, abs=1e-3)
    assert result.conventional["off_by"] == pytest.approx(2.463746 / 2.554242 - 1, abs=1e-5)
    assert "not converged" in result.conventional["remark"]
    assert result.conventional["settings"]["inner"] == "exact"
    assert result.label_method == "microsoft exact"
    record = result.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_converged_value_equals_the_oracle_of_the_halved_problem() -> None:
    rng = np.random.default_rng(0)
    a = otdd.from_arrays(rng.normal(size=(30, 3)), np.arange(30) % 2)
    b = otdd.from_arrays(rng.normal(size=(40, 3)) + 1, np.arange(40) % 3)
    convention = otdd.MicrosoftConvention(lambda_x=0.7, lambda_y=1.3, entreg=0.5)
    result = otdd.dataset_distance(a, b, convention=convention, tol=1e-9, precision="fp64")
    labels = (1.3 / 2 * result.label_distances.joint(), a.y, b.y + 2)
    weights = a.normalised_weights, b.normalised_weights
    expected = reference.divergence(a.x, b.x, *weights, 0.5, feature_weight=0.35, label_cost=labels)
    assert result.value == pytest.approx(expected, rel=1e-7)
    moments = [torch.cov(s.x[s.y == c].double().T) for s, c in ((a, 1), (b, 2))]
    means = [s.x[s.y == c].double().mean(0) for s, c in ((a, 1), (b, 2))]
    values, vectors = torch.linalg.eigh(moments[0])
    root = vectors * values.sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ moments[1] @ root).clamp_min(0).sqrt().sum()
    bures = (means[0] - means[1]).square().sum() + moments[0].trace() + moments[1].trace() - 2 * cross
    assert float(result.label_distances.source_target[1, 2]) == pytest.approx(float(bures), rel=1e-6)


def test_the_default_is_its_default(digits: dict) -> None:
    """``inner_ot_method="gaussian_approx"``, entreg 0.1, weights 1."""
    result = otdd.dataset_distance(digits["A"], digits["B"], convention="microsoft", tol=1e-2)
    assert result.conventional["value"] == pytest.approx(1.630367, rel=1e-5)
    plain = otdd.dataset_distance(digits["A"], digits["B"], tol=1e-2)
    assert plain.conventional is None


def test_options_that_it_decides_are_refused(digits: dict) -> None:
    a, b = digits["A"], digits["B"]
    for name, value, advice in (
        ("epsilon", 0.1, "entreg"),
        ("label_weight", 2.0, "lambda_y"),
        ("label_distance", "sinkhorn", "inner"),
        ("debiased", False, "no such option"),
        ("reach", 1.0, "no such option"),
    ):
        with pytest.raises(ValueError, match=f"{name}=.*{advice}"):
            otdd.dataset_distance(a, b, convention="microsoft", **{name: value})
    with pytest.raises(ValueError, match="convention must be 'microsoft'"):
        otdd.dataset_distance(a, b, convention="geomloss")
    for bad in ({"inner": "naive_upperbound"}, {"entreg": 0.0}, {"lambda_x": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            otdd.MicrosoftConvention(**bad)


def test_data_that_it_does_not_take(digits: dict) -> None:
    a = digits["A"]
    single = otdd.from_arrays(a.x[:21], np.r_[np.arange(20) % 2, 7])
    with pytest.raises(ValueError, match=r"class '7'.*min_class_size=2"):
        otdd.dataset_distance(single, a, convention="microsoft")
    weighted = otdd.from_arrays(a.x, a.y, weights=np.arange(1.0, 801.0))
    with pytest.raises(ValueError, match="uniform weights only"):
        otdd.dataset_distance(weighted, a, convention="microsoft")


@pytest.mark.parametrize("debiased", [False, True])
def test_small_inner_epsilon_tends_to_the_unregularised_distance(debiased: bool) -> None:
    """Sums of the plan run through the subnormal numbers on the way down."""
    generator = torch.Generator().manual_seed(0)
    a = otdd.from_arrays(torch.randn(40, 5, generator=generator), torch.arange(40) % 3)
    b = otdd.from_arrays(torch.randn(40, 5, generator=generator) + 1, torch.arange(40) % 3)
    convention = otdd.MicrosoftConvention(inner="exact", inner_entreg=1e-6, inner_debiased=debiased)
    table = convention.tables(a, b, Execution()).joint()
    assert torch.isfinite(table).all()
    points = [side.x[side.y == k].double() for side in (a, b) for k in range(3)]
    p, q = points[1], points[2]  # of 13 samples each: an assignment
    cost = torch.cdist(p, q).square()
    rows, columns = pytest.importorskip("scipy.optimize").linear_sum_assignment(cost.numpy())
    exact = float(cost[rows, columns].mean())
    assert exact * 0.9 < float(table[1, 2]) <= exact + 1e-5


def test_inner_value_beyond_floats_names_inner_entreg(monkeypatch: pytest.MonkeyPatch) -> None:
    a = otdd.from_arrays(torch.tensor([[0.0], [1.0], [3.0], [4.0]]).double(), [0, 0, 1, 1], name="A")
    monkeypatch.setattr("otdd_flash.conventions._schedule_value", lambda *_, **__: float("nan"))
    with pytest.raises(ValueError, match=r"inner_entreg=0\.1 gives nan between A/0 and A/1"):
        otdd.MicrosoftConvention(inner="exact").tables(a, a, Execution())
