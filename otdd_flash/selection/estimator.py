"""Selection as a scikit-learn estimator."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from otdd_flash.checks import check_number, check_share
from otdd_flash.errors import optional_import
from otdd_flash.selection.select import Balance, SearchOptions, select
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset


def _base() -> type:
    """scikit-learn's base class where it is installed: the library must be importable without it."""
    try:
        return importlib.import_module("sklearn.base").BaseEstimator
    except ImportError:
        return object


@plain_torch_methods
class OTDDSelector(_base()):  # type: ignore[misc]
    """Chooses the samples of a pool whose distribution is nearest to a target's; see :func:`otdd_flash.select`.

    Without a target the pool is its own: the choice is then a summary of it.

    Args:
        n_to_select: a count, a fraction in (0, 1), or ``None`` for half of the pool.
        balance: ``None``, ``"classes"`` or counts by class name.
        label_weight: factor of the class-to-class distance; 0 compares features alone.
        label_distance: as in :func:`otdd_flash.dataset_distance`.
        relative_epsilon: regularisation as a fraction of the mean cost.
        steps: mirror descent steps at most.
        exchanges: trials at most to improve the rounded choice by exchanging samples.

    Attributes:
        selected_idx_: ``(k,)`` rows of the pool, best first.
        scores_: ``(n,)`` in [0, 1]: relaxed weight of each pool sample, as a fraction of its cap.
        selection_: the :class:`~otdd_flash.selection.select.Selection` with values and bound.
        n_features_in_: width of the pool.
    """

    def __init__(
        self,
        n_to_select: int | float | None = None,
        *,
        balance: Balance = None,
        label_weight: float = 1.0,
        label_distance: str | None = "gaussian_diag",
        relative_epsilon: float = 0.1,
        steps: int = 60,
        exchanges: int = 40,
    ) -> None:
        self.n_to_select = n_to_select
        self.balance = balance
        self.label_weight = label_weight
        self.label_distance = label_distance
        self.relative_epsilon = relative_epsilon
        self.steps = steps
        self.exchanges = exchanges

    def fit(self, X: Any, y: Any = None, *, target: Any = None, target_y: Any = None) -> OTDDSelector:
        """Choose from the pool ``X, y``.

        Args:
            X: ``(n, d)`` pool, or a :class:`~otdd_flash.LabeledDataset` that holds its labels.
            y: ``(n,)`` labels; ``None`` compares features alone.
            target: ``(m, d)`` target, or a :class:`~otdd_flash.LabeledDataset`; ``None`` for the pool itself.
            target_y: ``(m,)`` labels of the target; ``None`` compares features alone.
        """
        chosen = 0.5 if self.n_to_select is None else check_share("n_to_select", self.n_to_select)
        search = SearchOptions(steps=self.steps, exchanges=self.exchanges)
        label_weight = check_number("label_weight", self.label_weight, closed=True)
        pool, labelled = self._side(X, y, "X", reset=True)
        target, target_labelled = (pool, labelled) if target is None else self._side(target, target_y, "target")
        self.selection_ = select(
            pool, target, chosen, balance=self.balance, search=search, relative_epsilon=self.relative_epsilon,
            label_weight=label_weight if labelled and target_labelled else 0.0, label_distance=self.label_distance,
        )  # fmt: skip
        self.selected_idx_ = self.selection_.idx.cpu().numpy()
        self.scores_ = self.selection_.scores.cpu().numpy()
        return self

    def _side(self, X: Any, y: Any, name: str, *, reset: bool = False) -> tuple[LabeledDataset, bool]:
        """A side as a data set, and whether its labels may be used; rows keep their order and their number."""
        if isinstance(X, LabeledDataset):
            self.n_features_in_ = X.d
            return X, True
        validation = optional_import("sklearn.utils.validation", needed_for="OTDDSelector")
        numpy = optional_import("numpy", needed_for="OTDDSelector")
        multiclass = optional_import("sklearn.utils.multiclass", needed_for="OTDDSelector")
        # scikit-learn 1.6 made a function of what was a method
        validate = (
            partial(validation.validate_data, self) if hasattr(validation, "validate_data") else self._validate_data
        )
        settings = {"dtype": [numpy.float64, numpy.float32], "reset": reset, "ensure_min_samples": 2}
        try:
            checked = validate(X, **settings) if y is None else validate(X, y, **settings)
        except (TypeError, ValueError, OverflowError) as error:  # whose message names X or y, on either side
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}{'' if y is None else ' and its labels'}: {error}") from error
        if y is None:
            X = checked
            y = numpy.zeros(len(X), dtype=int)
            labelled = False
        else:
            X, y = checked
            labelled = multiclass.type_of_target(y) in ("binary", "multiclass")
            # real-valued targets are no classes; codes keep -1, which would otherwise mean unlabelled
            y = numpy.unique(y, return_inverse=True)[1] if labelled else numpy.zeros(len(X), dtype=int)
        from otdd_flash.data import from_arrays

        return from_arrays(X, y, name=name), labelled
