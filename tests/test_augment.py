"""Features and labels in one cost: the factorisation is exact, the weights mean what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from otdd_flash import from_arrays, reference
from otdd_flash.augment import augment
from otdd_flash.labels import label_distances
from otdd_flash.types import LabeledDataset


def labelled(n: int, classes: list, seed: int, d: int = 4) -> LabeledDataset:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64) + 5
    y = [classes[i] for i in torch.randint(0, len(classes), (n,), generator=rng).tolist()]
    return from_arrays(x, y, weights=torch.rand(n, generator=rng, dtype=torch.float64) + 0.1)


SOURCE, TARGET = labelled(30, [3, 4], 0), labelled(25, [0, 1, 2, 3, 4], 1)
LABELS = label_distances(SOURCE, TARGET, method="gaussian")


def dense(source: LabeledDataset, target: LabeledDataset, w_x: float, w_y: float, table: torch.Tensor) -> torch.Tensor:
    return reference.cost_matrix(source.x, target.x, feature_weight=w_x, label_cost=(w_y * table, source.y, target.y))


@pytest.mark.parametrize(("w_x", "w_y"), [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0), (3.0, 0.0)])
def test_factors_reproduce_the_cost(w_x: float, w_y: float) -> None:
    cost = augment(SOURCE, TARGET, LABELS, feature_weight=w_x, label_weight=w_y)
    sets = (SOURCE, TARGET)
    tables = {
        (0, 1): LABELS.source_target,
        (1, 0): LABELS.source_target.T,
        (0, 0): LABELS.source_source,
        (1, 1): LABELS.target_target,
    }
    for (i, j), table in tables.items():
        alpha, beta, q, k = cost.factors(i, j, torch.float64)
        expected = dense(sets[i], sets[j], w_x, w_y, table)
        assert torch.allclose(alpha[:, None] + beta - q @ k.T, expected, rtol=0, atol=1e-12 * float(expected.max()))
        weights = [sets[side].normalised_weights for side in (i, j)]
        assert cost.mean(i, j) == pytest.approx(float(weights[0] @ expected @ weights[1]), rel=1e-12)
        assert cost.bound(i, j) >= float(expected.max()) * (1 - 1e-6)


def test_features_alone_where_labels_do_not_count() -> None:
    for cost in (augment(SOURCE, TARGET), augment(SOURCE, TARGET, LABELS, label_weight=0.0)):
        assert cost.table is None
        assert all(cloud.labels is None for cloud in cost.clouds)


def test_class_names_do_not_matter() -> None:
    """C01: {3, 4} against {0..4}, and the same with names."""
    renamed = labelled(30, ["cat", "dog"], 0)
    labels = label_distances(renamed, TARGET, method="gaussian")
    costs = [augment(SOURCE, TARGET, LABELS), augment(renamed, TARGET, labels)]
    ours, theirs = (cost.factors(0, 1, torch.float64) for cost in costs)
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_weight": -1.0}, "feature_weight must be non-negative and finite, got -1.0"),
        ({"label_weight": -0.5}, "label_weight must be non-negative"),
        ({"label_weight": float("nan")}, "label_weight must be non-negative"),
        ({"feature_weight": 0.0, "label_weight": 0.0}, "label_weight is 0 too"),
    ],
)
def test_weights_that_make_no_cost(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        augment(SOURCE, TARGET, LABELS, **options)


def test_no_features_and_no_labels() -> None:
    with pytest.raises(ValueError, match="there are no label distances"):
        augment(SOURCE, TARGET, feature_weight=0.0)


def test_widths_classes_and_devices_must_fit() -> None:
    """C03, C34."""
    with pytest.raises(ValueError, match=r"has 4 and .* has 7.*embedder"):
        augment(SOURCE, labelled(20, [0, 1], 2, d=7))
    with pytest.raises(ValueError, match=r"for \(2, 5\) classes .* have \(5, 2\)"):
        augment(TARGET, SOURCE, LABELS)
    with pytest.raises(ValueError, match=r"on cpu and .* on meta"):
        augment(SOURCE, replace(TARGET, x=TARGET.x.to("meta")), LABELS)
