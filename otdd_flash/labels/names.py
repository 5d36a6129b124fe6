"""Class names embedded as text: a label distance that looks at what classes are called instead of at their samples.

    W[l, l'] = scale ||e(l) - e(l')||^2 = 2 scale (1 - cos(e(l), e(l')))        e(l) unit vector of the name of class l

so that ``W`` lies between 0 and ``4 scale``. The unit vectors have no unit of length: with ``scale=1`` the table is in
the units of features that have length one themselves (the cosine cost, ``scaling="l2"``), and for any other features
``scale`` says how many squared units of theirs one unit of name distance is worth. ``scale="features"`` takes

    scale = E ||x - x'||^2 / E ||e(l) - e(l')||^2       x, l from the source and x', l' from the target, independently

which gives both parts of the cost the same mean, but a unit that belongs to the pair: distances of several pairs then
do not compare.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from otdd_flash.checks import check_fields, check_number
from otdd_flash.cost import weighted_mean
from otdd_flash.errors import warn
from otdd_flash.labels.tables import LabelDistances
from otdd_flash.types import LabeledDataset

_ROWS = 1 << 14
_FAINT = 0.01  # share of the mean cost below which the names are said to play no part
_NUMBER = re.compile(r"[-+]?\d[\d.,_ eE+-]*(\(\w+\))?")


@dataclass(frozen=True)
class ClassNames:
    """The label distance between class names, see :mod:`otdd_flash.labels.names`.

    Args:
        embedder: name of a text embedder (``sentence-transformers[:<model or folder>]``), an
            :class:`~otdd_flash.data.features.Embedder` of texts, or a callable from a list of names to ``(c, k)``
            vectors, which are brought to length one.
        scale: squared units of the features that one unit of squared name distance is worth, or ``"features"``.
    """

    embedder: str | Any = "sentence-transformers"
    scale: float | Literal["features"] = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.scale, str) and self.scale == "features"):
            if isinstance(self.scale, str):
                raise ValueError(f"scale must be a positive number or 'features', got {self.scale!r}")
            check_fields(self, check_number, "scale")
        if not (isinstance(self.embedder, str) or callable(self.embedder) or hasattr(self.embedder, "embed")):
            raise TypeError(
                "embedder must be the name of a text embedder, an Embedder, or a callable from a list of names to "
                f"vectors, got {self.embedder!r}"
            )


def names_table(source: LabeledDataset, target: LabeledDataset, settings: ClassNames) -> LabelDistances:
    """The three tables between the names of the classes of two data sets.

    Args:
        source: first data set.
        target: second data set, of the same feature width.
        settings: embedder and scale.

    Returns:
        The tables; the certificate holds the share of the label part in the mean cost at equal weights.

    Raises:
        ValueError: names that are numbers, or an embedder that is not one of texts or gives no usable vectors.
        MissingDependencyError: an embedder whose package is absent.
    """
    for side in (source, target):
        _check_names(side)
    texts = [as_text(name) for side in (source, target) for name in side.class_names]
    distinct = list(dict.fromkeys(texts))
    vectors, embedder = _embed(settings.embedder, distinct)
    position = torch.tensor([distinct.index(text) for text in texts])
    squares = _squared_distances(vectors)[position][:, position]
    mean_names = _mean_between(squares[: source.num_classes, source.num_classes :], source, target)
    mean_features = _mean_cost(source, target)
    scale = settings.scale
    if scale == "features":
        scale = mean_features / mean_names if mean_names > 0 and mean_features > 0 else 1.0
    part, whole = scale * mean_names, scale * mean_names + mean_features
    share = part / whole if whole > 0 else 0.0
    if 0 < share < _FAINT:
        warn(
            f"class names make up {share:.2g} of the mean cost: the squared features are in other units than unit "
            f"vectors; ClassNames(scale={mean_features / mean_names:.3g}) would give both parts the same mean"
        )
    return LabelDistances.from_joint(
        scale * squares, source.class_names, target.class_names, "names",
        parameters={"embedder": embedder, "scale": scale, "unit": "squared distance of unit vectors times scale"},
        certificate={"share_of_mean_cost": share},
    )  # fmt: skip


def as_text(name: str) -> str:
    """A class name as words: ``card_arrival`` is read as ``card arrival``."""
    return " ".join(name.replace("_", " ").split())


def _check_names(side: LabeledDataset) -> None:
    """Names must be words.

    Raises:
        ValueError: a name that is empty or a number.
    """
    for name in side.class_names:
        if not as_text(name) or _NUMBER.fullmatch(name.strip()):
            shown = ", ".join(map(repr, side.class_names[:5]))
            raise ValueError(
                f"label distance 'names' compares what classes are called, but those of {side.name!r} are {shown}"
                f"{', ...' if side.num_classes > 5 else ''}: {name!r} is no word; give class_names={{label: name}} "
                "where the data set is made (otdd_flash.from_arrays and its like), or take another label distance"
            )


def _embed(embedder: Any, texts: list[str]) -> tuple[Tensor, str]:
    """``(c, k)`` float64 unit vectors of the texts, and the embedder's name."""
    if isinstance(embedder, str):
        embedder = _resolve(embedder)
    if hasattr(embedder, "embed"):
        if not getattr(embedder, "texts", False):
            raise ValueError(f"embedder {getattr(embedder, 'name', embedder)!r} takes numbers, class names are texts")
        found, name = _sentences(embedder, texts), str(embedder.name)
    else:
        found, name = embedder(list(texts)), _title(embedder)
    vectors = _as_numbers(found, name)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"embedder {name} must give ({len(texts)}, k), one row a name, got {tuple(vectors.shape)}")
    norms = vectors.norm(dim=1)
    bad = (~torch.isfinite(norms) | (norms == 0)).nonzero()[:, 0].tolist()
    if bad:
        raise ValueError(f"embedder {name} gave no direction for the class name {texts[bad[0]]!r}")
    return vectors / norms[:, None], name


def _as_numbers(found: Any, name: str) -> Tensor:
    """What an embedder gave as float64 on the host.

    Raises:
        ValueError: no array of real numbers; ``name`` says whose.
    """
    if isinstance(found, list | tuple) and found and all(isinstance(row, Tensor) for row in found):
        found = [row.tolist() for row in found]
    try:
        vectors = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(found).__name__
        raise ValueError(f"embedder {name} must give numbers, one row a name, got {kind}: {error}") from error
    if vectors.is_complex():
        raise ValueError(f"embedder {name} must give real numbers, got {vectors.dtype}")
    return vectors.detach().to("cpu", torch.float64)


@functools.lru_cache(maxsize=2)  # loading a model takes seconds, and distances come in series
def _resolve(name: str) -> Any:
    """The one text embedder of that name."""
    from otdd_flash.data.features import resolve_embedder

    chain = resolve_embedder(name)
    if len(chain) != 1 or not chain[0].texts:
        raise ValueError(f"embedder={name!r} is none of texts: give sentence-transformers[:<model or folder>]")
    return chain[0]


def _sentences(embedder: Any, texts: list[str]) -> Tensor:
    """Names through an embedder of text sets."""
    from otdd_flash.data.features import Batching
    from otdd_flash.data.unembedded import TextDataset

    ids = torch.arange(len(texts))
    return embedder.embed(TextDataset(tuple(texts), ids, tuple(texts), name="class names"), Batching(progress=False))


def _title(embedder: Callable[..., Any]) -> str:
    return str(getattr(embedder, "__qualname__", type(embedder).__name__))


def _squared_distances(vectors: Tensor) -> Tensor:
    """``(c, c)`` by differences, which are exact for equal and near vectors."""
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square().fill_diagonal_(0.0)


def _mean_between(block: Tensor, source: LabeledDataset, target: LabeledDataset) -> float:
    """``E W[l, l']`` under independent draws of both sides."""
    rows, columns = (_class_masses(side) for side in (source, target))
    return float(rows @ block @ columns)


def _class_masses(side: LabeledDataset) -> Tensor:
    masses = torch.zeros(side.num_classes, dtype=torch.float64)
    return masses.index_add_(0, side.y.cpu(), side.normalised_weights.cpu())


def _mean_cost(source: LabeledDataset, target: LabeledDataset) -> float:
    """``E ||x - x'||^2`` under independent draws: spreads about a common centre, and the gap of the means."""
    means = [weighted_mean(side.x.detach(), side.normalised_weights).double() for side in (source, target)]
    spreads = [_spread(side, mean) for side, mean in zip((source, target), means, strict=True)]
    return math.fsum([*spreads, float((means[0].cpu() - means[1].cpu()).square().sum())])


def _spread(side: LabeledDataset, mean: Tensor) -> float:
    """Weighted mean squared distance from ``mean``, block by block."""
    parts = zip(side.x.detach().split(_ROWS), side.normalised_weights.split(_ROWS), strict=True)
    return math.fsum(float(w @ (x.to(torch.float64) - mean).square().sum(1)) for x, w in parts)
