"""A refined configuration runs, is checked against the table's, is kept, and is what the next operator takes."""

from __future__ import annotations

import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import choices, refine, tuning
from otdd_flash.ops.fused import FusedOperator

CPU = torch.device("cpu")


def test_refinement_is_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OTDD_CACHE", str(tmp_path))
    monkeypatch.setattr(refine, "_milliseconds", lambda run, device: 1.0)
    found = refine.refine("fp16", n=70, features=8, seconds=0.0, device=CPU)
    table = tuning.table_config("fp16", 8, 0)
    assert found.chosen.config == found.table.config == table
    points = torch.rand(70, 8, generator=torch.Generator().manual_seed(0))
    cost = DotProductCost.build([PointCloud(points, torch.full((70,), 1 / 70, dtype=torch.float64))])
    sums = []
    for config in (table, next(c for c in refine.neighbours(table) if c.block_n == 128)):
        choices.save(CPU, "fp16", 8, config, ms=1.0, table_ms=1.0)
        op = FusedOperator.build(cost, [(0, 0)], epsilon=1.0, precision="fp16", memory="streamed")
        assert op._sweeps[0].config == config
        sums.append(op.marginals(torch.zeros_like(op.a), torch.zeros_like(op.b), 1.0)[0])
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-6, atol=0)


def test_a_candidate_with_other_sums_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(refine, "_milliseconds", lambda run, device: 1.0)
    bench = refine._bench("fp16", 40, 60, CPU, 0)
    table = tuning.table_config("fp16", 60, 0)
    assert bench(table).ms is not None
    wrong = bench(tuning.KernelConfig("fp16", 32, 64, 32, 2, 1, defer=True, resident=True))  # half of the features
    assert wrong.ms is None
    assert "sums are off" in str(wrong.refused)
