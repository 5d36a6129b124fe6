"""The search for faster kernel configurations, and where its outcome is kept, without a GPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from otdd_flash.ops import choices
from otdd_flash.ops.refine import Trial, climb, neighbours
from otdd_flash.ops.tuning import KernelConfig, table_config

CPU = torch.device("cpu")
START = table_config("fp16", 784, 90)


def cost(config: KernelConfig) -> float:
    """A landscape with its floor two changes away from the start."""
    target = replace(START, block_n=128, stages=3)
    keys = ("block_m", "block_n", "warps", "stages")
    return 1.0 + sum(abs(math.log2(getattr(config, key) / getattr(target, key))) for key in keys)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OTDD_CACHE", str(tmp_path))


def test_climbs_to_the_floor() -> None:
    found = climb(START, lambda config: Trial(config, cost(config)), 60.0)
    assert found.chosen.config == replace(START, block_n=128, stages=3)
    assert found.chosen.ms == 1.0
    assert found.table == Trial(START, cost(START))
    assert len(found.trials) == len({trial.config for trial in found.trials})


def test_wrong_or_broken_candidates_are_never_chosen() -> None:
    def bench(config: KernelConfig) -> Trial:
        return Trial(config, 5.0) if config == START else Trial(config, None, "its sums are off by 1.0e+00")

    found = climb(START, bench, 60.0)
    assert found.chosen.config == START
    assert len(found.trials) > 3
    with pytest.raises(RuntimeError, match="out of shared memory"):
        climb(START, lambda config: Trial(config, None, "out of shared memory"), 60.0)


def test_time_is_bounded() -> None:
    assert len(climb(START, lambda config: Trial(config, cost(config)), 0.0).trials) == 1


@pytest.mark.parametrize("mode", ["int8", "fp16", "fp16x3", "tf32", "fp32"])
@pytest.mark.parametrize("features", [64, 128, 784])
def test_neighbours_fit_the_kernel(mode: str, features: int) -> None:
    for arch in (80, 90):
        start = table_config(mode, features, arch)
        found = list(neighbours(start))
        assert start not in found
        for config in found:
            assert config.block_n % config.block_m == 0
            assert 256 % config.block_n == 0
            assert not config.defer or config.block_m % (16 * config.warps) == 0
            assert replace(
                config, block_m=start.block_m, block_n=start.block_n, warps=start.warps, stages=start.stages
            ) == start  # fmt: skip


def test_choices_are_kept_by_mode_and_bucket() -> None:
    chosen = replace(START, stages=3)
    path = choices.save(CPU, "fp16", 784, chosen, ms=1.0, table_ms=2.0)
    assert choices.load(CPU, "fp16", 1000) == chosen
    assert choices.load(CPU, "fp16", 64) is None
    assert choices.load(CPU, "int8", 784) is None
    other = replace(chosen, mode="int8", stages=2)
    choices.save(CPU, "int8", 784, other, ms=1.0, table_ms=2.0)
    assert choices.load(CPU, "fp16", 784) == chosen
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "triton": "0.0"}))
    assert choices.load(CPU, "fp16", 784) is None, "found with another Triton version"


def test_a_damaged_file_is_said_and_not_used() -> None:
    path = choices.save(CPU, "fp16", 784, START, ms=1.0, table_ms=2.0)
    record = json.loads(path.read_text())
    del record["entries"]["fp16, over 256"]["config"]["warps"]
    path.write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="no usable configuration"):
        assert choices.load(CPU, "fp16", 784) is None
    path.write_text("{")
    with pytest.warns(UserWarning, match="cannot be read"):
        assert choices.load(CPU, "fp16", 784) is None
