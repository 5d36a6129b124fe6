"""The shape of every task's config: keys, types and defaults that the YAML files in ``conf/`` are checked against.

Plain dataclasses: OmegaConf refuses ``Literal`` fields, and a frozen dataclass cannot be composed. Choices are
therefore ``str`` here, and the library function that takes them says which it knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class DatasetConfig:
    """One data set, as :func:`otdd_flash.load` takes it."""

    name: str = MISSING
    """A name that "otdd info" lists, or kind:path with kind csv, parquet, npz, imagefolder or hf."""
    title: str | None = None
    """What the set is called in results and figures, also written as; null for its own name."""
    split: str | None = None
    """Part of the set; null for the set's default."""
    classes: list[Any] | None = None
    """Keep only these classes (names or ids); null keeps all."""
    max_samples: int | None = None
    """Draw at most so many samples; null takes all."""
    data_root: str | None = None
    """Folder to look in first; null for $OTDD_DATA and the usual places."""
    path: str | None = None
    """File, folder or hub name (csv, parquet, npz, idx, imagefolder, hf)."""
    label: str | None = None
    """Column of the labels (csv, parquet, hf)."""
    features: Any = None
    """List of the columns of numbers, or the one column of arrays (csv, parquet, hf)."""
    text: str | None = None
    """Column of texts (csv, parquet, hf)."""
    image: str | None = None
    """Column of pictures (parquet, hf)."""
    weights: str | None = None
    """Column of weights (csv, parquet)."""
    sep: str | None = None
    """Between the fields of a row (csv), a comma by default: 'source.sep=";"', source.sep=\\t for a tab."""
    decimal: str | None = None
    """Decimal point of the numbers (csv), or a comma: 'source.decimal=","'."""
    encoding: str | None = None
    """Of the text (csv), utf-8 by default; latin-1, cp1252, utf-16."""
    na_values: list[str] | None = None
    """Texts that mean missing (csv), besides an empty field."""
    image_shape: list[int] | None = None
    """[h, w], [c, h, w] or [h, w, c] where rows are flattened pictures (csv, parquet, npz)."""
    resize: Any = None  # OmegaConf cannot interpolate a typed list
    """[h, w] to bring pictures to."""
    fit: str | None = None
    """How: stretch (the default), pad (a border of zeros) or pad:<margin> (scaled to leave a border of that width)."""
    min_class_size: int | None = None
    """Drop smaller classes, with a warning and a count."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the set: +source.options.subset=letters (emnist), x, y (npz), labels (idx: their file),
    picture_root (parquet: folder that its pictures may be read from), config (hf)."""


@dataclass
class SetFeaturesConfig:
    """What the feature part of the ground cost is; all but weight as :class:`otdd_flash.data.features.Features`.

    What is fitted (table, pca, standardize) is fitted once, for all sets: on the first of many, or the target of a
    ranking.
    """

    weight: float = 1.0
    """Factor of the squared Euclidean distance between features."""
    embedder: Any = "raw"
    """raw, table (numbers and categories), pca:<k>, torchvision:<model>, timm:<model>, efficientnet-lite0,
    sentence-transformers[:<model or folder>], or a list of those, applied in turn."""
    picture_size: list[int] | None = None
    """[h, w] at which picture models see their pictures; null for each model's own size."""
    scaling: str = "none"
    """none, standardize (zero mean and unit deviation a column) or l2 (unit rows: the cosine cost)."""
    mean: Any = None
    """Constants of standardize instead of a fit: a number, or a list of one a channel or one a feature."""
    std: Any = None
    """Deviations for standardize, as mean."""
    batch_size: int = 256
    """Samples a batch of the embedder."""
    cache: str | None = "default"
    """Folder of embeddings; default is $OTDD_CACHE/features or ~/.cache/otdd_flash/features, null stores none."""


@dataclass
class FeaturesConfig(SetFeaturesConfig):
    """The same where there is a source and a target."""

    target_embedder: Any = None
    """Embedder of the target alone; null for the same on both sides."""
    fit_on: str = "source"
    """Side that table, pca and standardize are fitted on: source, target or both."""


@dataclass
class LabelsConfig:
    """What the label part of the ground cost is."""

    distance: str | None = "gaussian"
    """Class-to-class distance: gaussian, gaussian_diag, means, sinkhorn or names; null for features alone."""
    epsilon: float | None = None
    """Regularisation of the class-to-class problems (sinkhorn only); null for a fraction of their mean cost."""
    weight: float = 1.0
    """Factor of the squared class-to-class distance."""
    embedder: str = "sentence-transformers"
    """Of class names (names only): sentence-transformers[:<model or folder>]."""
    scale: Any = 1.0
    """Squared feature units that a unit of squared name distance is worth (names only); features gives both parts of
    the cost the same mean."""


@dataclass
class BalancedSolverConfig:
    """How balanced problems are solved; every key is an argument of :func:`otdd_flash.dataset_distance`."""

    epsilon: float | None = None
    """Regularisation in units of the cost; null takes relative_epsilon."""
    relative_epsilon: float = 0.01
    """Regularisation as a fraction of the mean cost, where epsilon is null."""
    tol: float = 1e-3
    """Converged when the L1 marginal error is below this fraction of the mass."""
    max_iterations: int = 1000
    """Passes over the costs allowed; a result that needs more says that it is not converged."""
    precision: str = "auto"
    """Of products: fp32, tf32, fp16, fp16x3 or int8 (features on an 8-bit grid), or auto."""
    memory: str = "auto"
    """Costs computed anew in every pass (streamed), stored (cached), or auto."""
    memory_budget: int | None = None
    """Bytes for stored costs; null for a fraction of what is free."""
    backend: str = "auto"
    """What computes: torch, triton (NVIDIA GPUs) or auto."""


@dataclass
class TimedSolverConfig(BalancedSolverConfig):
    """The same, with or without self terms."""

    debiased: bool = True
    """Subtract the self terms, so that the distance of a set to itself is zero."""


@dataclass
class SolverConfig(TimedSolverConfig):
    """The same, and unbalanced problems too."""

    reach: float | None = None
    """Unbalanced transport: about the distance beyond which mass is rather lost than moved; null keeps all mass."""
    reach_x: float | None = None
    """reach of the source's mass alone."""
    reach_y: float | None = None
    """reach of the target's mass alone."""


@dataclass
class ConventionConfig:
    """Whose number is given beside the converged one; the keys but ``name`` are microsoft/otdd's arguments."""

    name: str | None = None
    """microsoft, or null for this library's number alone."""
    entreg: float = 0.1
    """Epsilon, in units of the halved cost."""
    lambda_x: float = 1.0
    """Factor of the halved squared distance between features."""
    lambda_y: float = 1.0
    """Factor of the halved label distance."""
    inner: str = "gaussian"
    """Class-to-class distance: gaussian, gaussian_diag, means or exact."""
    inner_entreg: float = 0.1
    """Epsilon of the class-to-class problems (exact only)."""
    inner_debiased: bool = False
    """Subtract the self terms of the class-to-class problems (exact only)."""


@dataclass
class OutputConfig:
    """How results are given."""

    format: str = "table"
    """What stdout gets: table or json."""
    files: bool = True
    """Keep a folder of the run with its results, settings, log and figures; false leaves nothing behind."""


@dataclass
class ScreenConfig:
    """A cheap distance in front of the full one; every key is a field of :class:`otdd_flash.Screen`."""

    keep: Any = None
    """How many get the full distance: of the candidates of a ranking (a count, or a fraction), of the neighbours of
    each set of a matrix (a count); null for all."""
    margin: float = 0.1
    """Near ties at the cut, up to this fraction of its distance, are kept as well; needs keep."""
    method: str = "sliced"
    """The cheap distance: sliced or moments; needs keep."""
    projections: int = 500
    """Directions of the sliced distance; needs keep."""
    quantiles: int = 64
    """Of each projection; needs keep."""


@dataclass
class DataConfig:
    """What every task on data sets has."""

    features: SetFeaturesConfig = field(default_factory=SetFeaturesConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    max_samples: int | None = None
    """Draw at most so many samples of every set that has no max_samples of its own; null takes all."""
    data_root: str | None = None
    """Folder to look for data sets in first; null for $OTDD_DATA and the usual places."""
    resize: list[int] | None = None
    """[h, w] to bring pictures of every set to that has no resize of its own."""
    fit: str | None = None
    """How pictures are brought to that size: stretch (the default), pad or pad:<margin>."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; null takes a GPU where there is one."""
    seed: int = 0
    """Of every draw."""


@dataclass
class SolvedConfig(DataConfig):
    """What every task has that solves for distances."""

    labels: LabelsConfig = field(default_factory=LabelsConfig)
    solver: BalancedSolverConfig = field(default_factory=BalancedSolverConfig)
    progress: bool | None = None
    """Progress on stderr; null shows it on a terminal."""
    strict: bool = False
    """Exit code 4 when a result is not converged."""


@dataclass
class PairConfig(SolvedConfig):
    """What every task has that solves for distances of two sets."""

    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    source: DatasetConfig = field(default_factory=DatasetConfig)
    target: DatasetConfig = field(default_factory=DatasetConfig)
    cache_dir: str | None = None
    """Folder that keeps label-distance tables between runs; null keeps none."""


@dataclass
class DistanceConfig(PairConfig):
    """``otdd distance``."""

    solver: SolverConfig = field(default_factory=SolverConfig)
    convention: ConventionConfig = field(default_factory=ConventionConfig)


@dataclass
class MatrixConfig(SolvedConfig):
    """``otdd matrix``; device: cuda is all GPUs that are visible."""

    solver: SolverConfig = field(default_factory=SolverConfig)

    datasets: list[Any] = MISSING
    """A list of names, kind:path, or {name: ..., as: ..., and any key of source in otdd distance}."""
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    folder: str | None = None
    """Where finished pairs are kept and found again; null for the run's own folder."""
    workers: int | None = None
    """Processes; null is one for each GPU, or one on the CPU."""
    shard: str | None = None
    """i/N: this part of the work, i from 0; all parts share folder."""
    collect: bool = False
    """Compute nothing: put together what is finished in folder."""


@dataclass
class RankConfig(SolvedConfig):
    """``otdd rank``."""

    solver: SolverConfig = field(default_factory=SolverConfig)

    target: DatasetConfig = field(default_factory=DatasetConfig)
    candidates: list[Any] = MISSING
    """A list of names, kind:path, or {name: ..., as: ..., and any key of source in otdd distance}."""
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    bootstrap: int = 40
    """Half-sample replicates behind intervals and p-values; 0 gives the order alone."""
    level: float = 0.95
    """Of the intervals and of the test between neighbours."""


@dataclass
class BenchConfig:
    """``otdd bench``."""

    n: int = 2000
    """Points of the first cloud."""
    m: int | None = None
    """Points of the second cloud; null for n."""
    d: int = 784
    """Features."""
    levels: bool = False
    """Features on an 8-bit grid, as pictures are, instead of normal ones."""
    solver: TimedSolverConfig = field(default_factory=TimedSolverConfig)
    repeats: int = 3
    """Timed solves, after a first one that is reported apart."""
    tune: bool = False
    """Search for faster kernel configurations for this GPU and width, and keep them under $OTDD_CACHE/tuning."""
    tune_modes: list[str] = field(default_factory=lambda: ["int8", "fp16", "fp16x3"])
    """Operand precisions to tune."""
    tune_seconds: float = 120.0
    """For each precision: no new candidate is begun after this."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; null takes a GPU where there is one."""
    seed: int = 0
    """Of the clouds."""
    output: OutputConfig = field(default_factory=OutputConfig)


@dataclass
class InfoConfig:
    """``otdd info``."""

    output: OutputConfig = field(default_factory=OutputConfig)
    data_root: str | None = None
    """Folder to look for data sets in first."""
