"""pairwise with a screen: the same numbers as without, for the nearest neighbours alone, and marked as such."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import Screen
from otdd_flash.matrix import collect
from otdd_flash.matrix.screening import neighbours
from otdd_flash.matrix.worker import Worker

OPTIONS = {"label_distance": "means", "relative_epsilon": 0.1}
SCREEN = Screen(keep=1, margin=0.0)


def blobs(seed: int, shift: float) -> otdd.LabeledDataset:
    rng = np.random.default_rng(seed)
    y = np.arange(40) % 2
    return otdd.from_arrays(rng.normal(size=(40, 3)) + 3 * y[:, None] + shift, y)


# on a line: 0 - 1, 4 - 5 - 6.5, 12: nearest neighbours are (0, 1), (4, 5), (6.5, 5), (12, 6.5)
PLACES = (0.0, 4.0, 1.0, 12.0, 5.0, 6.5)
SETS = {f"at {place:g}": blobs(i, place) for i, place in enumerate(PLACES)}
NEAREST = {("at 0", "at 1"), ("at 4", "at 5"), ("at 5", "at 6.5"), ("at 12", "at 6.5")}


def refined(matrix: otdd.DistanceMatrix) -> set[tuple[str, str]]:
    return {tuple(sorted((matrix.names[i], matrix.names[j]))) for i, j in matrix.screening.pairs()}


@pytest.mark.parametrize("method", ["sliced", "moments"])
def test_nearest_neighbours_have_the_full_distance(method: str) -> None:
    whole = otdd.pairwise(SETS, **OPTIONS)
    matrix = otdd.pairwise(SETS, screen=Screen(keep=1, margin=0.0, method=method), **OPTIONS)
    assert refined(matrix) == NEAREST
    assert set(matrix.certificates) == set(matrix.screening.pairs())
    for pair, certificate in matrix.certificates.items():
        assert certificate["value"] == pytest.approx(whole.certificates[pair]["value"], rel=1e-5)
        assert float(matrix.values[pair]) == certificate["value"]
    assert bool((matrix.values.isnan() == ~matrix.screening.refined).all())
    assert (matrix.done, matrix.complete, matrix.converged, matrix.missing) == (True, False, True, ())
    assert matrix.epsilon == whole.epsilon
    assert matrix.computed == 6 + 4
    quick = [float(matrix.screening.values[pair]) for pair in matrix.certificates]
    scipy = pytest.importorskip("scipy.stats")
    full = [certificate["value"] for certificate in matrix.certificates.values()]
    assert matrix.screening.rank_correlation == pytest.approx(scipy.spearmanr(quick, full).statistic)
    assert matrix.screening.factor in [y / x for x, y in zip(quick, full, strict=True)]


def test_screening_values_are_those_of_the_sets_in_memory() -> None:
    screen = Screen(keep=1, projections=60, quantiles=32)
    matrix = otdd.pairwise(SETS, screen=screen, **OPTIONS)
    direct = otdd.screening_matrix(list(SETS.values()), projections=60, quantiles=32)
    torch.testing.assert_close(matrix.screening.values, direct, rtol=1e-9, atol=1e-12)
    moments = otdd.pairwise(SETS, screen=Screen(keep=1, method="moments"), label_weight=0.5, **OPTIONS)
    direct = otdd.screening_matrix(list(SETS.values()), method="moments", label_weight=0.5)
    torch.testing.assert_close(moments.screening.values, direct, rtol=1e-9, atol=1e-9)


def test_filled_for_maps_and_trees() -> None:
    matrix = otdd.pairwise(SETS, screen=SCREEN, **OPTIONS)
    with pytest.raises(ValueError, match=r"pairs were screened out: take filled\(\)"):
        matrix.matrix()
    assert matrix.to_dict()["negative_share"] is None
    filled = matrix.filled()
    assert bool((filled.estimated == ~matrix.screening.refined).all())
    torch.testing.assert_close(
        filled.values[filled.estimated], (matrix.screening.factor * matrix.screening.values)[filled.estimated]
    )
    assert filled.complete
    assert not filled.converged, "estimates have no certificate"
    assert "screening distance" in filled.notes[-1]
    tree, order = filled.dendrogram()
    assert {frozenset(order[:2]), frozenset(order[-2:])} & {frozenset((0, 2))}, "0 and 1 are side by side"
    assert tree.shape == (5, 4)
    assert torch.equal(matrix.finished().values, filled.values)
    with pytest.raises(ValueError, match="nothing was screened"):
        otdd.pairwise(dict(list(SETS.items())[:2]), **OPTIONS).filled()


def test_second_run_and_collect_know_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = otdd.pairwise(SETS, screen=SCREEN, folder=tmp_path, **OPTIONS)
    monkeypatch.setattr(Worker, "sketch", None)
    second = otdd.pairwise(SETS, screen=SCREEN, folder=tmp_path, **OPTIONS)
    assert (second.computed, second.reused) == (0, 10)
    again = collect(tmp_path)
    for matrix in (second, again):
        assert torch.equal(matrix.values.nan_to_num(-1), first.values.nan_to_num(-1))
        assert torch.equal(matrix.screening.values, first.screening.values)
        assert matrix.screening.factor == first.screening.factor
        assert matrix.screening.screen == SCREEN
    more = otdd.pairwise(SETS, screen=Screen(keep=2, margin=0.0), folder=tmp_path, **OPTIONS)
    assert more.reused == 10
    assert more.computed == len(more.certificates) - 4, "sketches and finished pairs serve a wider cut"
    whole = otdd.pairwise(SETS, folder=tmp_path, **OPTIONS)
    assert whole.screening is None
    assert collect(tmp_path).screening is None
    assert whole.complete


def test_a_damaged_sketch_is_made_anew(tmp_path: Path) -> None:
    """Without it the set would count as failed, and all of its pairs get the full distance."""
    first = otdd.pairwise(SETS, screen=SCREEN, folder=tmp_path, **OPTIONS)
    (tmp_path / "sketches" / sorted(os.listdir(tmp_path / "sketches"))[0]).write_bytes(b"x")
    with pytest.warns(UserWarning, match="sketches.* cannot be read and is computed anew"):
        again = otdd.pairwise(SETS, screen=SCREEN, folder=tmp_path, **OPTIONS)
    assert torch.equal(again.screening.values, first.screening.values)
    assert torch.equal(again.screening.refined, first.screening.refined)
    assert again.computed == 0


def test_workers_and_shards_agree_with_one_process(tmp_path: Path) -> None:
    alone = otdd.pairwise(SETS, screen=SCREEN, **OPTIONS)
    spread = otdd.pairwise(SETS, screen=SCREEN, workers=2, folder=tmp_path / "two", **OPTIONS)
    assert refined(spread) == NEAREST
    torch.testing.assert_close(spread.values, alone.values, rtol=1e-6, atol=0, equal_nan=True)
    for i in range(2):
        part = otdd.pairwise(SETS, screen=SCREEN, folder=tmp_path / "parts", shard=f"{i}/2", **OPTIONS)
        assert part.computed == 5
    assert collect(tmp_path / "parts").done


def test_broken_and_wide_sets_leave_the_others() -> None:
    wide = otdd.from_arrays(np.eye(6), np.arange(6) % 2)
    with pytest.warns(UserWarning, match="items of the matrix failed"):
        matrix = otdd.pairwise({"broken": lambda: 1 / 0, **SETS, "wide": wide}, screen=SCREEN, **OPTIONS)
    assert {failure.names: failure.error for failure in matrix.failures} == {
        ("broken",): "ZeroDivisionError",
        ("wide",): "ValueError",
    }
    assert set(matrix.certificates) == {
        (i + 1, j + 1) for i, j in otdd.pairwise(SETS, screen=SCREEN, **OPTIONS).certificates
    }
    assert not matrix.done
    assert matrix.finished().names == tuple(SETS)


def test_equal_sets_have_no_scale() -> None:
    twins = {"a": SETS["at 0"], "b": SETS["at 0"], "c": SETS["at 12"], "d": SETS["at 12"]}
    matrix = otdd.pairwise(twins, screen=SCREEN, **OPTIONS)
    assert matrix.screening.pairs() == [(0, 1), (2, 3)]
    assert matrix.screening.factor is None
    with pytest.raises(ValueError, match="there is no scale"):
        matrix.filled()
    assert matrix.finished().complete


def test_neighbours_with_margin() -> None:
    values = torch.tensor([[0.0, 1.0, 1.05, 9.0], [1.0, 0.0, 5.0, 9.0], [1.05, 5.0, 0.0, 9.0], [9.0, 9.0, 9.0, 0.0]])
    mask, left = neighbours(values, Screen(keep=1, margin=0.0))
    assert mask.triu(1).nonzero().tolist() == [[0, 1], [0, 2], [0, 3], [1, 3]], "all are equally far from the last"
    assert left == 1, "two of its three ties were let through"
    mask, left = neighbours(values[:3, :3], Screen(keep=1, margin=0.1))
    assert mask.triu(1).nonzero().tolist() == [[0, 1], [0, 2]]
    assert left == 0


def test_records(tmp_path: Path) -> None:
    matrix = otdd.pairwise(SETS, screen=SCREEN, **OPTIONS)
    record = json.loads(matrix.to_json(tmp_path / "matrix.json").read_text())["screening"]
    assert (record["screen"]["keep"], record["factor"]) == (1, matrix.screening.factor)
    assert record["values"] == matrix.screening.values.tolist()
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(matrix.to_parquet(tmp_path / "matrix.parquet"))
    rows = {(row["source"], row["target"]): row for row in table.to_pylist()}
    assert len(rows) == 15
    for (first, second), row in rows.items():
        i, j = matrix.names.index(first), matrix.names.index(second)
        assert row["screened"] == float(matrix.screening.values[i, j])
        value = float(matrix.values[i, j])
        assert row["value"] == (None if math.isnan(value) else value)
    assert "values" not in json.loads(table.schema.metadata[b"otdd"])["screening"]
