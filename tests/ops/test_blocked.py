"""The blocked torch backend against the dense float64 oracle, over shapes, modes, labels, weights and batches."""

from __future__ import annotations

import pytest
import torch

from otdd_flash import reference
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import blocked, make_operator
from otdd_flash.ops.linear import exp_

SHAPES = [(1, 1, 1), (7, 33, 3), (40, 25, 64), (65, 130, 17)]


def cloud(n: int, d: int, seed: int, classes: range | None = None) -> PointCloud:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    if n > 3:
        weights[1] = 0.0
    labels = None
    if classes is not None:
        labels = torch.randint(classes.start, classes.stop, (n,), generator=generator)
    return PointCloud(torch.randn(n, d, generator=generator, dtype=torch.float64), weights / weights.sum(), labels)


def make_cost(sizes: list[int], d: int, *, labelled: bool) -> DotProductCost:
    clouds = [cloud(n, d, seed, range(2 * seed, 2 * seed + 2) if labelled else None) for seed, n in enumerate(sizes)]
    table = None
    if labelled:
        table = torch.rand(2 * len(sizes), 2 * len(sizes), generator=torch.Generator().manual_seed(9)).double() * d
        table = (table + table.T).fill_diagonal_(0.0)
    return DotProductCost.build(clouds, feature_weight=0.7, table=table)


def dense_cost(cost: DotProductCost, i: int, j: int) -> torch.Tensor:
    x, y = cost.clouds[i], cost.clouds[j]
    labels = None if cost.table is None else (cost.table, x.labels, y.labels)
    return reference.cost_matrix(x.points, y.points, feature_weight=cost.feature_weight, label_cost=labels)


@pytest.fixture(params=["streamed", "cached"])
def memory(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[16, 1 << 18], ids=["tiny blocks", "one block"], autouse=True)
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks far smaller than a problem, so that every seam is crossed, and blocks larger than it."""
    monkeypatch.setitem(blocked._BLOCK_ELEMENTS, "cpu", request.param)


@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_every_op_equals_the_oracle(n: int, m: int, d: int, labelled: bool, precision: str, memory: str) -> None:
    cost = make_cost([n, m], d, labelled=labelled)
    eps, problems = 0.8 * d, [(0, 1), (0, 0), (1, 1)]
    operator = make_operator(cost, problems, epsilon=eps, precision=precision, memory=memory)
    assert operator.info.memory == memory
    f, g = torch.randn(3, operator.a.shape[1]).double(), torch.randn(3, operator.b.shape[1]).double()
    r, c = operator.marginals(f, g, eps)
    rows = operator.softmin(g, eps, side="rows")
    columns = operator.softmin(f, eps, side="columns")
    tolerance = {"rtol": 1e-11, "atol": 1e-12} if precision == "fp64" else {"rtol": 2e-5, "atol": 1e-5}
    for p, (i, j) in enumerate(problems):
        C, a, b = dense_cost(cost, i, j), cost.clouds[i].weights, cost.clouds[j].weights
        fp = operator.unpack_rows(f[p], p)
        gp = fp if i == j else operator.unpack_columns(g[p], p)
        r0, c0 = reference.marginals(C, fp, gp, a, b, eps)
        torch.testing.assert_close(operator.unpack_rows(r[p], p), r0, **tolerance)
        torch.testing.assert_close(operator.unpack_columns(c[p], p), c0, **tolerance)
        kept_a, kept_b = a > 0, b > 0
        h = operator.unpack_columns(g[p], p)
        expected = reference.softmin(C, h, b.log(), eps)
        torch.testing.assert_close(operator.unpack_rows(rows[p], p)[kept_a], expected[kept_a], **tolerance)
        expected = reference.softmin(C.T, operator.unpack_rows(f[p], p), a.log(), eps)
        torch.testing.assert_close(operator.unpack_columns(columns[p], p)[kept_b], expected[kept_b], **tolerance)
        v, u = torch.randn(len(b), 3).double(), torch.randn(len(a), 2).double()
        product = operator.apply_plan(p, fp, gp, eps, v=v, u=u)
        pv, ptu = product.pv, product.ptu
        torch.testing.assert_close(product.r, r0, **tolerance)
        torch.testing.assert_close(product.c, c0, **tolerance)
        torch.testing.assert_close(pv, reference.apply_plan(C, fp, gp, a, b, eps, v), **tolerance)
        torch.testing.assert_close(ptu, reference.apply_plan(C.T, gp, fp, b, a, eps, u), **tolerance)


def test_a_stored_plan_serves_nearby_potentials_and_is_renewed_for_others() -> None:
    cost = make_cost([30, 20], 4, labelled=True)
    operator = make_operator(cost, [(0, 1), (0, 0)], epsilon=2.0, memory="cached")
    f, g = torch.randn(operator.a.shape).double(), torch.randn(operator.b.shape).double()
    operator.marginals(f, g, 2.0)
    for shift in (0.5, 3.0, 60.0):
        f, g = f + shift * torch.randn_like(f), g + shift * torch.randn_like(g)
        r, c = operator.marginals(f, g, 2.0)
        for p, (i, j) in enumerate(operator.problems):
            a, b = cost.clouds[i].weights, cost.clouds[j].weights
            fp = operator.unpack_rows(f[p], p)
            gp = fp if i == j else operator.unpack_columns(g[p], p)
            r0, c0 = reference.marginals(dense_cost(cost, i, j), fp, gp, a, b, 2.0)
            torch.testing.assert_close(operator.unpack_rows(r[p], p), r0, rtol=1e-10, atol=0)
            torch.testing.assert_close(operator.unpack_columns(c[p], p), c0, rtol=1e-10, atol=0)


def test_ragged_batch_equals_one_by_one(memory: str) -> None:
    cost = make_cost([5, 9, 6, 40, 1], 3, labelled=False)
    problems = [(i, j) for i in range(5) for j in range(i, 5)]
    batch = make_operator(cost, problems, epsilon=1.0, memory=memory)
    f, g = torch.randn_like(batch.a), torch.randn_like(batch.b)
    r, c = batch.marginals(f, g, 1.0)
    for p, problem in enumerate(problems):
        single = make_operator(cost, [problem], epsilon=1.0, memory=memory)
        n, m = single.a.shape[1], single.b.shape[1]
        r1, c1 = single.marginals(f[p : p + 1, :n], g[p : p + 1, :m], 1.0)
        torch.testing.assert_close(r[p, :n], r1[0], rtol=1e-12, atol=0)
        torch.testing.assert_close(c[p, :m], c1[0], rtol=1e-12, atol=0)
        assert float(r[p, n:].abs().sum()) == 0.0


def test_finished_problems_are_left_out() -> None:
    cost = make_cost([12, 30], 3, labelled=False)
    operator = make_operator(cost, [(0, 1), (0, 0), (1, 1)], epsilon=1.0, memory="streamed")
    f, g = torch.randn_like(operator.a), torch.randn_like(operator.b)
    full, _ = operator.marginals(f, g, 1.0)
    part, _ = operator.marginals(f, g, 1.0, torch.tensor([True, False, True]))
    torch.testing.assert_close(part[[0, 2]], full[[0, 2]], rtol=0, atol=0)


def test_precision_follows_data_and_epsilon() -> None:
    x = PointCloud(torch.randn(10, 3), torch.full((10,), 0.1).double())
    cost = DotProductCost.build([x, x])
    assert make_operator(cost, [(0, 1)], epsilon=1.0).info.precision == "fp32"
    assert make_operator(cost, [(0, 1)], epsilon=1e-4).info.precision == "fp64"
    assert make_operator(make_cost([4, 4], 2, labelled=False), [(0, 1)], epsilon=1.0).info.precision == "fp64"
    with pytest.raises(ValueError, match=r"fp16.*backend='triton'"):
        make_operator(cost, [(0, 1)], epsilon=1.0, precision="fp16", backend="torch")


def test_memory_budget_decides_what_is_stored() -> None:
    cost = make_cost([50, 60], 3, labelled=False)
    assert make_operator(cost, [(0, 1)], epsilon=1.0, memory_budget=1 << 20).info.memory == "cached"
    assert make_operator(cost, [(0, 1)], epsilon=1.0, memory_budget=1000).info.memory == "streamed"
    with pytest.raises(MemoryError, match="memory='streamed'"):
        make_operator(cost, [(0, 1)], epsilon=1.0, memory="cached", memory_budget=1000)


@pytest.mark.parametrize("argument", ["backend", "memory"])
def test_unknown_choices_are_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be"):
        make_operator(make_cost([4, 4], 2, labelled=False), [(0, 1)], epsilon=1.0, **{argument: "best"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_that_underflow_are_zero(dtype: torch.dtype) -> None:
    exponents = torch.linspace(-1000, 80, 4001, dtype=dtype)
    expected = exponents.exp()
    expected[expected < 1.5 * torch.finfo(dtype).tiny] = 0.0
    found = exp_(exponents.clone())
    normal = (found > 0) & (expected > 0)
    assert torch.equal(found[normal], expected[normal])
    assert float((found - expected).abs()[~normal].max()) < 3 * torch.finfo(dtype).tiny
    special = exp_(torch.tensor([-torch.inf, torch.inf, torch.nan] * 8, dtype=dtype))
    assert special[:2].tolist() == [0.0, torch.inf]
    assert bool(special[2].isnan())
