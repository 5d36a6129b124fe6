"""The arithmetic of the studies in scripts/, which the documentation quotes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from otdd_flash import from_arrays

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def transfer_study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("transfer_study", "selection_study"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("transfer_study")


def test_rank_correlation_is_scipys_with_ties_and_in_stacks(transfer_study: ModuleType) -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, size=(2, 5, 30)).astype(float)
    found = transfer_study.spearman(a, b)
    assert found == pytest.approx([spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)], abs=1e-12)


def test_p_value_and_interval_of_a_perfect_and_of_no_order(transfer_study: ModuleType) -> None:
    order = np.random.default_rng(1).permutation(20)
    rows = [{"x": float(i), "down": -(float(i) ** 3), "none": float(order[i])} for i in range(20)]
    perfect = transfer_study.correlation(rows, "x", "down")
    assert perfect["rho"] == pytest.approx(-1.0)
    assert perfect["p"] == pytest.approx(2 / 10_000)  # the least that 9,999 permutations can tell, two-sided
    assert (perfect["low"], perfect["high"]) == (pytest.approx(-1.0), pytest.approx(-1.0))
    chance = transfer_study.correlation(rows, "x", "none")
    assert chance["p"] > 0.05
    assert chance["low"] < 0 < chance["high"]
    assert "p" not in transfer_study.correlation(rows[:7], "x", "down")


def test_a_source_with_fewer_classes_keeps_the_names_of_its_labels(transfer_study: ModuleType) -> None:
    x = torch.arange(12.0).reshape(6, 2)
    part = from_arrays(x, [4, 4, 7, 7, 9, 9])
    noisy = transfer_study.relabelled(part, x + 1, part.y)
    assert noisy.class_names == ("4", "7", "9")
    assert transfer_study.label_ids(noisy, [str(i) for i in range(10)]).tolist() == [4, 4, 7, 7, 9, 9]


def test_shots_are_ten_a_class_and_differ_by_seed(transfer_study: ModuleType) -> None:
    data = from_arrays(torch.randn(90, 2, generator=torch.Generator().manual_seed(0)), np.arange(90) % 3)
    first, second = (transfer_study.few(data, seed) for seed in (0, 1))
    assert torch.bincount(data.y[first]).tolist() == [10, 10, 10]
    assert set(first.tolist()) != set(second.tolist())


def test_a_source_like_the_target_transfers_and_a_turned_one_does_not(transfer_study: ModuleType) -> None:
    """The plumbing, on blobs: identical classes are recognised, swapped ones never."""
    from sklearn.neural_network import MLPClassifier

    generator = torch.Generator().manual_seed(3)
    y = torch.arange(60) % 3
    x = 8 * torch.eye(3, 784)[y] + 0.1 * torch.randn(60, 784, generator=generator)
    target, swapped = from_arrays(x, y), from_arrays(x, (y + 1) % 3)
    for source, expected in ((target, 1.0), (swapped, 0.0)):
        mlp = MLPClassifier((20,), max_iter=200, random_state=0).fit(source.x.numpy(), source.y.numpy())
        assert set(transfer_study.direct_accuracy(source, target, mlp).values()) == {expected}
