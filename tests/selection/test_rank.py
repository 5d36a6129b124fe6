"""rank: order and values of dataset_distance, intervals against Monte Carlo, class matching with a known answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash.errors import NotConvergedError, NotConvergedWarning

QUICK = {"label_distance": None, "epsilon": 1.0, "precision": "fp64"}


def cloud(n: int, seed: int, shift: float = 0.0) -> otdd.LabeledDataset:
    """One class, normal in the plane."""
    rng = np.random.default_rng(seed)
    return otdd.from_arrays(
        rng.normal(size=(n, 2)) + np.array([shift, 0.0]), np.zeros(n, dtype=int), name=f"cloud {seed}"
    )


def classes(names: list[str], seed: int, n: int = 40) -> otdd.LabeledDataset:
    """Classes around the corners of a simplex in the order of ``names``."""
    rng = np.random.default_rng(seed)
    y = np.arange(n * len(names)) % len(names)
    return otdd.from_arrays(4 * np.eye(len(names))[y] + rng.normal(size=(len(y), len(names))), y, class_names=names)


def test_order_and_values_are_dataset_distances() -> None:
    target = cloud(60, 0)
    sets = {"far": cloud(50, 1, 3.0), "near": cloud(40, 2, 0.5), "middle": cloud(70, 3, 1.5)}
    ranking = otdd.rank(sets, target, bootstrap=0, tol=1e-9, **QUICK)
    assert ranking.names == ("near", "middle", "far")
    for item in ranking.candidates:
        alone = otdd.dataset_distance(sets[item.name], target, tol=1e-9, **QUICK)
        assert item.value == pytest.approx(alone.value, rel=1e-7)
        assert item.root == pytest.approx(math.sqrt(alone.value), rel=1e-7)
        assert (item.low, item.std, item.certain) == (None, None, None)


def test_relative_epsilon_is_of_the_mean_cost_with_the_target() -> None:
    target = cloud(60, 0)
    sets = {"a": cloud(50, 1, 3.0), "b": cloud(40, 2)}
    ranking = otdd.rank(sets, target, bootstrap=0, relative_epsilon=0.2, label_distance=None)
    costs = [otdd.dataset_distance(data, target, label_distance=None).mean_cost for data in sets.values()]
    assert ranking.epsilon == pytest.approx(0.2 * sum(costs) / 2, rel=1e-6)


def test_the_target_itself_comes_first_at_zero() -> None:
    target = cloud(60, 0)
    ranking = otdd.rank({"other": cloud(60, 1), "copy": otdd.from_arrays(target.x.clone(), target.y)}, target, **QUICK)
    assert ranking.names == ("copy", "other")
    copy = ranking["copy"]
    assert (copy.value, copy.low, copy.high, copy.std, copy.bias) == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert copy.p_next is not None


def test_spread_and_bias_agree_with_monte_carlo() -> None:
    """Fresh draws of both sets: their spread is the stated std, their mean is too large by the stated bias."""
    n, draws = 60, 50
    values = []
    for seed in range(draws):
        pair = cloud(n, 1000 + seed, 1.0), cloud(n, 5000 + seed)
        values.append(otdd.dataset_distance(*pair, tol=1e-4, **QUICK).value)
    truth = 1.0  # equal shapes: the divergence of shifted normals is the squared shift at any epsilon
    stated = [
        otdd.rank([cloud(n, 1000 + seed, 1.0)], cloud(n, 5000 + seed), bootstrap=16, tol=1e-4, **QUICK).candidates[0]
        for seed in range(8)
    ]
    spread = float(np.std(values, ddof=1))
    assert np.mean([item.std for item in stated]) == pytest.approx(spread, rel=0.25)
    bias = float(np.mean(values)) - truth
    deviation = spread / math.sqrt(draws)
    assert abs(bias - np.mean([item.bias for item in stated])) < 3 * deviation
    assert sum(item.low <= truth <= item.high for item in stated) >= 6  # of 8 at 95 %: fewer has p < 1e-2


def test_order_of_equals_is_not_significant_and_of_others_is() -> None:
    target = cloud(150, 0)
    sets = {"twin": cloud(150, 1, 1.0), "other twin": cloud(150, 2, 1.0), "far": cloud(150, 3, 2.5)}
    ranking = otdd.rank(sets, target, bootstrap=20, **QUICK)
    assert ranking.names[2] == "far"
    first, second, last = ranking.candidates
    assert first.certain is False
    assert first.p_next > 0.05
    assert second.certain is True
    assert second.p_next < 1e-6
    assert last.certain is None
    assert first.low < first.high < last.low


def test_classes_are_matched_by_the_plan() -> None:
    """The target's classes are the source's under other names, moved a little."""
    source, target = classes(["ant", "bee", "cat"], 0), classes(["x", "y", "z"], 1)
    ranking = otdd.rank({"source": source}, target, bootstrap=0, relative_epsilon=0.02)
    matched = {row["target"]: row for row in ranking.matching("source")}
    assert {name: row["source"] for name, row in matched.items()} == {"x": "ant", "y": "bee", "z": "cat"}
    assert all(row["share"] > 0.95 and row["sent"] > 0.95 for row in matched.values())
    coupling = ranking["source"].coupling
    torch.testing.assert_close(coupling.sum(1), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-3)


def test_same_seed_same_intervals_another_seed_others() -> None:
    arguments = ({"a": cloud(30, 1, 1.0)}, cloud(30, 0))
    first, second, other = (otdd.rank(*arguments, bootstrap=10, seed=seed, **QUICK) for seed in (1, 1, 2))
    assert first["a"].low == second["a"].low
    assert first["a"].low != other["a"].low
    assert first["a"].value == other["a"].value
    options = otdd.DistanceOptions(seed=2, **QUICK)
    by_options, over_them = (
        otdd.rank(*arguments, bootstrap=10, options=options, **given) for given in ({}, {"seed": 1})
    )
    assert (by_options.seed, by_options["a"].low) == (2, other["a"].low)
    assert (over_them.seed, over_them["a"].low) == (1, first["a"].low)


def test_a_candidate_that_fails_leaves_the_others() -> None:
    def broken() -> otdd.LabeledDataset:
        raise OSError("gone")

    sets = {"ok": cloud(30, 1), "broken": broken, "wide": otdd.from_arrays(np.eye(5), np.arange(5) % 2)}
    with pytest.warns(UserWarning, match="is not ranked"):
        ranking = otdd.rank(sets, cloud(30, 0), bootstrap=0, **QUICK)
    assert ranking.names == ("ok",)
    assert [(failure.names, failure.error) for failure in ranking.failures] == [
        (("broken",), "OSError"),
        (("wide",), "ValueError"),
    ]
    with pytest.raises(ValueError, match="no candidate could be compared: gone"):
        otdd.rank({"broken": broken}, cloud(30, 0), **QUICK)


def test_a_candidate_too_small_for_intervals_leaves_the_others() -> None:
    sets = {"ok": cloud(30, 1), "tiny": cloud(30, 2).subset(torch.arange(3))}
    with pytest.warns(UserWarning, match="is not ranked"):
        ranking = otdd.rank(sets, cloud(30, 0), bootstrap=10, **QUICK)
    assert ranking.names == ("ok",)
    assert "at least four, or bootstrap=0" in ranking.failures[0].message
    assert set(otdd.rank(sets, cloud(30, 0), bootstrap=0, **QUICK).names) == {"ok", "tiny"}
    with pytest.raises(ValueError, match="at least four"):
        otdd.rank(sets, cloud(30, 0).subset(torch.arange(3)), bootstrap=10, **QUICK)


def test_record_is_plain_json(tmp_path: Path) -> None:
    ranking = otdd.rank({"a": cloud(30, 1), "b": cloud(30, 2, 1.0)}, cloud(30, 0), bootstrap=10, **QUICK)
    record = json.loads(ranking.to_json(tmp_path / "ranking.json").read_text())
    assert [item["name"] for item in record["candidates"]] == list(ranking.names)
    assert record["candidates"][0]["matching"][0]["share"] == pytest.approx(1.0)
    assert record["target"] == "cloud 0"


def test_not_converged() -> None:
    short = {**QUICK, "epsilon": 0.01, "tol": 1e-12, "max_iterations": 1, "bootstrap": 0}
    with pytest.warns(NotConvergedWarning, match="not converged: a"):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), **short)
    with pytest.raises(NotConvergedError):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), **short, strict=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bootstrap": 3}, "bootstrap must be 0 or at least 10 replicates, got 3"),
        ({"level": 1.0}, "level must be finite and between 0 and 1"),
        ({"reach_x": 1.0}, "reach_x and reach_y must be equal"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), **{**QUICK, **arguments})


def test_unknown_arguments_and_names() -> None:
    with pytest.raises(TypeError, match=r"bootstrap must be an integer, got 10\.5"):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), bootstrap=10.5, **QUICK)
    with pytest.raises(TypeError, match="rank has no argument espilon"):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), espilon=1.0)
    with pytest.raises(KeyError, match="'b' is not ranked"):
        otdd.rank({"a": cloud(30, 1)}, cloud(30, 0), bootstrap=0, **QUICK)["b"]
