"""The fuzzer's reference against closed forms and POT, and a short run of the fuzzer itself."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.closed_forms import CASES, ClosedForm

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def fuzzing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package of the fuzzer, with its modules as attributes."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    package = importlib.import_module("fuzzing")
    for name in ("problems", "families", "reference", "truth", "calls", "verdicts"):
        importlib.import_module(f"fuzzing.{name}")
    return package


def arrays(case: ClosedForm) -> tuple[np.ndarray, ...]:
    """Costs ``xy, xx, yy`` and both weights of a closed form."""
    sides = [(p.numpy(), None if case.labels is None else case.labels[k]) for p, k in ((case.x, 1), (case.y, 2))]
    costs = []
    for (p, rows), (q, columns) in ((sides[0], sides[1]), (sides[0], sides[0]), (sides[1], sides[1])):
        cost = ((p[:, None] - q[None]) ** 2).sum(2)
        costs.append(cost if case.labels is None else cost + case.labels[0][rows][:, columns].numpy())
    return (*costs, case.a.numpy(), case.b.numpy())


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_interval_holds_the_closed_form_and_is_narrow(fuzzing: ModuleType, case: ClosedForm) -> None:
    xy, xx, yy, a, b = arrays(case)
    found = fuzzing.reference.bounds(xy, a, b, case.epsilon)
    own = [fuzzing.reference.self_bounds(C, w, case.epsilon) for C, w in ((xx, a), (yy, b))]
    assert max(found.width, own[0].width, own[1].width) < 1e-11 * (1 + xy.max())
    if case.value is not None:
        assert found.middle == pytest.approx(case.value, abs=case.tolerance)
    if case.divergence is not None:
        assert found.middle - own[0].middle / 2 - own[1].middle / 2 == pytest.approx(
            case.divergence, abs=case.tolerance
        )


@pytest.mark.parametrize(("eps", "d"), [(0.2, 1e-3), (0.02, 3e-3), (0.005, 4e-4), (0.0005, 1e-9)])
def test_mass_between_far_groups_has_its_closed_form(fuzzing: ModuleType, eps: float, d: float) -> None:
    """Two points against the same two, masses ``1/2 +- d`` against halves.

    The plan is ``[[1/2 - q, d + q], [q, 1/2 - d - q]]`` with ``q (d + q) = e^{-2/eps} (1/2 - q) (1/2 - d - q)``.
    """
    a, b, E = np.array([0.5 + d, 0.5 - d]), np.array([0.5, 0.5]), math.exp(-2 / eps)
    middle = d + E * (1 - d)
    q = 2 * E * 0.5 * (0.5 - d) / (middle + math.sqrt(middle**2 + 4 * (1 - E) * E * 0.5 * (0.5 - d)))
    P = np.array([[0.5 - q, d + q], [q, 0.5 - d - q]])
    entropy = sum(p * math.log(p / w) for p, w in zip(P.ravel(), np.outer(a, b).ravel(), strict=True) if p > 0)
    found = fuzzing.reference.bounds(np.array([[0.0, 1.0], [1.0, 0.0]]), a, b, eps)
    assert found.middle == pytest.approx(d + 2 * q + eps * entropy, abs=1e-14)
    assert found.width < 1e-13


@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_agrees_with_pot(fuzzing: ModuleType, eps: float) -> None:
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    x, y, a, b = rng.normal(size=(20, 3)), rng.normal(size=(15, 3)) + 0.5, rng.random(20) + 0.1, rng.random(15) + 0.1
    a, b, C = a / a.sum(), b / b.sum(), ((x[:, None] - y) ** 2).sum(2)

    def value(P: np.ndarray, rho: float) -> float:
        def kl(p: np.ndarray, q: np.ndarray) -> float:
            return float((p * np.log(p / q) - p + q).sum())

        penalty = 0.0 if math.isinf(rho) else rho * (kl(P.sum(1), a) + kl(P.sum(0), b))
        return float((P * C).sum()) + eps * kl(P, a[:, None] * b) + penalty

    balanced = ot.sinkhorn(a, b, C, eps, method="sinkhorn_log", stopThr=1e-13, numItermax=100000)
    found = fuzzing.reference.bounds(C, a, b, eps)
    assert found.middle == pytest.approx(value(balanced, math.inf), rel=1e-9)
    assert found.distance(value(balanced, math.inf)) < 1e-10
    soft = ot.unbalanced.sinkhorn_unbalanced(a, b, C, eps, 0.7, reg_type="kl", numItermax=100000, stopThr=1e-14)
    found = fuzzing.reference.bounds(C, a, b, eps, (0.7, 0.7))
    assert found.middle == pytest.approx(value(soft, 0.7), rel=1e-8)
    assert found.width < 1e-11


def test_interval_of_any_potentials_holds_the_value(fuzzing: ModuleType) -> None:
    """However bad the potentials are: the bounds are a proof, not an estimate."""
    reference, rng = fuzzing.reference, np.random.default_rng(1)
    C, a, b = rng.random((6, 4)), np.full(6, 1 / 6), rng.dirichlet(np.ones(4))
    for rho in ((math.inf, math.inf), (0.3, math.inf), (math.inf, 0.2), (0.5, 2.0)):
        problem = reference.Transport(C, a, b, 0.05, *rho)
        true = reference.bounds(C, a, b, 0.05, rho)
        for size in (1e-3, 0.1, 1.0):
            rough = reference.interval(problem, reference.evaluate(problem, size * rng.normal(size=4)))
            assert rough.lower <= true.upper
            assert rough.upper >= true.lower
            assert rough.width > true.width


def test_label_tables_from_moments(fuzzing: ModuleType) -> None:
    """Against ``tr (S T)^1/2`` from the eigenvalues of the product; the last class is one sample."""
    rng = np.random.default_rng(2)
    Cloud = fuzzing.problems.Cloud
    x = Cloud(rng.normal(size=(30, 3)), rng.dirichlet(np.ones(30)), np.arange(30) % 2)
    y = Cloud(rng.normal(size=(9, 3)) + 1, None, np.array([5, 5, 5, 5, 7, 7, 7, 7, 9]))
    parts = fuzzing.truth.class_parts(x) + fuzzing.truth.class_parts(y)
    means = [w @ p for p, w in parts]
    covariances = [np.cov(p.T, aweights=w, ddof=0) for p, w in parts[:-1]] + [np.zeros((3, 3))]
    found = fuzzing.truth.label_table(x, y, "gaussian")
    for i, (m, S) in enumerate(zip(means, covariances, strict=True)):
        for j, (k, T) in enumerate(zip(means, covariances, strict=True)):
            root = np.sqrt(np.abs(np.linalg.eigvals(S @ T).real)).sum()
            expected = ((m - k) ** 2).sum() + np.trace(S + T) - 2 * root
            assert found[i, j] == pytest.approx(expected, abs=1e-6)
    assert fuzzing.truth.label_table(x, y, "means")[0, 4] == pytest.approx(((means[0] - means[4]) ** 2).sum())


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "certified"),
        ({"converged": False}, "uncertified"),
        ({"value": 1.01}, "wrong"),
        ({"value": 1.0005, "error": 1e-4}, "outside"),
        ({"value": -0.01, "error": 1e-4, "converged": False}, "negative"),
        ({"mean_cost": 1.1}, "posed"),
        ({"epsilon": 0.2}, "posed"),
    ],
)
def test_verdicts(fuzzing: ModuleType, change: dict, outcome: str) -> None:
    """Two Diracs at distance one, whose value and mean cost are one."""
    P = fuzzing.problems
    clouds = P.Cloud(np.zeros((1, 1))), P.Cloud(np.ones((1, 1)))
    problem = P.pair(*clouds, P.Settings(epsilon=0.1))
    answer = fuzzing.calls.Answer(value=1.0, error=1e-3, converged=True, passes=1, epsilon=0.1, mean_cost=1.0)
    true = fuzzing.truth.truth(*clouds, problem.settings, 0.1)
    assert fuzzing.verdicts.outcome_of(problem, replace(answer, **change), true)[0] == outcome


def test_problems_are_a_function_of_family_seed_and_index(fuzzing: ModuleType) -> None:
    make = fuzzing.families.make
    for family in fuzzing.families.FAMILIES:
        first, again, other = make(family, 0, 5), make(family, 0, 5), make(family, 1, 5)
        assert first.settings == again.settings
        assert all(np.array_equal(p.x, q.x) for p, q in zip(first.clouds, again.clouds, strict=True))
        assert any(not np.array_equal(p.x, q.x) for p, q in zip(first.clouds, other.clouds, strict=False))


@pytest.mark.slow
def test_two_hundred_random_problems_hold_what_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """No certified value is outside its stated error or 1e-3 of the truth, in twenty problems of each family."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    assert importlib.import_module("fuzz").main(["--count", "20", "--seed", "3"]) == 0
