"""The oracle itself: against closed forms, against POT, and against the definitions."""

from __future__ import annotations

import pytest
import torch

from otdd_flash import reference
from tests.closed_forms import CASES, ClosedForm, gaussians, random_weights, uniform


def problem(n: int = 23, m: int = 17, d: int = 4, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(k, d, generator=rng, dtype=torch.float64) for k in (n, m))
    return x, y, random_weights(n, rng), random_weights(m, rng)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_closed_forms(case: ClosedForm) -> None:
    if case.value is not None:
        C = reference.cost_matrix(case.x, case.y, label_cost=case.labels)
        assert reference.ot_value(C, case.a, case.b, case.epsilon) == pytest.approx(case.value, abs=case.tolerance)
    if case.divergence is not None:
        value = reference.divergence(case.x, case.y, case.a, case.b, case.epsilon, label_cost=case.labels)
        assert value == pytest.approx(case.divergence, abs=case.tolerance)


@pytest.mark.parametrize("eps", [2.0, 0.2, 0.05])
def test_equals_pot(eps: float) -> None:
    ot = pytest.importorskip("ot")
    x, y, a, b = problem()
    C = reference.cost_matrix(x, y)
    f, g = reference.sinkhorn(C, a, b, eps)
    P = reference.plan(C, f, g, a, b, eps)
    expected = ot.bregman.sinkhorn_log(a.numpy(), b.numpy(), C.numpy(), eps, numItermax=100_000, stopThr=1e-13)
    assert torch.allclose(P, torch.from_numpy(expected), atol=1e-11, rtol=0)
    primal = (P * C).sum() + eps * (P * (P / (a[:, None] * b)).log()).sum()
    assert reference.ot_value(C, a, b, eps) == pytest.approx(float(primal), abs=1e-11)


def test_small_epsilon_approaches_exact_transport() -> None:
    ot = pytest.importorskip("ot")
    x, y, a, b = problem(n=15, m=15)
    C = reference.cost_matrix(x, y)
    exact = float(ot.emd2(a.numpy(), b.numpy(), C.numpy()))
    value = reference.ot_value(C, a, b, 1e-3)
    assert exact - 1e-12 <= value <= exact + 1e-3 * 2.8  # 0 <= eps KL(P* | a b^T) <= eps min(H(a), H(b))


def test_zero_weight_is_no_point() -> None:
    x, y, a, b = problem()
    a[3], b[5] = 0.0, 0.0
    a, b = a / a.sum(), b / b.sum()
    C, keep_x, keep_y = reference.cost_matrix(x, y), a > 0, b > 0
    value = reference.ot_value(C, a, b, 0.1)
    assert value == pytest.approx(reference.ot_value(C[keep_x][:, keep_y], a[keep_x], b[keep_y], 0.1), abs=1e-12)


def test_marginals_and_plan_application() -> None:
    x, y, a, b = problem()
    C, eps = reference.cost_matrix(x, y, feature_weight=0.5), 0.3
    f, g = reference.sinkhorn(C, a, b, eps)
    r, c = reference.marginals(C, f, g, a, b, eps)
    assert float((r - a).abs().sum() + (c - b).abs().sum()) <= 1e-12
    ones = torch.ones(17, 1, dtype=torch.float64)
    assert torch.allclose(reference.apply_plan(C, f, g, a, b, eps, ones)[:, 0], a, atol=1e-12, rtol=0)
    assert torch.allclose(reference.apply_plan(C.T, g, f, b, a, eps, x), reference.plan(C, f, g, a, b, eps).T @ x)


def test_cost_matrix_of_labels_equals_loops() -> None:
    x, y, _, _ = problem(n=5, m=4)
    table = torch.rand(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, columns = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([2, 0, 0, 1])
    C = reference.cost_matrix(x, y, feature_weight=2.0, label_cost=(table, rows, columns))
    for i in range(5):
        for j in range(4):
            expected = 2.0 * float((x[i] - y[j]) @ (x[i] - y[j])) + float(table[rows[i], columns[j]])
            assert float(C[i, j]) == pytest.approx(expected, rel=1e-14)


def test_debiased_divergence_is_smallest_at_equal_spread() -> None:
    """C08: N(0, 1) against N(0, s^2)."""
    spreads = [0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0]
    cases = [gaussians(gap=0.0, t=s, eps=1.0, n=61) for s in spreads]
    values = [reference.divergence(case.x, case.y, case.a, case.b, case.epsilon) for case in cases]
    assert values.index(min(values)) == spreads.index(1.0)
    assert values[3] == pytest.approx(0.0, abs=1e-12)


def test_unreachable_tolerance_raises() -> None:
    x, y, a, b = problem()
    with pytest.raises(RuntimeError, match="marginal error"):
        reference.sinkhorn(reference.cost_matrix(x, y), a, b, 1e-2, tol=0.0, max_iterations=30)


def test_one_point_each() -> None:
    C = torch.tensor([[4.0]])
    f, g = reference.sinkhorn(C, uniform(1), uniform(1), 0.1)
    assert float(f + g) == pytest.approx(4.0, abs=1e-14)
