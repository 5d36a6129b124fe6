"""Hessian products against ``torch.func.hessian`` of a dense solve; spectrum, solves, large width."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from otdd_flash import reference
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.errors import NotConvergedWarning
from otdd_flash.sinkhorn import Divergence, SolverOptions, divergence, sinkhorn_divergence
from otdd_flash.sinkhorn.hessian import SinkhornHessian
from otdd_flash.sinkhorn.implicit import ImplicitOptions
from otdd_flash.sinkhorn.krylov import conjugate_gradients, lanczos

TIGHT = SolverOptions(tol=1e-12, max_iterations=5000)
EPSILON = 2.0
N, M, D = 30, 25, 2


def clouds(*, labelled: bool, n: int = N, m: int = M, d: int = D, gap: float = 0.5) -> DotProductCost:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) + gap
    a, b = (torch.rand(k, generator=rng, dtype=torch.float64) + 0.2 for k in (n, m))
    table = torch.rand(4, 4, generator=rng, dtype=torch.float64)
    table = (table + table.T).fill_diagonal_(0.0)
    labels = (torch.arange(n) % 2, torch.arange(m) % 2 + 2) if labelled else (None, None)
    sides = [PointCloud(x, a / a.sum(), labels[0]), PointCloud(y, b / b.sum(), labels[1])]
    return DotProductCost.build(sides, feature_weight=0.7, table=table if labelled else None)


def dense_divergence(cost: DotProductCost, x: Tensor, *, debiased: bool) -> Tensor:
    """The divergence as a function of the first cloud's points, by iterations that autograd can follow."""
    points = (x, cost.clouds[1].points)

    def term(i: int, j: int) -> Tensor:
        (p, q), (left, right) = (cost.clouds[i], cost.clouds[j]), (points[i], points[j])
        C = cost.feature_weight * (left[:, None] - right[None]).square().sum(-1)
        C = C if cost.table is None else C + cost.table[p.labels][:, q.labels]
        f, g = torch.zeros_like(p.weights), torch.zeros_like(q.weights)
        for _ in range(30 if i == j else 60):
            if i == j:
                f = g = (f + reference.softmin(C, g, q.weights.log(), EPSILON)) / 2
            else:
                f = reference.softmin(C, g, q.weights.log(), EPSILON)
                g = reference.softmin(C.T, f, p.weights.log(), EPSILON)
        return p.weights @ f + q.weights @ g

    return term(0, 1) - term(0, 0) / 2 if debiased else term(0, 1)


def solved(cost: DotProductCost, *, debiased: bool = True) -> Divergence:
    return divergence(cost, EPSILON, debiased=debiased, options=TIGHT)


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
def test_products_and_spectrum_equal_a_dense_hessian(labelled: bool, debiased: bool) -> None:
    cost = clouds(labelled=labelled)
    x = cost.clouds[0].points
    expected = torch.func.hessian(lambda z: dense_divergence(cost, z, debiased=debiased))(x).reshape(N * D, N * D)
    found = solved(cost, debiased=debiased)
    for memory in ("streamed", "cached"):
        H = SinkhornHessian(found, memory=memory)
        dense = H.dense()
        assert float((dense - expected).norm() / expected.norm()) <= 1e-6
        assert float((dense - dense.T).norm() / dense.norm()) <= 1e-6
        assert H.record.converged
        assert H.record.residual <= 2e-11
    values = torch.linalg.eigvalsh(expected)
    ends = H.extreme_eigenvalues(2)
    torch.testing.assert_close(ends.smallest, values[:2], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ends.largest, values[-2:].flip(0), rtol=1e-6, atol=1e-9)
    for value, vector in zip(ends.smallest, ends.smallest_vectors.T, strict=True):
        torch.testing.assert_close(expected @ vector, value * vector, rtol=0, atol=1e-6 * float(values.abs().max()))


def test_hessian_in_the_other_side_is_that_of_the_swapped_problem() -> None:
    cost = clouds(labelled=True)
    swapped = DotProductCost.build(cost.clouds[::-1], feature_weight=cost.feature_weight, table=cost.table)
    one, other = SinkhornHessian(solved(cost), side="y"), SinkhornHessian(solved(swapped), side="x")
    assert one.shape == other.shape == (M * D, M * D)
    torch.testing.assert_close(one.dense(), other.dense(), rtol=1e-7, atol=1e-9)


def test_shapes_of_directions_agree() -> None:
    H = SinkhornHessian(solved(clouds(labelled=True)))
    v = torch.randn(N * D, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = H @ v
    assert together.shape == v.shape
    for k in range(3):
        torch.testing.assert_close(H @ v[:, k], together[:, k], rtol=1e-8, atol=1e-12)
        torch.testing.assert_close((H @ v[:, k].reshape(N, D)).reshape(-1), together[:, k], rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="v must be"):
        H @ torch.zeros(5)
    with pytest.raises(ValueError, match="side"):
        SinkhornHessian(solved(clouds(labelled=True)), side="z")


def test_moving_all_points_together() -> None:
    """``S(x + s, x + t)`` is ``S(x, x) + |s - t|^2``: a common shift is an eigenvector-like direction, 2 a_i each."""
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    found = sinkhorn_divergence(x, x + torch.tensor([0.1, 0.0, 0.2]), epsilon=3.0, options=TIGHT)
    shift = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64).expand(20, 3)
    torch.testing.assert_close(SinkhornHessian(found) @ shift, 2 * shift / 20, rtol=1e-7, atol=1e-10)


def test_identical_clouds_are_a_minimum() -> None:
    """Value and gradient vanish there; the Hessian does not, and has no negative eigenvalue."""
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = sinkhorn_divergence(x, x.clone(), epsilon=2.0, options=TIGHT)
    H = SinkhornHessian(found)
    values = torch.linalg.eigvalsh(H.dense())
    assert found.value == 0.0
    assert float(values[0]) > -1e-10
    v = torch.randn(12, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    h = 1e-3
    moved = [reference.divergence(x + s * v, x, *[torch.full((12,), 1 / 12).double()] * 2, 2.0) for s in (h, -h)]
    assert float((v * (H @ v)).sum()) == pytest.approx(sum(moved) / h**2, rel=1e-4)


def test_all_points_at_one_place_are_a_saddle() -> None:
    """Two points on top of each other between two targets: pulling them apart lowers the divergence."""
    x = torch.zeros(2, 1, dtype=torch.float64)
    y = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    H = SinkhornHessian(sinkhorn_divergence(x, y, epsilon=0.5, options=TIGHT))
    ends = H.extreme_eigenvalues()
    assert float(ends.smallest[0]) < -0.1
    assert float(ends.smallest_vectors[:, 0].prod()) == pytest.approx(-0.5, abs=1e-8)
    assert float(ends.largest[0]) == pytest.approx(1.0, rel=1e-8)  # both together: 2 a_i


def test_solve_inverts_the_damped_hessian() -> None:
    H = SinkhornHessian(solved(clouds(labelled=True)))
    right = torch.randn(N, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    tikhonov = 2 * max(0.0, -float(H.extreme_eigenvalues().smallest[0])) + 1e-2
    found = H.solve(right, tikhonov=tikhonov, tol=1e-10)
    assert found.converged
    assert found.residual <= 1e-9
    matrix = H.dense() + tikhonov * torch.eye(N * D, dtype=torch.float64)
    torch.testing.assert_close(found.x.reshape(-1), torch.linalg.solve(matrix, right.reshape(-1)), rtol=1e-6, atol=1e-9)
    x = torch.zeros(2, 1, dtype=torch.float64)
    saddle = sinkhorn_divergence(x, torch.tensor([[-1.0], [1.0]], dtype=torch.float64), epsilon=0.5, options=TIGHT)
    refused = SinkhornHessian(saddle).solve(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert refused.indefinite
    assert not refused.converged


def test_any_width() -> None:
    """d = 4,096; two products of one symmetric operator."""
    cost = clouds(labelled=True, n=12, m=10, d=4096, gap=0.0)
    epsilon = 0.3 * cost.mean(0, 1)
    H = SinkhornHessian(divergence(cost, epsilon, options=TIGHT), memory="streamed")
    u, v = torch.randn(2, 12, 4096, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    Hu, Hv = (H @ torch.stack([u.reshape(-1), v.reshape(-1)], 1)).T
    assert float(u.reshape(-1) @ Hv) == pytest.approx(float(v.reshape(-1) @ Hu), rel=1e-8, abs=1e-10)
    shift = torch.ones(12, 4096, dtype=torch.float64)
    expected = 2 * cost.feature_weight * cost.clouds[0].weights[:, None].expand(12, 4096)
    torch.testing.assert_close(H @ shift, expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="refused"):
        H.dense()


def test_float32_products_are_near_float64() -> None:
    cost = clouds(labelled=True)
    single = [PointCloud(c.points.float(), c.weights, c.labels) for c in cost.clouds]
    low = DotProductCost.build(single, feature_weight=cost.feature_weight, table=cost.table)
    v = torch.randn(N, D, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    products = [
        SinkhornHessian(divergence(c, EPSILON, options=SolverOptions(tol=tol, max_iterations=2000))) @ v
        for c, tol in ((low, 1e-6), (cost, 1e-12))
    ]
    assert float((products[0] - products[1]).norm() / products[1].norm()) < 1e-4


def test_unsolved_system_is_said() -> None:
    H = SinkhornHessian(solved(clouds(labelled=False)), options=ImplicitOptions(max_iterations=1))
    with pytest.warns(NotConvergedWarning, match="relative residual"):
        H @ torch.ones(N, D)
    assert H.record.residual > 1e-11


def test_zero_weight_is_no_point() -> None:
    cost = clouds(labelled=False)
    x, y = cost.clouds
    a = x.weights.clone()
    a[[3, 7]] = 0
    keep = a > 0
    with_zero = SinkhornHessian(sinkhorn_divergence(x.points, y.points, a=a, epsilon=2.0, options=TIGHT))
    without = SinkhornHessian(sinkhorn_divergence(x.points[keep], y.points, a=a[keep], epsilon=2.0, options=TIGHT))
    v = torch.randn(N, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    product = with_zero @ v
    torch.testing.assert_close(product[keep], without @ v[keep], rtol=1e-7, atol=1e-10)
    assert float(product[~keep].abs().max()) == 0.0


def test_conjugate_gradients_solve_several_systems_at_once() -> None:
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, generator=rng, dtype=torch.float64)
    matrix, b = root @ root.T + torch.eye(20), torch.randn(20, 3, generator=rng, dtype=torch.float64)
    b[:, 1] = 0.0
    found = conjugate_gradients(lambda v: matrix @ v, b, diagonal=matrix.diagonal(), tol=1e-12)
    assert found.converged
    torch.testing.assert_close(found.x, torch.linalg.solve(matrix, b), rtol=1e-8, atol=1e-10)
    short = conjugate_gradients(lambda v: matrix @ v, b, tol=1e-12, max_iterations=3)
    assert not short.converged
    expected = float(((b - matrix @ short.x).norm(dim=0) / b.norm(dim=0).clamp_min(1e-300)).max())
    assert short.residual == pytest.approx(expected)


def test_lanczos_goes_on_past_an_invariant_subspace() -> None:
    """A start vector that sees one eigenvector only; repeated eigenvalues."""
    diagonal = torch.tensor([-3.0, -3.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    start = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    found = lanczos(lambda v: diagonal * v, start, count=2)
    torch.testing.assert_close(found.smallest, diagonal[:2])
    torch.testing.assert_close(found.largest, torch.tensor([5.0, 2.0], dtype=torch.float64))
    assert found.converged
    with pytest.raises(ValueError, match="count"):
        lanczos(lambda v: diagonal * v, start, count=6)
