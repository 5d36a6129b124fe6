"""OTDDSelector: scikit-learn's own checks (none is expected to fail), and agreement with select."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otdd_flash as otdd

checks = pytest.importorskip("sklearn.utils.estimator_checks")

from otdd_flash.selection.estimator import OTDDSelector  # noqa: E402
from otdd_flash.selection.select import SearchOptions  # noqa: E402

QUICK = SearchOptions(steps=8, exchanges=2)


@checks.parametrize_with_checks([OTDDSelector(steps=10, exchanges=0)])
def test_scikit_learn_checks(estimator: OTDDSelector, check) -> None:
    check(estimator)


def sides() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y, target_y = np.arange(40) % 2, np.arange(30) % 3 // 2
    return rng.normal(size=(40, 3)) + y[:, None], y, rng.normal(size=(30, 3)) + target_y[:, None], target_y


def test_agrees_with_select() -> None:
    X, y, T, t = sides()
    pool, target = otdd.from_arrays(X, y), otdd.from_arrays(T, t)
    found = otdd.select(pool, target, 8, label_distance="gaussian_diag", search=QUICK)
    fitted = OTDDSelector(8, steps=8, exchanges=2).fit(X, y, target=T, target_y=t)
    assert fitted.selected_idx_.tolist() == found.idx.tolist()
    assert fitted.scores_.shape == (40,)
    assert fitted.selection_.value == found.value
    again = OTDDSelector(8, steps=8, exchanges=2).fit(pool, target=target)
    assert again.selected_idx_.tolist() == fitted.selected_idx_.tolist()


def test_without_labels_features_decide() -> None:
    X, y, T, _ = sides()
    pool, target = otdd.from_arrays(X, y), otdd.from_arrays(T, np.zeros(30))
    expected = otdd.select(pool, target, 8, label_weight=0.0, search=QUICK).idx.tolist()
    selector = OTDDSelector(8, steps=8, exchanges=2)
    assert selector.fit(X, target=T).selected_idx_.tolist() == expected
    assert selector.fit(X, y, target=T).selected_idx_.tolist() == expected


def test_without_a_target_the_choice_sums_up_the_pool() -> None:
    X, y, _, _ = sides()
    fitted = OTDDSelector(steps=8, exchanges=2).fit(X, y)
    assert len(fitted.selected_idx_) == 20
    first_half = otdd.dataset_distance(
        otdd.from_arrays(X[:20], y[:20]), otdd.from_arrays(X, y), epsilon=fitted.selection_.result.epsilon,
        label_distance="gaussian_diag",
    )  # fmt: skip
    assert 0 <= fitted.selection_.value < 0.5 * first_half.value
    assert torch.bincount(torch.tensor(y[fitted.selected_idx_])).tolist() == [10, 10]


def test_labels_that_mean_unlabelled_elsewhere() -> None:
    """Codes -1 and 1 are two classes here: no row is dropped."""
    X, y, T, _ = sides()
    assert OTDDSelector(5, steps=1, exchanges=0).fit(X, 2 * y - 1, target=T).scores_.shape == (40,)
