"""The choices of a check and what it found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from otdd_flash.checks import check_choice, check_count, check_fields, check_flag, check_number, check_text


@dataclass(frozen=True)
class CheckOptions:
    """Every choice of :func:`check`.

    Args:
        alpha: the gate: a p-value of at most ``alpha`` exceeds it.
        threshold: gate on the value (squared divergence, in units of the cost) instead of the p-value.
        new_classes: ``fail``, a class that the reference never had exceeds the gate whatever the numbers say, or
            ``allow``.
        permutations: ``B``; the smallest p-value is ``1 / (1 + B)``.
        relative_epsilon: regularisation as a fraction of the mean cost of the pooled sample.
        label_distance: class-to-class distance, as in :func:`~otdd_flash.dataset_distance`; ``None`` for features
            alone: no part of the test then looks at labels.
        feature_weight: factor of the squared feature distance.
        label_weight: factor of the squared class-to-class distance; zero for features alone.
        max_samples: at most so many samples of each side; the pooled cost matrix is stored.
        tol: L1 marginal error at which a problem is converged.
        max_iterations: passes at most.
        strict: raise instead of warn where the result is not converged.
        seed: of the draws and of the permutations.
        null: what the statistics are compared with: ``pooled``, permuted splits of both samples, which is exact but has
            to be solved for every batch; or ``reference``, splits of samples of the reference alone, which are solved
            once for a size of batch and kept on disk. They can only clear a batch: one that they would reject is tested
            by the pooled null as well. The reference needs more rows than the batch.
    """

    alpha: float = 0.05
    threshold: float | None = None
    new_classes: str = "fail"
    permutations: int = 199
    relative_epsilon: float = 0.1
    label_distance: str | None = "gaussian_diag"
    feature_weight: float = 1.0
    label_weight: float = 1.0
    max_samples: int = 500
    tol: float = 1e-3
    max_iterations: int = 1000
    strict: bool = False
    seed: int = 0
    null: str = "pooled"

    @property
    def accuracy(self) -> float:
        """To what fraction of the larger of itself and epsilon the value is to be known."""
        return 10 * self.tol

    @property
    def sees_labels(self) -> bool:
        """Whether labels are part of the test."""
        return self.label_distance is not None and self.label_weight > 0

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.threshold is None and self.alpha < 1 / (1 + self.permutations):
            raise ValueError(
                f"{self.permutations} permutations cannot give a p-value of {self.alpha} or less: take at least "
                f"{math.ceil(1 / self.alpha) - 1}, or gate on a threshold"
            )
        check_text("label_distance", self.label_distance, optional=True)
        check_choice("null", self.null, ("pooled", "reference"))
        check_choice("new_classes", self.new_classes, ("fail", "allow"))
        check_flag("strict", self.strict)

    def _check_numbers(self) -> None:
        """Each by itself."""
        check_fields(self, check_number, "alpha", low=1e-15, high=1.0)
        check_fields(self, check_number, "tol", high=1.0)
        check_fields(self, check_number, "threshold", low=-math.inf, optional=True)
        check_fields(self, check_count, "permutations", "seed", least=0)
        check_fields(self, check_number, "relative_epsilon", high=1e150)
        check_fields(self, check_number, "feature_weight", "label_weight", high=1e150, closed=True)
        check_fields(self, check_count, "max_samples", least=2)
        check_fields(self, check_count, "max_iterations")


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Args:
        value: squared divergence of batch and reference, in units of the cost.
        root: its square root.
        p_value: exact permutation p-value of all parts together; ``None`` without permutations.
        parts: p-value of each part by itself, to say where the drift is; not corrected for there being several.
        exceeded: whether the gate was.
        alpha: the gate on the p-value.
        threshold: the gate on the value, in place of that on the p-value.
        null: mean and upper quantiles of the values under the null hypothesis.
        permutations: how many there are.
        epsilon: regularisation, in units of the cost.
        converged: all marginal errors met the tolerance, and the value is known to within ``10 tol`` of the larger of
            itself and epsilon. The p-value is exact in any case.
        error: of the value: its distance to the farther end of an interval that holds the optimal one.
        marginal_error: the worst of all problems.
        iterations: of the solver.
        n, m: samples of reference and batch that took part.
        seen: rows that both were drawn from.
        names: of reference and batch.
        new_classes: of the batch alone, among all rows seen.
        new_classes_fail: whether these exceed the gate.
        missing_classes: of the reference alone, among all rows seen.
        seed: of draws and permutations.
        null_of: what the null values are of: ``pooled`` or ``reference``.
        null_cached: values of the reference came from the disk.
        notes: what was done to the data.
    """

    value: float
    root: float
    p_value: float | None
    parts: dict[str, float]
    exceeded: bool
    alpha: float
    threshold: float | None
    null: dict[str, float]
    permutations: int
    epsilon: float
    converged: bool
    error: float
    marginal_error: float
    iterations: int
    n: int
    m: int
    seen: tuple[int, int]
    names: tuple[str, str]
    new_classes: tuple[str, ...]
    new_classes_fail: bool
    missing_classes: tuple[str, ...]
    seed: int
    null_of: str = "pooled"
    null_cached: bool = False
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        plain = asdict(self)
        return {key: list(item) if isinstance(item, tuple) else item for key, item in plain.items()}

    @property
    def verdict(self) -> str:
        """The decision and the number behind it, in words."""
        if self.threshold is not None:
            passed, said = self.value <= self.threshold, f"value {self.value:.6g} is"
            said += f" {'within' if passed else 'above'} the threshold {self.threshold:g}"
        elif self.p_value is None:
            passed, said = True, "no permutations, no p-value"
        else:
            passed, said = self.p_value > self.alpha, f"p = {self.p_value:.4g} is"
            said += f" {'above' if passed else 'at most'} alpha = {self.alpha:g}"
        if self.new_classes and self.new_classes_fail:
            said = f"classes that the reference never had: {', '.join(self.new_classes)}; {said}"
        return f"{'DRIFT' if self.exceeded else 'no drift found'}: {said}"

    def accuracy(self, tol: float) -> str:
        """How well the numbers are known, in words, and what to do where that is not well enough."""
        text = f"marginal error {self.marginal_error:.2e} (tol {tol:.2e}) after {self.iterations} iterations"
        text += f", value known to {self.error:.2e}"
        if self.converged:
            return text
        way_out = "lower tol or raise" if self.marginal_error <= tol else "raise max_iterations or"
        return f"{text}; {way_out} relative_epsilon; the p-value is exact all the same"

    def summary(self) -> str:
        """One line: the decision, the numbers, the sizes."""
        text = f"{self.names[1]} against {self.names[0]}: {self.verdict}"
        text += f" (divergence {self.value:.6g}, {self.n} and {self.m} samples"
        return text + ("" if self.converged else ", NOT converged") + ")"
