"""The config of ``otdd flow``; see :mod:`otdd_flash.cli.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otdd_flash.cli.config import DataConfig, DatasetConfig, FeaturesConfig, LabelsConfig, SolverConfig


@dataclass
class DynamicsConfig:
    """What moves."""

    name: str = "features"
    """features, tied (features and one mean and deviation a class), augmented (and a mean and deviation a sample) or
    joint (features and a distribution over classes a sample)."""
    moments: str = "attached"
    """features: attached (class moments move with the samples) or detached."""
    clustering: str | None = None
    """augmented: kmeans or dbscan find labels anew; null keeps them."""
    every: int = 1
    """augmented: steps between clusterings."""
    clusters: int | None = None
    """augmented, kmeans: how many; null for the present number of classes."""
    radius: float = 0.1
    """augmented, dbscan: as a fraction of the spread of the label statistics."""
    min_samples: int = 5
    """augmented, dbscan: neighbours that make a core of a cluster."""
    rate: float = 1.0
    """joint: of the label distributions, relative to the features'."""


@dataclass
class StepperConfig:
    """How it moves; keys that a stepper does not have are ignored by it."""

    name: str = "line_search"
    """line_search, euler, momentum or torch."""
    rate: float = 0.1
    """Step, in units of the n-scaled gradient; 0.5 would jump onto the target of a lone point. First one tried, for
    line_search."""
    grow: float = 1.0
    """line_search: factor of the rate after a move."""
    decay: float = 0.9
    """momentum: share of the last move that the next one keeps."""
    optimizer: str = "Adam"
    """torch: any class of torch.optim; rate is its lr."""
    settings: dict[str, Any] = field(default_factory=dict)
    """torch: further arguments: +stepper.settings.weight_decay=0.1."""
    temperature: float = 0.0
    """Of Gaussian noise on the features; not with line_search."""


@dataclass
class PicturesConfig:
    """What is drawn into the run's folder."""

    every: int = 5
    """Steps between frames; 0 draws nothing."""
    columns: int = 10
    """Samples a class in image grids."""
    animation: str = "gif"
    """Join the frames: gif, mp4 (pip install 'otdd-flash[flows]') or none."""


@dataclass
class FlowConfig(DataConfig):
    """``otdd flow``."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)

    source: DatasetConfig = field(default_factory=DatasetConfig)
    target: DatasetConfig = field(default_factory=DatasetConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    stepper: StepperConfig = field(default_factory=StepperConfig)
    pictures: PicturesConfig = field(default_factory=PicturesConfig)
    steps: int = 50
    """Moves in all, those before a resume included."""
    projection: str = "auto"
    """none, box (features in [0, 1]), grid (8-bit levels), or auto: box for pictures."""
    resume: str | None = None
    """Folder of an earlier run to continue, with its settings; only steps can be given anew."""
    checkpoint_every: int = 1
    """Steps between checkpoints; one is always written at the end."""
    trajectory_every: int = 0
    """Steps between dumps of all moving variables; 0 for none."""
    patience: int = 0
    """Stop after so many steps without a fall of the value by patience_relative; 0 for never."""
    patience_relative: float = 1e-3
    """A fall by less than this fraction of the value counts as none."""
    tensorboard: bool = False
    """Metrics for TensorBoard too (pip install 'otdd-flash[flows]')."""
    transfer_split: str | None = None
    """Part of the target that the transfer check tests on; null for the target's own samples."""
    transfer_neighbours: int = 5
    """Of the transfer check's classifier; 0 for no check."""
    progress: bool | None = None
    """Progress on stderr; null shows it on a terminal."""
