"""The choices of a check and what it found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from otdd_flash.checks import check_count, check_number


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
        null: what the value is compared with: ``pooled``, permuted splits of both samples, which is exact but has to be
            solved for every batch; or ``reference``, random splits of the reference alone, which are solved once for a
            size of batch and kept on disk. The latter needs a reference with more rows than the batch.
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
    null: str = "pooled"

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.threshold is None and self.alpha < 1 / (1 + self.permutations):
            raise ValueError(
                f"{self.permutations} permutations cannot give a p-value of {self.alpha} or less: take at least "
                f"{math.ceil(1 / self.alpha) - 1}, or gate on a threshold"
            )
        if self.null not in ("pooled", "reference"):
            raise ValueError(f"null must be pooled or reference, got {self.null!r}")

    def _check_numbers(self) -> None:
        """Each by itself."""
        check_number("alpha", self.alpha, high=1.0)
        check_number("threshold", self.threshold, low=-math.inf, optional=True)
        check_count("permutations", self.permutations, least=0)
        check_number("relative_epsilon", self.relative_epsilon)
        for name in ("feature_weight", "label_weight"):
            value = getattr(self, name)
            if value != 0:
                check_number(name, value)
        check_count("max_samples", self.max_samples, least=2)
        check_number("tol", self.tol, high=1.0)
        check_count("seed", self.seed, least=0)


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Args:
        value: squared divergence of batch and reference, in units of the cost.
        root: its square root.
        p_value: permutation p-value; ``None`` without permutations.
        exceeded: whether the gate was.
        alpha: the gate on the p-value.
        threshold: the gate on the value, in place of that on the p-value.
        null: mean and upper quantiles of the values under the null hypothesis.
        permutations: how many there are.
        epsilon: regularisation, in units of the cost.
        converged: the marginal errors met the tolerance.
        marginal_error: the worst of them.
        iterations: of the solver.
        n, m: samples of reference and batch that took part.
        seen: rows that both were drawn from.
        names: of reference and batch.
        new_classes: of the batch alone.
        missing_classes: of the reference alone.
        seed: of draws and permutations.
        null_of: what the null values are of: ``pooled`` or ``reference``.
        null_cached: they came from the disk.
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
    null_of: str = "pooled"
    null_cached: bool = False

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
