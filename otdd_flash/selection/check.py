"""Are two labelled samples from the same distribution? A divergence with a permutation p-value, and a gate on it.

The statistic is the debiased divergence for ``C = w_x |x - x'|^2 + w_y W[l, l']`` on the pooled sample. Classes are
matched by name, and ``W`` and epsilon are functions of the pooled sample alone: under the null hypothesis the samples
are then exchangeable, and the p-value ``(1 + #{permuted >= observed}) / (1 + B)`` is exact at every sample size
(Phipson and Smyth 2010), whether or not the solver has converged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.errors import DistributionShiftError
from otdd_flash.labels import label_distances
from otdd_flash.selection.permutation import split_divergences, split_weights
from otdd_flash.selection.reservoir import Reservoir
from otdd_flash.types import LabeledDataset


@dataclass(frozen=True)
class CheckOptions:
    """Every choice of :func:`check`.

    Args:
        alpha: the gate: a p-value of at most ``alpha`` exceeds it.
        threshold: gate on the value (squared divergence, in units of the cost) instead of the p-value.
        permutations: ``B``; the smallest p-value is ``1 / (1 + B)``.
        relative_epsilon: regularisation as a fraction of the mean cost of the pooled sample.
        label_distance: class-to-class distance, as in :func:`~otdd_flash.dataset_distance`; ``None`` for features
            alone.
        feature_weight: factor of the squared feature distance.
        label_weight: factor of the squared class-to-class distance.
        max_samples: at most so many samples of each side; the pooled cost matrix is stored.
        tol: L1 marginal error at which the statistic is converged.
        seed: of the draws and of the permutations.
    """

    alpha: float = 0.05
    threshold: float | None = None
    permutations: int = 199
    relative_epsilon: float = 0.1
    label_distance: str | None = "gaussian_diag"
    feature_weight: float = 1.0
    label_weight: float = 1.0
    max_samples: int = 500
    tol: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie in (0, 1), got {self.alpha}")
        if self.permutations < 0 or (self.threshold is None and self.alpha < 1 / (1 + self.permutations)):
            raise ValueError(
                f"{self.permutations} permutations cannot give a p-value of {self.alpha} or less: take at least "
                f"{math.ceil(1 / self.alpha) - 1}, or gate on a threshold"
            )
        if not (self.relative_epsilon > 0 and math.isfinite(self.relative_epsilon)):
            raise ValueError(f"relative_epsilon must be positive and finite, got {self.relative_epsilon}")
        if self.max_samples < 2:
            raise ValueError(f"max_samples must be at least 2, got {self.max_samples}")


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    ``value`` is the squared divergence in units of the cost, ``null`` the mean and the upper quantiles of its permuted
    values; ``exceeded`` says whether the gate was.
    """

    value: float
    root: float
    p_value: float | None
    exceeded: bool
    alpha: float
    threshold: float | None
    null: dict[str, float]
    permutations: int
    epsilon: float
    converged: bool
    marginal_error: float
    iterations: int
    n: int
    m: int
    seen: tuple[int, int]
    names: tuple[str, str]
    new_classes: tuple[str, ...]
    missing_classes: tuple[str, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        plain = asdict(self)
        return {key: list(item) if isinstance(item, tuple) else item for key, item in plain.items()}

    def summary(self) -> str:
        """One line: the number, its p-value, the gate."""
        gate = f"p <= {self.alpha:g}" if self.threshold is None else f"value > {self.threshold:g}"
        p = "" if self.p_value is None else f", p = {self.p_value:.4g}"
        verdict = "exceeded" if self.exceeded else "kept"
        text = f"{self.names[1]} against {self.names[0]}: divergence {self.value:.6g}{p} (gate {gate}: {verdict}"
        text += f"; {self.n} and {self.m} samples"
        text += f"; new classes {', '.join(self.new_classes)}" if self.new_classes else ""
        return text + ")"


class DriftCheck:
    """A reference that batches are checked against: ``update`` with every batch, ``compute`` when wanted.

    Batches are pooled until :meth:`reset`. Of more than ``max_samples`` rows a uniform sample is kept, which depends on
    the rows' order alone and not on how they were cut into batches: the number is that of :func:`check` on the whole.
    (Weights are relative to the mean of their own batch.)

    Args:
        reference: the trusted sample; its distances are computed once.
        options: all choices.
        **overrides: single fields of :class:`CheckOptions`.
    """

    def __init__(self, reference: LabeledDataset, *, options: CheckOptions | None = None, **overrides: Any) -> None:
        self.options = replace(options or CheckOptions(), **overrides)
        kept = Reservoir(self.options.max_samples, f"reference {self.options.seed}")
        kept.add(reference)
        self.reference = kept.dataset(reference.name)
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
        options = self.options
        pooled = _pooled(self.reference, batch)
        cost = self._cost(pooled, batch)
        mean = float(pooled.normalised_weights @ cost @ pooled.normalised_weights)
        epsilon = options.relative_epsilon * mean if mean > 0 else 1.0
        a, b = split_weights(pooled.normalised_weights, self.reference.n, options.permutations, options.seed)
        found = split_divergences(cost, a, b, epsilon, tol=options.tol)
        return self._result(batch, found.values, epsilon, found.marginal_error, found.iterations)

    def _moved(self, x: Tensor) -> Tensor:
        return x.to(torch.float64) - self._center

    def _cost(self, pooled: LabeledDataset, batch: LabeledDataset) -> Tensor:
        """``(N, N)`` cost; the block within the reference is the stored one."""
        x, y = self._moved(self.reference.x), self._moved(batch.x)
        across = squared_distances(x, y)
        within = squared_distances(y, y).fill_diagonal_(0.0)
        blocks = [torch.cat([self._within, across], 1), torch.cat([across.T, within], 1)]
        cost = self.options.feature_weight * torch.cat(blocks)
        if self.options.label_distance is None or self.options.label_weight == 0:
            return cost
        table = label_distances(pooled, pooled, method=self.options.label_distance).source_source
        return cost + self.options.label_weight * table.to(cost)[pooled.y][:, pooled.y]

    def _result(
        self, batch: LabeledDataset, values: Tensor, epsilon: float, marginal_error: float, iterations: int
    ) -> CheckResult:
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
        ours, theirs = set(self.reference.class_names), set(batch.class_names)
        return CheckResult(
            value=observed, root=math.sqrt(max(observed, 0.0)), p_value=p_value, exceeded=exceeded,
            alpha=options.alpha, threshold=options.threshold, null=null, permutations=len(permuted), epsilon=epsilon,
            converged=marginal_error <= options.tol, marginal_error=marginal_error, iterations=iterations,
            n=self.reference.n, m=batch.n, seen=(self._reference_seen, self._batches.seen),
            names=(self.reference.name, batch.name), new_classes=tuple(sorted(theirs - ours)),
            missing_classes=tuple(sorted(ours - theirs)), seed=options.seed,
        )  # fmt: skip


def check(
    reference: LabeledDataset, batch: LabeledDataset, *, options: CheckOptions | None = None, **overrides: Any
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
        **overrides: single fields of :class:`CheckOptions`.

    Returns:
        Value, p-value and whether the gate was exceeded.

    Raises:
        ValueError: widths that differ, options that do not fit.
    """
    return DriftCheck(reference, options=options, **overrides).update(batch).compute()


def assert_same_distribution(
    reference: LabeledDataset, batch: LabeledDataset, *, options: CheckOptions | None = None, **overrides: Any
) -> CheckResult:
    """:func:`check` for test suites: raises where the gate is exceeded.

    Raises:
        DistributionShiftError: an ``AssertionError`` with the number, its p-value and the gate.
    """
    result = check(reference, batch, options=options, **overrides)
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


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``(n, m)`` float64 squared distances of centred points, never negative."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * (x @ y.T)).clamp_min(0.0)


def _warn(result: CheckResult) -> None:
    warnings.warn(result.summary(), stacklevel=3)


def _pooled(reference: LabeledDataset, batch: LabeledDataset) -> LabeledDataset:
    """Both sides as one set, classes matched by name; every sample keeps its relative weight."""
    names = tuple(sorted({*reference.class_names, *batch.class_names}))
    place = {name: i for i, name in enumerate(names)}
    y = [torch.tensor([place[n] for n in s.class_names], device=s.x.device)[s.y] for s in (reference, batch)]
    total = reference.n + batch.n
    weights = torch.cat([s.normalised_weights * s.n / total for s in (reference, batch)])
    dtype = torch.promote_types(reference.x.dtype, batch.x.dtype)
    x = torch.cat([s.x.to(dtype) for s in (reference, batch)])
    return LabeledDataset(x=x, y=torch.cat(y), class_names=names, weights=weights, name="pooled")
