"""Are two labelled samples from the same distribution? A divergence with a permutation p-value, and a gate on it.

The statistic is the debiased divergence for ``C = w_x |x - x'|^2 + w_y W[l, l']`` on the pooled sample. Classes are
matched by name, and ``W`` and epsilon are functions of the pooled sample alone: under the null hypothesis the samples
are then exchangeable, and the p-value ``(1 + #{permuted >= observed}) / (1 + B)`` is exact at every sample size
(Phipson and Smyth 2010), whether or not the solver has converged. Values of splits of the reference alone
(:mod:`otdd_flash.selection.null`) have the same law under the null hypothesis and do not depend on the batch.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.errors import DistributionShiftError
from otdd_flash.selection.gate import CheckOptions, CheckResult
from otdd_flash.selection.null import ReferenceNull
from otdd_flash.selection.permutation import Statistics, split_divergences, split_weights
from otdd_flash.selection.pooled import epsilon_of, pool, pooled_cost, squared_distances
from otdd_flash.selection.reservoir import Reservoir
from otdd_flash.types import LabeledDataset


class DriftCheck:
    """A reference that batches are checked against: ``update`` with every batch, ``compute`` when wanted.

    Batches are pooled until :meth:`reset`. Of more than ``max_samples`` rows a uniform sample is kept, which depends on
    the rows' order alone and not on how they were cut into batches: the number is that of :func:`check` on the whole.
    (Weights are relative to the mean of their own batch.)

    Args:
        reference: the trusted sample; its distances are computed once.
        options: all choices.
        cache: folder that keeps the values of ``null="reference"`` by content; ``None`` keeps none, ``"default"`` is
            ``$OTDD_CACHE/checks`` or ``~/.cache/otdd_flash/checks``.
        **overrides: single fields of :class:`CheckOptions`.
    """

    def __init__(
        self,
        reference: LabeledDataset,
        *,
        options: CheckOptions | None = None,
        cache: str | os.PathLike[str] | None = "default",
        **overrides: Any,
    ) -> None:
        self.options = replace(options or CheckOptions(), **overrides)
        if not isinstance(reference, LabeledDataset):
            raise TypeError(f"reference must be a LabeledDataset, got {type(reference).__name__}: see from_arrays")
        kept = Reservoir(self.options.max_samples, f"reference {self.options.seed}")
        kept.add(reference)
        self.reference = kept.dataset(reference.name)
        self._null = ReferenceNull(reference, self.options, cache) if self.options.null == "reference" else None
        self._reference_seen = kept.seen
        self._center = self.reference.x.to(torch.float64).mean(0)
        x = self._moved(self.reference.x)
        self._within = squared_distances(x, x).fill_diagonal_(0.0)
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._batches = Reservoir(self.options.max_samples, f"batch {self.options.seed}")
        self._name = "batch"

    def update(self, x: Any, y: Any = None, *, class_names: Any = None) -> DriftCheck:
        """Add a batch: a :class:`~otdd_flash.LabeledDataset`, or features and labels as ``from_arrays`` takes them."""
        if not isinstance(x, LabeledDataset):
            if y is None:
                raise TypeError("update takes a LabeledDataset, or features and labels")
            from otdd_flash.data import from_arrays

            x = from_arrays(x, y, class_names=class_names, name="batch")
        if x.d != self.reference.d:
            raise ValueError(f"the batch has {x.d} features, the reference {self.reference.d}")
        self._name = x.name
        self._batches.add(x.to(self.reference.x.device))
        return self

    def compute(self) -> CheckResult:
        """Compare all rows since the last reset with the reference.

        Raises:
            ValueError: no batch yet.
        """
        if self._batches.seen == 0:
            raise ValueError("no batch to check: call update first")
        batch = self._batches.dataset(self._name)
        if self._null is not None and self.options.permutations:
            return self._against_reference(batch, self._null)
        pooled = pool(self.reference, batch)
        cost = pooled_cost(pooled, self._features(batch), self.options)
        weights = pooled.normalised_weights
        epsilon = epsilon_of(weights, cost, self.options)
        a, b = split_weights(weights, self.reference.n, self.options.permutations, self.options.seed)
        found = split_divergences(cost, a, b, epsilon, tol=self.options.tol)
        return self._result(self.reference, batch, found, epsilon)

    def _against_reference(self, batch: LabeledDataset, null: ReferenceNull) -> CheckResult:
        """One problem for the batch; the rest was solved before."""
        sample, pooled = null.sample(batch.n), pool(null.rows, batch)
        rows = torch.cat([torch.arange(sample.n), torch.arange(null.rows.n, pooled.n)]).to(pooled.x.device)
        x = self._moved(pooled.x[rows])
        cost = pooled_cost(pooled, squared_distances(x, x).fill_diagonal_(0.0), self.options, rows)
        weights = pooled.normalised_weights[rows] / pooled.normalised_weights[rows].sum()
        epsilon = epsilon_of(weights, cost, self.options)
        found = split_divergences(cost, *split_weights(weights, sample.n, 0, 0), epsilon, tol=self.options.tol)
        known = null.statistics(batch.n)
        joined = Statistics(
            torch.cat([found.values, known.values.to(found.values)]), max(found.marginal_error, known.marginal_error),
            max(found.iterations, known.iterations),
        )  # fmt: skip
        return self._result(sample, batch, joined, epsilon, cached=known.cached)

    def _moved(self, x: Tensor) -> Tensor:
        return x.to(torch.float64) - self._center

    def _features(self, batch: LabeledDataset) -> Tensor:
        """``(N, N)`` squared feature distances; the block within the reference is the stored one."""
        x, y = self._moved(self.reference.x), self._moved(batch.x)
        across = squared_distances(x, y)
        within = squared_distances(y, y).fill_diagonal_(0.0)
        return torch.cat([torch.cat([self._within, across], 1), torch.cat([across.T, within], 1)])

    def _result(
        self,
        reference: LabeledDataset,
        batch: LabeledDataset,
        found: Statistics,
        epsilon: float,
        *,
        cached: bool = False,
    ) -> CheckResult:
        values = found.values
        options, observed, permuted = self.options, float(values[0]), values[1:]
        p_value, null = None, {}
        if len(permuted):
            # equal splits may differ in their last digits: those count as equal
            slack = 1e-10 * max(abs(observed), epsilon)
            reached = int((permuted >= observed - slack).sum())
            p_value = (1 + reached) / (1 + len(permuted))
            levels = torch.tensor([0.5, 0.95, 0.99], dtype=values.dtype, device=values.device)
            quantiles = torch.quantile(permuted, levels).tolist()
            null = {"mean": float(permuted.mean()), **dict(zip(("q50", "q95", "q99"), quantiles, strict=True))}
        if options.threshold is not None:
            exceeded = observed > options.threshold
        else:
            exceeded = p_value is not None and p_value <= options.alpha
        ours, theirs = set(reference.class_names), set(batch.class_names)
        return CheckResult(
            value=observed, root=math.sqrt(max(observed, 0.0)), p_value=p_value, exceeded=exceeded,
            alpha=options.alpha, threshold=options.threshold, null=null, permutations=len(permuted), epsilon=epsilon,
            converged=found.marginal_error <= options.tol, marginal_error=found.marginal_error,
            iterations=found.iterations, n=reference.n, m=batch.n, seen=(self._reference_seen, self._batches.seen),
            names=(self.reference.name, batch.name), new_classes=tuple(sorted(theirs - ours)),
            missing_classes=tuple(sorted(ours - theirs)), seed=options.seed, null_of=options.null, null_cached=cached,
        )  # fmt: skip


def check(
    reference: LabeledDataset,
    batch: LabeledDataset,
    *,
    options: CheckOptions | None = None,
    cache: str | os.PathLike[str] | None = "default",
    **overrides: Any,
) -> CheckResult:
    """Test whether ``batch`` comes from the distribution of ``reference``, labels included.

    >>> import otdd_flash as otdd
    >>> first, second = (otdd.load("digits", max_samples=200, seed=seed) for seed in (1, 2))
    >>> otdd.check(first, second).exceeded
    False
    >>> otdd.check(first, otdd.load("digits", classes=[0, 1, 2])).exceeded
    True

    Args:
        reference: the trusted sample.
        batch: the sample in question; classes are matched by name.
        options: all choices together.
        cache: folder for the values of ``null="reference"``, as in :class:`DriftCheck`.
        **overrides: single fields of :class:`CheckOptions`.

    Returns:
        Value, p-value and whether the gate was exceeded.

    Raises:
        ValueError: widths that differ, options that do not fit.
    """
    return DriftCheck(reference, options=options, cache=cache, **overrides).update(batch).compute()


def assert_same_distribution(
    reference: LabeledDataset, batch: LabeledDataset, *, options: CheckOptions | None = None, **settings: Any
) -> CheckResult:
    """:func:`check` for test suites: raises where the gate is exceeded.

    Args:
        reference: the trusted sample.
        batch: the sample in question.
        options: all choices together.
        **settings: as in :func:`check`.

    Raises:
        DistributionShiftError: an ``AssertionError`` with the number, its p-value and the gate.
    """
    result = check(reference, batch, options=options, **settings)
    if result.exceeded:
        raise DistributionShiftError(result.summary())
    return result


class DriftCallback:
    """Checks every ``every`` batches of a training loop: ``callback(x, y)`` once a batch.

    Args:
        check: holds the reference and the gate; it is reset after every look.
        every: batches between looks.
        on_drift: called with a result that exceeded the gate; default a warning.
    """

    def __init__(
        self, check: DriftCheck, *, every: int = 100, on_drift: Callable[[CheckResult], None] | None = None
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.check, self.every = check, every
        self.on_drift = on_drift or _warn
        self.results: list[CheckResult] = []
        self._batches = 0

    def __call__(self, x: Any, y: Any) -> CheckResult | None:
        """Take a batch; the result where this was the batch to look at."""
        self.check.update(x, y)
        self._batches += 1
        if self._batches % self.every:
            return None
        result = self.check.compute()
        self.check.reset()
        self.results.append(result)
        if result.exceeded:
            self.on_drift(result)
        return result


def _warn(result: CheckResult) -> None:
    warnings.warn(result.summary(), stacklevel=3)
