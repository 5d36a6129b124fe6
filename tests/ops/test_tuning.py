"""The table of kernel configurations: no cliff in the number of features."""

from __future__ import annotations

import pytest
import torch

from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops import tuning
from otdd_flash.ops.packing import pack

WIDTHS = (1, 63, 64, 65, 110, 112, 128, 129, 255, 256, 257, 784, 1000, 1024, 1025)
SWEEPS = {"int8": 1, "fp16": 1, "tf32": 1, "fp32": 1, "fp16x3": 3}


def packed(d: int, mode: str):
    points = torch.randint(0, 256, (4, d), generator=torch.Generator().manual_seed(d)).float() / 255
    return pack(DotProductCost.build([PointCloud(points, torch.full((4,), 0.25, dtype=torch.float64))]), mode)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("mode", list(SWEEPS))
def test_work_grows_with_the_features_and_not_faster(mode: str, arch: int) -> None:
    """C21: what a tile computes is the features, padded by less than 128, in every mode (three times in fp16x3)."""
    done = []
    for d in WIDTHS:
        operand = packed(d, mode)
        config = tuning.table_config(mode, d, arch)
        assert operand.width < d + 64
        if mode == "fp16x3":
            columns = 2 * operand.main + operand.width
            assert columns % config.block_k == 0
        else:
            columns = -(-operand.width // config.block_k) * config.block_k
        assert SWEEPS[mode] * d <= columns < SWEEPS[mode] * (d + 128)
        assert config.block_m * config.block_n >= 4096
        done.append(columns)
    assert done == sorted(done)


@pytest.mark.parametrize("mode", list(SWEEPS))
def test_one_configuration_for_all_large_widths(mode: str) -> None:
    """C21: beyond 256 features nothing depends on d, and there are at most four configurations in all."""
    configs = {tuning.table_config(mode, d, 90) for d in range(1, 2000)}
    assert len({tuning.table_config(mode, d, 90) for d in range(257, 2000)}) == 1
    assert len(configs) <= 4


def test_products_take_over_from_kernels_where_there_is_much_work_and_fast_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many points of many features, or a batch of them; never where float64 is slow."""
    cpu = torch.device("cpu")
    assert not tuning.dense_in_blocks(cpu, 1, 8192, 512)
    monkeypatch.setattr(tuning, "architecture", lambda _: 90)
    assert tuning.dense_in_blocks(cpu, 1, 8192, 512)
    assert tuning.dense_in_blocks(cpu, 32, 1024, 64)
    assert not tuning.dense_in_blocks(cpu, 1, 8192, 3)
    assert not tuning.dense_in_blocks(cpu, 1, 512, 512)
    monkeypatch.setattr(tuning, "architecture", lambda _: 89)
    assert not tuning.dense_in_blocks(cpu, 1, 8192, 512)
