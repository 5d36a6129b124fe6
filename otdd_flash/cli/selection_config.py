"""Configs of the tasks values, select and check; see :mod:`otdd_flash.cli.config` for the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otdd_flash.cli.config import DataConfig, DatasetConfig, FeaturesConfig, PairConfig


@dataclass
class ValuesConfig(PairConfig):
    """``otdd values``: source is the pool."""

    parts: bool = True
    """Split each value into a feature and a label part (one more solve)."""
    top: int = 10
    """Samples that the table on stdout shows."""


@dataclass
class SearchConfig:
    """How long the selection searches; every key is a field of :class:`otdd_flash.selection.select.SearchOptions`."""

    steps: int = 60
    """Moves of the relaxed problem at most."""
    relative_gap: float = 0.01
    """The relaxed problem is solved when its gap is below this fraction of the value."""
    exchanges: int = 40
    """Exchanges of a chosen sample for another at most."""


@dataclass
class SelectConfig(PairConfig):
    """``otdd select``: source is the pool, or its first part."""

    more: list[Any] = field(default_factory=list)
    """Further sources of the pool: a list of names, kind:path, or {name: ..., as: ..., and any key of source}."""
    n_to_select: Any = 0.1
    """A count, or a fraction of the pool in (0, 1)."""
    balance: Any = None
    """null for a free choice, classes for equal counts, or counts by class name."""
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass
class GateConfig:
    """Statistic and gate; every key is a field of :class:`otdd_flash.selection.gate.CheckOptions`."""

    alpha: float = 0.05
    """Exceeded where the p-value is at most alpha."""
    threshold: float | None = None
    """Gate on the value instead of the p-value."""
    new_classes: str = "fail"
    """fail, a class that the reference never had exceeds the gate, or allow."""
    permutations: int = 199
    """Random splits of both sides together that the value is compared with."""
    relative_epsilon: float = 0.1
    """Regularisation as a fraction of the mean cost."""
    label_distance: str | None = "gaussian_diag"
    """Class-to-class distance: gaussian_diag, gaussian, means or sinkhorn; null for features alone."""
    feature_weight: float = 1.0
    """Factor of the squared Euclidean distance between features."""
    label_weight: float = 1.0
    """Factor of the squared class-to-class distance."""
    max_samples: int = 500
    """Samples of each side that enter the test."""
    tol: float = 1e-3
    """Converged when the L1 marginal error is below this fraction of the mass."""
    max_iterations: int = 1000
    """Passes over the costs allowed."""
    null: str = "pooled"
    """pooled, solved for every batch; or reference, solved once for a size of batch and kept in cache, with the pooled
    one for batches that it does not clear."""


@dataclass
class CheckConfig(DataConfig):
    """``otdd check``: source is the reference, target the batch; the gate draws from the max_samples rows loaded."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)

    source: DatasetConfig = field(default_factory=DatasetConfig)
    target: DatasetConfig = field(default_factory=DatasetConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    strict: bool = False
    """Exit code 4 when the result is not converged, whatever the gate says."""
    cache: str | None = "default"
    """Folder of the values of gate.null=reference; default is $OTDD_CACHE/checks or ~/.cache/otdd_flash/checks, null
    stores none."""
