"""Every kernel, operand mode and memory mode against a dense float64 oracle of a few lines."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import pytest
import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops.fused import FusedOperator

EXACT = 2e-5  # float32 exponents of size ~30 round by 2e-6
TOLERANCE = {"int8": EXACT, "fp32": EXACT, "fp16x3": EXACT, "fp16": 2e-2, "tf32": 2e-2}


def cloud(n, d, classes, seed, *, zero=False):
    gen = torch.Generator().manual_seed(seed)
    points = torch.randint(0, 256, (n, d), generator=gen).float() / 255
    weights = torch.rand(n, dtype=torch.float64, generator=gen) + 0.1
    if zero and n > 2:
        weights[1] = 0.0
    labels = torch.randint(0, classes, (n,), generator=gen) if classes else None
    return PointCloud(points, weights / weights.sum(), labels)


def make_cost(sizes, d, classes, *, zero=False):
    gen = torch.Generator().manual_seed(7)
    table = torch.rand(max(classes, 1), max(classes, 1), dtype=torch.float64, generator=gen)
    clouds = [cloud(n, d, classes, 11 + k, zero=zero) for k, n in enumerate(sizes)]
    return DotProductCost.build(clouds, feature_weight=1.3, table=table + table.T if classes else None)


def dense(cost, i, j):
    x, y = (cost.clouds[k].points.double() for k in (i, j))
    value = cost.feature_weight * (x[:, None] - y[None]).square().sum(-1)
    if cost.table is not None:
        value = value + cost.table[cost.clouds[i].labels][:, cost.clouds[j].labels]
    return value


class Oracle:
    """Potentials near a solution and the dense plan of one problem."""

    def __init__(self, cost, i, j, eps, seed=0):
        self.C, self.a, self.b, self.eps = dense(cost, i, j), cost.clouds[i].weights, cost.clouds[j].weights, eps
        gen = torch.Generator().manual_seed(seed)
        self.g = torch.rand(len(self.b), dtype=torch.float64, generator=gen) * eps
        self.f = self.rows()
        if i == j:
            self.f = self.g = 0.5 * self.f
        self.P = self.a[:, None] * self.b[None] * torch.exp((self.f[:, None] + self.g[None] - self.C) / eps)

    def rows(self):
        return -self.eps * torch.logsumexp((self.g[None] - self.C) / self.eps + self.b.log()[None], 1)

    def columns(self):
        return -self.eps * torch.logsumexp((self.f[:, None] - self.C) / self.eps + self.a.log()[:, None], 0)


def relative(x, y):
    assert torch.isfinite(x).all()
    return float((x - y).norm() / y.norm().clamp_min(1e-300))


def build(cost, problems, **kwargs):
    eps = 0.2 * cost.mean(*problems[0]) + 1e-2
    op = FusedOperator.build(cost, problems, epsilon=eps, **kwargs)
    oracles = [Oracle(cost, i, j, eps) for i, j in problems]
    f = torch.stack([op.pack_rows(o.f, p) for p, o in enumerate(oracles)])
    g = torch.stack([op.pack_columns(o.g, p) for p, o in enumerate(oracles)])
    return op, oracles, f, g, eps


def check_marginals(op, oracles, f, g, eps, tolerance):
    op._exponent.fill_(float("nan"))
    f, g = (
        torch.where(w > 0, x, torch.inf) for x, w in ((f, op.a), (g, op.b))
    )  # what stands at weight zero is no matter
    r, c = op.marginals(f, g, eps)
    for p, oracle in enumerate(oracles):
        assert relative(op.unpack_rows(r[p], p), oracle.P.sum(1)) < tolerance
        assert relative(op.unpack_columns(c[p], p), oracle.P.sum(0)) < tolerance
        assert float(r[p].sum()) == pytest.approx(float(oracle.P.sum()), rel=tolerance)  # nothing at padding


@pytest.mark.parametrize("memory", ["streamed", "cached"])
@pytest.mark.parametrize("mode", list(TOLERANCE))
def test_marginals_of_a_debiased_triple(mode, memory):
    cost = make_cost([40, 70], 37, 3, zero=True)
    op, *rest = build(cost, [(0, 1), (0, 0), (1, 1)], precision=mode, memory=memory)
    assert (op.info.precision, op.info.memory, op.info.backend) == (mode, memory, "triton")
    check_marginals(op, *rest, TOLERANCE[mode])


@pytest.mark.parametrize("memory", ["streamed", "cached"])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (1, 33, 3), (65, 1, 64), (129, 66, 5)])
def test_marginals_on_odd_shapes(n, m, d, memory):
    op, *rest = build(make_cost([n, m], d, 0), [(0, 1), (1, 1)], memory=memory)
    assert op.info.precision == "int8"
    check_marginals(op, *rest, EXACT)


@pytest.mark.parametrize("d", [63, 80, 85, 86, 128, 129])
def test_every_way_to_place_the_last_features_of_two_halves(d):
    check_marginals(*build(make_cost([33, 20], d, 0), [(0, 1), (1, 1)], precision="fp16x3", memory="streamed"), EXACT)


@pytest.mark.parametrize("classes", [1, 2, 60])
def test_tiles_of_many_classes(classes):
    check_marginals(*build(make_cost([70, 50], 4, classes), [(0, 1), (1, 0), (0, 0)], precision="fp16x3"), EXACT)


@pytest.mark.parametrize("deterministic", [True, False])
def test_ragged_batch_and_retired_problems(deterministic):
    sizes = [3, 17, 40, 66]
    problems = [(i, j) for i in range(4) for j in range(i, 4)]
    cost = make_cost(sizes, 6, 0)
    op, oracles, f, g, eps = build(cost, problems, deterministic=deterministic, memory="streamed")
    check_marginals(op, oracles, f, g, eps, EXACT)
    assert all(float(t.abs().max()) == 0 for t in op.marginals(f, g, eps, torch.zeros(len(problems), dtype=torch.bool)))
    active = torch.tensor([p % 3 != 1 for p in range(len(problems))])
    r, c = op.marginals(f, g, eps, active)
    for p in torch.nonzero(active).flatten().tolist():
        assert relative(op.unpack_rows(r[p], p), oracles[p].P.sum(1)) < EXACT
        assert relative(op.unpack_columns(c[p], p), oracles[p].P.sum(0)) < EXACT


@pytest.mark.parametrize(("mode", "memory"), [*((mode, "streamed") for mode in TOLERANCE), ("int8", "cached")])
def test_softmin_both_sides(mode, memory):
    cost = make_cost([40, 150], 37, 3, zero=True)
    op, oracles, f, g, eps = build(cost, [(0, 1), (1, 1)], precision=mode, memory=memory)
    rows, columns = op.softmin(g, eps, side="rows"), op.softmin(f, eps, side="columns")
    for p, oracle in enumerate(oracles):
        assert relative(op.unpack_rows(rows[p], p), oracle.rows()) < TOLERANCE[mode]
        assert relative(op.unpack_columns(columns[p], p), oracle.columns()) < TOLERANCE[mode]
        assert rows[p, len(oracle.a) :].abs().max() == 0


def test_softmin_is_safe_far_from_the_solution():
    cost = make_cost([20, 30], 8, 2)
    eps = 1e-3 * cost.mean(0, 1)
    op = FusedOperator.build(cost, [(0, 1)], epsilon=eps)
    oracle = Oracle(cost, 0, 1, eps)
    out = op.softmin(op.pack_columns(oracle.g, 0)[None], eps, side="rows")
    assert relative(op.unpack_rows(out[0], 0), oracle.rows()) < 1e-5


@pytest.mark.parametrize("width", [0, 1, 40, 130])
@pytest.mark.parametrize(
    ("mode", "memory"), [("int8", "streamed"), ("fp16x3", "streamed"), ("fp16", "streamed"), ("int8", "cached")]
)
def test_apply_plan(mode, memory, width, monkeypatch):
    monkeypatch.setattr("otdd_flash.ops.plan_product._RECTANGLE", (32, 128))
    cost = make_cost([40, 150], 20, 3, zero=True)
    op, oracles, _, _, eps = build(cost, [(0, 1), (1, 1)], precision=mode, memory=memory)
    gen = torch.Generator().manual_seed(1)
    for p, oracle in enumerate(oracles):
        v = torch.randn(len(oracle.b), width, dtype=torch.float64, generator=gen)
        u = torch.randn(len(oracle.a), width, dtype=torch.float64, generator=gen)
        pv, ptu, r, c = op.apply_plan(p, oracle.f, oracle.g, eps, v=v, u=u)
        assert pv.shape == (len(oracle.a), width)
        if width:
            assert relative(pv, oracle.P @ v) < TOLERANCE[mode]
            assert relative(ptu, oracle.P.T @ u) < TOLERANCE[mode]
        assert relative(r, oracle.P.sum(1)) < TOLERANCE[mode]
        assert relative(c, oracle.P.sum(0)) < TOLERANCE[mode]
        only = op.apply_plan(p, oracle.f, oracle.g, eps, v=v)
        assert only.ptu is None
        assert only.c is None


def test_columns_of_any_size() -> None:
    """Each column of the right-hand side has its own power of two."""
    cost = make_cost([40, 150], 20, 3)
    op, oracles, _, _, eps = build(cost, [(0, 1)])
    v = torch.rand(150, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    v *= torch.tensor([1e-40, 1e-6, 0.0, 1e30], dtype=torch.float64)
    found, expected = op.apply_plan(0, oracles[0].f, oracles[0].g, eps, v=v).pv, oracles[0].P @ v
    for column in (1, 3):
        assert relative(found[:, column], expected[:, column]) < EXACT
    assert not found[:, 2].any()
    assert (found[:, 0] - expected[:, 0]).abs().max() < 1e-40


def test_a_plan_is_prepared_once_and_anew_where_its_potentials_change() -> None:
    cost = make_cost([40, 150], 20, 3)
    op, oracles, _, _, eps = build(cost, [(0, 1)])
    oracle, v = oracles[0], torch.ones(150, 1, dtype=torch.float64)
    f, g = oracle.f.clone(), oracle.g.clone()
    op.apply_plan(0, f, g, eps, v=v)
    prepared = op._plans[0, False][1]
    assert relative(op.apply_plan(0, f, g, eps, v=2 * v).pv, 2 * oracle.P @ v) < EXACT
    assert op._plans[0, False][1] is prepared
    f += eps  # in place
    assert relative(op.apply_plan(0, f, g, eps, v=v).pv, math.e * oracle.P @ v) < EXACT
    f -= eps
    halved = oracle.P.square() / (oracle.a[:, None] * oracle.b)
    assert relative(op.apply_plan(0, f, g, eps / 2, v=v).pv, halved @ v) < EXACT
    gone = weakref.ref(op)
    del op
    assert gone() is None  # at once, not when the garbage collector comes round


@pytest.mark.parametrize("width", [3, 130])
@pytest.mark.parametrize("shift", [-30.0, 30.0])
def test_apply_plan_of_potentials_that_meet_no_marginals(width, shift):
    """Row sums e^30 times too large or too small: float16 holds neither, an exact half step mends it."""
    cost = make_cost([40, 150], 20, 3, zero=True)
    op, oracles, _, _, eps = build(cost, [(0, 1), (1, 1)])
    v = torch.randn(150, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for p, oracle in enumerate(oracles):
        found = op.apply_plan(p, oracle.f + shift * eps / (1 + p), oracle.g + 0.0, eps, v=v)
        grown = oracle.P * math.exp(shift)  # a symmetric problem's one potential counts on both sides
        assert relative(found.pv, grown @ v) < EXACT
        assert relative(found.r, grown.sum(1)) < EXACT


@pytest.mark.parametrize(
    ("problems", "tiles", "mode"),
    [
        ([(0, 1), (0, 0)], 2, "fp16x3"),  # the self problem alone
        ([(0, 1), (0, 0)], 11, "fp16x3"),  # and 256 columns of the other
        ([(0, 1), (1, 1)], 8, "int8"),  # 256 columns of the cross problem, the self problem does not fit
    ],
)
def test_what_does_not_fit_is_streamed(problems, tiles, mode, monkeypatch):
    monkeypatch.setattr("otdd_flash.ops.tuning.caching_pays", lambda mode, width: True)
    cost, budget = make_cost([40, 300], 20, 3, zero=True), 4 * (tiles * 32 * 64 + 64 * 64)
    op, oracles, f, g, eps = build(cost, problems, precision=mode, memory_budget=budget)
    assert op.info.memory == "part-cached"
    assert 0 < 4 * op._tiles.numel() <= budget
    assert [sweep.stored for sweep in op._sweeps] == [True, False]
    check_marginals(op, oracles, f, g, eps, EXACT)
    r, c = op.marginals(f, g, eps, torch.tensor([False, True]))
    assert relative(op.unpack_rows(r[1], 1), oracles[1].P.sum(1)) < EXACT
    assert torch.equal(r[1, : len(oracles[1].a)], c[1, : len(oracles[1].b)])
    rows = op.softmin(g, eps, side="rows")
    assert relative(op.unpack_rows(rows[0], 0), oracles[0].rows()) < EXACT
    v = torch.ones(300, 1, dtype=torch.float64)
    assert relative(op.apply_plan(0, oracles[0].f, oracles[0].g, eps, v=v)[0], oracles[0].P @ v) < EXACT


@pytest.mark.parametrize("memory", ["streamed", "cached"])
def test_labels_alone(memory):
    cost = replace(make_cost([40, 30], 3, 4), feature_weight=0.0)
    check_marginals(*build(cost, [(0, 1), (0, 0)], memory=memory), EXACT)


@pytest.mark.parametrize(("memory", "budget"), [("streamed", None), ("cached", None), ("auto", 70_000)])
def test_five_runs_are_bitwise_equal(memory, budget, monkeypatch):
    """C28: a fixed order of summation, in every memory mode."""
    monkeypatch.setattr("otdd_flash.ops.tuning.caching_pays", lambda mode, width: True)
    op, _, f, g, eps = build(make_cost([150, 70], 12, 3), [(0, 1), (1, 1)], memory=memory, memory_budget=budget)
    assert op.info.memory == ("part-cached" if memory == "auto" else memory)
    first = op.marginals(f, g, eps)
    for _ in range(4):
        assert all(torch.equal(x, y) for x, y in zip(first, op.marginals(f, g, eps), strict=True))


def test_far_from_the_origin_and_off_the_grid():
    gen = torch.Generator().manual_seed(3)
    points = [torch.randn(n, 9, dtype=torch.float64, generator=gen) + 1e4 for n in (30, 44)]
    clouds = [PointCloud(p, torch.full((len(p),), 1 / len(p), dtype=torch.float64)) for p in points]
    op, *rest = build(DotProductCost.build(clouds), [(0, 1), (0, 0)])
    assert op.info.precision == "fp16x3"
    check_marginals(op, *rest, EXACT)


def test_layouts_are_inverse():
    cost = make_cost([40, 70], 3, 5)
    op = FusedOperator.build(cost, [(0, 1)], epsilon=1.0)
    values = torch.arange(70.0, dtype=torch.float64)
    assert torch.equal(op.unpack_columns(op.pack_columns(values, 0), 0), values)
    assert torch.equal(op.unpack_rows(op.a[0], 0), cost.clouds[0].weights)


def test_refusals_name_the_remedy():
    cost = make_cost([40, 70], 3, 0)
    with pytest.raises(ValueError, match="backend='torch'"):
        FusedOperator.build(cost, [(0, 1)], epsilon=1.0, precision="fp64")
    with pytest.raises(ValueError, match="memory='streamed'"):
        FusedOperator.build(cost, [(0, 1)], epsilon=1.0, memory="cached", memory_budget=1000)
    off_grid = DotProductCost.build([PointCloud(torch.rand(5, 2), torch.full((5,), 0.2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="precision='auto'"):
        FusedOperator.build(off_grid, [(0, 0)], epsilon=1.0, precision="int8")
    assert FusedOperator.build(cost, [(0, 1)], epsilon=1.0, memory="auto", memory_budget=10).info.memory == "streamed"
