"""Many small problems in one batch: each result is that of its pair alone, with its own certificate."""

from __future__ import annotations

import itertools

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference
from otdd_flash.errors import NotConvergedError, NotConvergedWarning
from otdd_flash.sinkhorn import Execution, SolverOptions, sinkhorn_batch, sinkhorn_divergence
from otdd_flash.sinkhorn.batch import _groups

TIGHT = SolverOptions(tol=1e-8, max_iterations=5000)


def cloud(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def weights(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def uniform(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


@pytest.mark.parametrize("debiased", [True, False])
def test_equals_one_by_one(debiased: bool) -> None:
    """C30: 45 pairs of 15 x 2 points, the pairs of ten sets: batched they are what they are alone."""
    sets = [cloud(15, 2, seed, shift=0.2 * seed) for seed in range(10)]
    pairs = list(itertools.combinations(sets, 2))
    found = otdd.sinkhorn_batch(pairs, epsilon=1.0, debiased=debiased, options=TIGHT)
    assert len(found) == 45
    for (x, y), result in list(zip(pairs, found, strict=True))[::11]:
        alone = sinkhorn_divergence(x, y, epsilon=1.0, debiased=debiased, options=TIGHT)
        assert result.value == pytest.approx(alone.value, rel=1e-6)
        assert (result.converged, len(result.certificates)) == (True, len(alone.certificates))
        torch.testing.assert_close(result.plan.dense(), alone.plan.dense(), rtol=0, atol=1e-7)


def test_tiny_problems_stay_where_their_data_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """C30: a GPU in the machine is no reason to send tiny problems of the CPU there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found,) = sinkhorn_batch([(cloud(15, 2, 0), cloud(15, 2, 1))], epsilon=0.5)
    assert found.info.backend == "torch"
    assert found.potentials.f.device.type == "cpu"


@pytest.mark.gpu
def test_data_on_the_gpu_stays_there() -> None:
    pairs = [(cloud(15, 2, 2 * k), cloud(15, 2, 2 * k + 1, shift=0.5)) for k in range(45)]
    on_gpu = sinkhorn_batch([(x.cuda().float(), y.cuda().float()) for x, y in pairs], epsilon=0.3, options=TIGHT)
    assert on_gpu[0].potentials.f.device.type == "cuda"
    for ours, theirs in zip(on_gpu, sinkhorn_batch(pairs, epsilon=0.3, options=TIGHT), strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-4, abs=1e-5)


def test_ragged_sizes_weights_and_widths_against_the_oracle() -> None:
    shapes = [(5, 9, 2), (1, 4, 3), (30, 12, 5), (8, 8, 1)]
    pairs = [
        (cloud(n, d, 10 + k), cloud(m, d, 20 + k, shift=0.4), weights(n, k), weights(m, 5 + k))
        for k, (n, m, d) in enumerate(shapes)
    ]
    for (x, y, a, b), result in zip(pairs, sinkhorn_batch(pairs, epsilon=0.2, options=TIGHT), strict=True):
        expected = reference.divergence(x, y, a / a.sum(), b / b.sum(), 0.2)
        assert result.value == pytest.approx(expected, rel=1e-8, abs=1e-10)
        assert [tuple(p.shape) for p in result.potentials] == [(len(x),), (len(y),)]


def test_shared_clouds_are_solved_once_and_a_cloud_is_at_zero_from_itself() -> None:
    x, y = cloud(12, 3, 0), cloud(10, 3, 1, shift=1.0)
    calls: list[int] = []
    forth, back, same, copied = sinkhorn_batch(
        [(x, y), (y, x), (x, x), (x, x.clone())], epsilon=0.3, options=TIGHT,
        progress=lambda stage, passes, error: calls.append(passes),
    )  # fmt: skip
    assert calls
    assert forth.value == pytest.approx(back.value, rel=1e-8)
    assert (same.value, copied.value) == (0.0, 0.0)
    assert same.identical
    assert copied.identical


def test_groups_far_from_each_other_keep_their_digits() -> None:
    """Float32 pairs a million apart from each other: a common centre would leave nothing of their distances."""
    near = [(cloud(9, 4, 0).float(), cloud(7, 4, 1, shift=0.5).float())]
    far = [(x + 1024.0 * k, y + 1024.0 * k) for k, (x, y) in enumerate(near * 3)]
    exact = sinkhorn_divergence(near[0][0].double(), near[0][1].double(), epsilon=0.3, options=TIGHT)
    options, execution = SolverOptions(tol=1e-6), Execution(precision="fp32")
    for result in sinkhorn_batch(far, epsilon=0.3, options=options, execution=execution):
        assert result.value == pytest.approx(exact.value, rel=2e-3)  # what the shift itself rounds
        assert result.error < 1e-3


def test_groups_are_the_connected_components() -> None:
    assert _groups(7, [(3, 4), (0, 1), (4, 1), (5, 5)]) == [0, 0, 2, 0, 0, 5, 6]


def test_finished_problems_retire() -> None:
    easy = (0.1 * cloud(10, 2, 0), 0.1 * cloud(10, 2, 1))  # all costs are near epsilon
    hard = (cloud(40, 2, 2), cloud(40, 2, 3, shift=3.0))
    found = sinkhorn_batch([easy, hard], epsilon=0.05, options=SolverOptions(tol=1e-6, max_iterations=3000))
    assert all(result.converged for result in found)
    cross = [result.certificates[0]["iterations"] for result in found]
    assert cross[0] < cross[1]


def test_unbalanced_and_empty() -> None:
    options = SolverOptions(tol=1e-8, rho_x=2.0, rho_y=2.0, max_iterations=3000)
    pairs = [(cloud(10, 2, k), cloud(8, 2, 9 + k), weights(10, k), weights(8, k)) for k in range(3)]
    for (x, y, a, b), result in zip(pairs, sinkhorn_batch(pairs, epsilon=0.3, options=options), strict=True):
        alone = sinkhorn_divergence(x, y, epsilon=0.3, a=a, b=b, options=options)
        assert result.value == pytest.approx(alone.value, rel=1e-6)
    assert sinkhorn_batch([], epsilon=0.1) == []


def test_a_miss_names_the_pair() -> None:
    pairs = [(cloud(10, 2, 0), cloud(10, 2, 1)), (cloud(40, 2, 2), cloud(40, 2, 3, shift=3.0))]
    options = SolverOptions(tol=1e-12, max_iterations=1)
    with pytest.warns(NotConvergedWarning, match=r"2 of 2 pairs .* worst is pair"):
        found = sinkhorn_batch(pairs, epsilon=0.01, options=options)
    assert not any(result.converged for result in found)
    with pytest.raises(NotConvergedError, match="max_iterations"):
        sinkhorn_batch(pairs, epsilon=0.01, options=options, strict=True)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((torch.rand(3, 2), torch.rand(3, 4)), "pair 1: x has 2 features and y 4"),
        ((torch.rand(3), torch.rand(3, 4)), "pair 1 needs points"),
        ((torch.rand(3, 2),), r"pair 1 must be \(x, y\)"),
        ((torch.rand(3, 2), torch.tensor([[0.0, float("nan")]])), "y of pair 1 holds NaN"),
        ((torch.rand(3, 2), torch.rand(3, 2), torch.ones(4), None), r"weights of x of pair 1 must have shape \(3,\)"),
        ((torch.rand(3, 2), torch.rand(3, 2, device="meta")), "y of pair 1 is on the device meta and holds no numbers"),
    ],
)
def test_refusals_name_the_pair(pair: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sinkhorn_batch([(torch.rand(3, 2), torch.rand(2, 2)), pair], epsilon=0.1)
