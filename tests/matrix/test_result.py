"""DistanceMatrix: geometry against closed forms, records that round-trip, scikit-learn takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash.matrix import geometry


def made(values: torch.Tensor) -> otdd.DistanceMatrix:
    """A matrix of given squared distances."""
    k = len(values)
    pairs = {
        (i, j): {"value": float(values[i, j]), "root": float(values[i, j]) ** 0.5, "error": 0.0, "converged": True}
        for i in range(k)
        for j in range(i + 1, k)
    }
    return otdd.DistanceMatrix(
        names=tuple("abcdefgh"[:k]), values=values, errors=torch.zeros_like(values), certificates=pairs, failures=(),
        sets=(None,) * k, epsilon=1.0, label_epsilon=None, reference_cost=None, options={"debiased": True},
    )  # fmt: skip


def plane(k: int = 6) -> torch.Tensor:
    return torch.randn(k, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_points_of_the_plane_come_back() -> None:
    points = plane()
    matrix = made(torch.cdist(points, points).square())
    assert matrix.negative_share < 1e-12
    found = matrix.mds(seed=0)
    assert found.stress < 1e-6
    torch.testing.assert_close(
        torch.cdist(found.points, found.points), torch.cdist(points, points), rtol=1e-4, atol=1e-4
    )
    classical = geometry.classical_map(matrix.values, 2)
    torch.testing.assert_close(torch.cdist(classical, classical), torch.cdist(points, points))


def test_negative_share_of_a_star_graph() -> None:
    """A hub at 1 from three leaves, which are 2 from each other: eigenvalues 2, 2, 0 and -1/4."""
    squared = torch.full((4, 4), 4.0, dtype=torch.float64).fill_diagonal_(0.0)
    squared[0, 1:] = squared[1:, 0] = 1.0
    v = torch.tensor([3.0, -1.0, -1.0, -1.0], dtype=torch.float64) / 12**0.5
    negative = float(-0.5 * v @ squared @ v)
    assert negative == pytest.approx(-0.25)
    assert geometry.negative_share(squared) == pytest.approx(0.25 / 4.25)


def test_dendrogram_joins_the_nearest_first() -> None:
    points = torch.tensor([[0.0], [10.0], [0.5], [11.0]], dtype=torch.float64)
    tree, order = made(torch.cdist(points, points).square()).dendrogram()
    assert {frozenset(tree[0, :2].astype(int)), frozenset(tree[1, :2].astype(int))} == {
        frozenset((0, 2)),
        frozenset((1, 3)),
    }
    assert tree[0, 2] == pytest.approx(0.5)
    assert tree[2, 2] == pytest.approx((10 + 11 + 9.5 + 10.5) / 4)
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset((0, 2)), frozenset((1, 3))}


def test_tsne_is_seeded() -> None:
    points = plane(8)
    matrix = made(torch.cdist(points, points).square())
    first, second, other = (matrix.tsne(seed=seed).points for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match="at least four sets"):
        matrix.subset(["a", "b", "c"]).tsne()


def test_scikit_learn_takes_it_as_precomputed() -> None:
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.neighbors import NearestNeighbors

    points = torch.tensor([[0.0], [10.0], [0.5], [11.0]], dtype=torch.float64)
    matrix = made(torch.cdist(points, points).square()).matrix("root")
    assert matrix.dtype == np.float64
    labels = AgglomerativeClustering(2, metric="precomputed", linkage="average").fit_predict(matrix)
    assert labels[0] == labels[2] != labels[1] == labels[3]
    distances, index = NearestNeighbors(n_neighbors=2, metric="precomputed").fit(matrix).kneighbors()
    assert index[:, 0].tolist() == [2, 3, 0, 1]
    assert distances[0, 0] == pytest.approx(0.5)


def test_values_below_zero_by_rounding_are_no_negative_distances() -> None:
    values = torch.tensor([[0.0, -1e-9], [-1e-9, 0.0]], dtype=torch.float64)
    matrix = made(values)
    assert matrix.matrix("root").min() == matrix.matrix("value").min() == 0.0
    assert float(matrix.values[0, 1]) == -1e-9


def test_subset_in_another_order() -> None:
    points = plane(4)
    matrix = made(torch.cdist(points, points).square()).subset(["d", "a"])
    assert matrix.names == ("d", "a")
    assert matrix.certificates[0, 1]["value"] == pytest.approx(float((points[3] - points[0]).square().sum()))
    assert matrix.distance("a", "d") == pytest.approx(float((points[3] - points[0]).norm()))
    with pytest.raises(KeyError, match="'z' is not in the matrix"):
        matrix.distance("a", "z")


def test_unknown_metric() -> None:
    with pytest.raises(ValueError, match="metric must be one of root, value, got 'cosine'"):
        made(torch.zeros(2, 2).double()).matrix("cosine")


def test_json_and_parquet_hold_the_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    iris = otdd.load("iris")
    sets = {name: iris.subset(range(i, 150, 3)) for i, name in enumerate("pqr")}
    matrix = otdd.pairwise(sets, relative_epsilon=0.1)
    record = json.loads(matrix.to_json(tmp_path / "out" / "matrix.json").read_text())
    assert record["values"] == matrix.values.tolist()
    assert record["names"] == ["p", "q", "r"]
    assert record["pairs"][1]["target"] == "r"
    assert record["negative_share"] == matrix.negative_share
    table = parquet.read_table(matrix.to_parquet(tmp_path / "matrix.parquet"))
    assert table.column("value").to_pylist() == [float(matrix.values[i, j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert table.column("source").to_pylist() == ["p", "p", "q"]
    assert json.loads(table.schema.metadata[b"otdd"])["epsilon"] == matrix.epsilon
