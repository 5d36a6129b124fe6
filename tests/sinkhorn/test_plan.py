"""What the plan's products take, and what they refuse by name."""

from __future__ import annotations

import pytest
import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.sinkhorn import TransportPlan, divergence


@pytest.fixture(scope="module")
def plan() -> TransportPlan:
    """Between 6 and 5 points."""
    generator = torch.Generator().manual_seed(0)
    clouds = [
        PointCloud(
            torch.randn(n, 2, generator=generator, dtype=torch.float64), torch.full((n,), 1 / n, dtype=torch.float64)
        )
        for n in (6, 5)
    ]
    return divergence(DotProductCost.build(clouds), 0.5).plan


def test_integers_keep_their_digits(plan: TransportPlan) -> None:
    values = torch.arange(5) + (1 << 26)  # float32 would round them all to 2^26
    P = plan.dense()
    torch.testing.assert_close(plan.apply(values), P @ values.double(), rtol=1e-12, atol=0)
    torch.testing.assert_close(plan.map(values)[:, 0], (P @ values.double()) / P.sum(1), rtol=1e-12, atol=0)
    weights = torch.arange(6) + (1 << 26)
    torch.testing.assert_close(plan.apply_transposed(weights), P.T @ weights.double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("name", "argument", "n"), [("apply", "v", 5), ("apply_transposed", "u", 6), ("map", "y", 5)])
def test_complex_values_and_what_is_no_tensor(plan: TransportPlan, name: str, argument: str, n: int) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be real, got torch.complex64"):
        getattr(plan, name)(torch.ones(n, dtype=torch.complex64))
    for values in (torch.ones(n).numpy(), [1.0] * n):
        with pytest.raises(TypeError, match=f"{argument} must be a torch tensor, got {type(values).__name__}"):
            getattr(plan, name)(values)


def test_labels_are_checked(plan: TransportPlan) -> None:
    x, y = torch.tensor([0, 1, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 1])
    for labels, kind, message in (
        (y[:-1], ValueError, r"target_labels must have 5 rows, got shape \(4,\)"),
        (y.double(), ValueError, r"target_labels must be \(5,\) integers, got \(5,\) of torch.float64"),
        (y[:, None], ValueError, r"target_labels must be \(5,\) integers"),
        (y - 1, ValueError, "target_labels must be class ids from 0, got -1"),
        (y.tolist(), TypeError, "target_labels must be a torch tensor, got list"),
    ):
        with pytest.raises(kind, match=message):
            plan.class_coupling(x, labels)
        with pytest.raises(kind, match=message):
            plan.transfer_labels(labels)
    with pytest.raises(ValueError, match="source_labels must have 6 rows"):
        plan.class_coupling(x[1:], y)
    small = plan.class_coupling(x.to(torch.int32), y.to(torch.uint8))
    P = plan.dense()
    expected = torch.stack([torch.stack([P[x == i][:, y == j].sum() for j in range(2)]) for i in range(3)])
    torch.testing.assert_close(small, expected, rtol=1e-10, atol=0)
