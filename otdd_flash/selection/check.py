"""Are two labelled samples from the same distribution? A divergence with a permutation p-value, and a gate on it.

Classes are matched by name. The statistics (:mod:`otdd_flash.selection.parts`), class distances and epsilon among them,
are functions of the pooled sample and its split: under the null hypothesis the samples are exchangeable, and the
p-value ``(1 + #{permuted >= observed}) / (1 + B)`` is exact at every sample size (Phipson and Smyth 2010), whether or
not the solver has converged. Splits of the reference alone (:mod:`otdd_flash.selection.null`) have nearly the same law
and do not depend on the batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides, settled
from otdd_flash.checks import check_callable, check_count, check_path, check_type
from otdd_flash.errors import DistributionShiftError, not_converged, warn
from otdd_flash.selection.gate import CheckOptions, CheckResult
from otdd_flash.selection.null import NullStatistics, ReferenceNull
from otdd_flash.selection.parts import SplitStatistics, p_values, split_statistics
from otdd_flash.selection.pooled import pool
from otdd_flash.selection.reservoir import Reservoir
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset, notes_of

_POOL = 10  # rows of the reference that samples are drawn from, in units of max_samples


@plain_torch_methods
class DriftCheck:
    """A reference that batches are checked against: ``update`` with every batch, ``compute`` when wanted.

    Batches are pooled until :meth:`reset`. Of more than ``max_samples`` rows a uniform sample is kept, which depends on
    the rows' order alone and not on how they were cut into batches: the number is that of :func:`check` on the whole.
    (Weights are relative to the mean of their own batch.) Of a larger reference every batch is compared with a sample
    of its own: one sample for all would let each batch see the same accidents of that draw.

    Under ``null="reference"`` a batch is compared with samples of the reference alone first. If they do not clear it,
    the pooled null decides, and the p-value is the larger of the two: the level is that of the exact test.

    Args:
        reference: the trusted sample.
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
        self.options = settled("check", options, overrides, CheckOptions())
        check_sides(reference=reference)
        check_path("cache", cache, optional=True)
        kept = Reservoir(_POOL * self.options.max_samples, f"reference {self.options.seed}")
        kept.add(reference)
        self.reference = kept.dataset(reference.name)
        self._classes, self._seen, self._notes = set(kept.names), kept.seen, notes_of(reference)
        self._null = ReferenceNull(self.reference, self.options, cache) if self.options.null == "reference" else None
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._batches = Reservoir(self.options.max_samples, f"batch {self.options.seed}")
        self._batch_notes: dict[str, None] = {}
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
        self._batch_notes.update(dict.fromkeys(notes_of(x)))
        self._batches.add(x.to(self.reference.x.device))
        return self

    def compute(self) -> CheckResult:
        """Compare all rows since the last reset with the reference.

        Raises:
            ValueError: no batch yet, or one as large as a reference that is to give the null.
            NotConvergedError: under ``strict``.
        """
        if self._batches.seen == 0:
            raise ValueError("no batch to check: call update first")
        batch = self._batches.dataset(self._name)
        sample = self._sample(batch)
        quick = self._against_reference(sample, batch)
        result = self._pooled(sample, batch) if quick is None else quick
        if quick is not None and quick.threshold is None and (quick.p_value or 0.0) <= quick.alpha:
            exact = self._pooled(sample, batch)
            p_value = max(quick.p_value or 0.0, exact.p_value or 0.0)
            result = replace(exact, p_value=p_value, exceeded=self._exceeded(exact.value, p_value))
        self._report(result)
        return result

    def _sample(self, batch: LabeledDataset) -> LabeledDataset:
        """The rows of the reference that this batch is compared with."""
        n, rows = self.options.max_samples, self.reference
        if self._null is not None:
            n = min(n, rows.n - batch.n)
            if n < 2:
                raise ValueError(
                    f"null='reference' splits the reference into a sample and a batch of {batch.n} rows: it has "
                    f"{rows.n}; give a larger reference, or take null='pooled'"
                )
        if n >= rows.n:
            return rows
        # of the features alone: how a stream was cut changes the order of its classes
        content = replace(batch, y=torch.zeros_like(batch.y), class_names=("any",), weights=None).fingerprint
        generator = torch.Generator().manual_seed(self.options.seed ^ int(content[:15], 16))
        return rows.subset(torch.randperm(rows.n, generator=generator)[:n].sort().values)

    def _pooled(self, sample: LabeledDataset, batch: LabeledDataset) -> CheckResult:
        options = self.options
        found = split_statistics(
            pool(sample, batch), sample.n, options, permutations=options.permutations, seed=options.seed
        )
        return self._result(sample, batch, found)

    def _against_reference(self, sample: LabeledDataset, batch: LabeledDataset) -> CheckResult | None:
        """One problem for the batch; the rest was solved before."""
        if self._null is None or not self.options.permutations:
            return None
        observed = split_statistics(pool(sample, batch), sample.n, self.options, permutations=0, seed=0)
        known = self._null.statistics(sample.n, batch.n)
        parts = {name: torch.cat([values, known.parts[name].to(values)]) for name, values in observed.parts.items()}
        distance = replace(
            observed.distance,
            marginal_error=max(observed.distance.marginal_error, known.marginal_error),
            iterations=max(observed.distance.iterations, known.iterations),
        )
        return self._result(sample, batch, replace(observed, parts=parts, distance=distance), known)

    def _exceeded(self, value: float, p_value: float | None) -> bool:
        """Whether the gate is, by the numbers or by classes that the reference never had."""
        options = self.options
        if options.new_classes == "fail" and set(self._batches.names) - self._classes:
            return True
        if options.threshold is not None:
            return value > options.threshold
        return p_value is not None and p_value <= options.alpha

    def _result(
        self, sample: LabeledDataset, batch: LabeledDataset, found: SplitStatistics, known: NullStatistics | None = None
    ) -> CheckResult:
        options, theirs = self.options, set(self._batches.names)
        observed, error, permuted = found.first.value, found.first.error, found.parts["distance"][1:]
        p_value, alone = p_values(found.parts, found.units) if len(permuted) else (None, {})
        known_well = error <= options.accuracy * max(abs(observed), found.epsilon)
        return CheckResult(
            value=observed, root=math.sqrt(max(observed, 0.0)), p_value=p_value, parts=alone,
            exceeded=self._exceeded(observed, p_value), alpha=options.alpha, threshold=options.threshold,
            null=_quantiles(permuted), permutations=len(permuted), epsilon=found.epsilon,
            converged=known_well and found.distance.marginal_error <= options.tol, error=error,
            marginal_error=found.distance.marginal_error, iterations=found.distance.iterations, n=sample.n, m=batch.n,
            seen=(self._seen, self._batches.seen), names=(self.reference.name, batch.name),
            new_classes=tuple(sorted(theirs - self._classes)), new_classes_fail=options.new_classes == "fail",
            missing_classes=tuple(sorted(self._classes - theirs)), seed=options.seed,
            null_of="pooled" if known is None else "reference", null_cached=known is not None and known.cached,
            notes=tuple(dict.fromkeys([*self._notes, *self._batch_notes])),
        )  # fmt: skip

    def _report(self, result: CheckResult) -> None:
        """Say that a result is not converged."""
        if result.converged:
            return
        message = f"not converged: {result.accuracy(self.options.tol)}"
        not_converged(message, strict=self.options.strict)


def _quantiles(permuted: Tensor) -> dict[str, float]:
    """Mean and quantiles of the values under the null hypothesis."""
    if not len(permuted):
        return {}
    levels = torch.tensor([0.5, 0.95, 0.99], dtype=permuted.dtype, device=permuted.device)
    quantiles = torch.quantile(permuted, levels).tolist()
    return {"mean": float(permuted.mean()), **dict(zip(("q50", "q95", "q99"), quantiles, strict=True))}


@plain_torch
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
        NotConvergedError: under ``strict``.
    """
    check_sides(reference=reference, batch=batch)
    return DriftCheck(reference, options=options, cache=cache, **overrides).update(batch).compute()


@plain_torch
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


@plain_torch_methods
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
        check_type("check", check, DriftCheck, "give DriftCheck(reference)")
        check_callable("on_drift", on_drift, optional=True)
        self.check, self.every = check, check_count("every", every)
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
    warn(result.summary())
