"""Which parts of a labelled data set flow, and how its labels follow.

``FeatureFlow``    ``x``; class moments are those of the moving samples, on the tape or not
``TiedFlow``       ``x`` and one mean and deviation per class, tied: all samples of a class share them
``AugmentedFlow``  ``x`` and a mean and deviation per sample, in the space where the dataset distance is Euclidean;
                   labels fixed, or found anew by clustering the statistics
``JointFlow``      ``x`` and a distribution over classes per sample

Source: Alvarez-Melis and Fusi (2021), section 4 (feature-driven, joint-driven fixed-label and variable-label flows).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides
from otdd_flash.checks import check_choice, check_count, check_fields, check_number, check_type
from otdd_flash.errors import optional_import
from otdd_flash.flows.particles import Moments, Particles, diagonal_statistics, renumbered
from otdd_flash.flows.projections import project_simplex
from otdd_flash.types import LabeledDataset

log = logging.getLogger("otdd_flash")

Variables = dict[str, Tensor]


class Dynamics(ABC):
    """The moving variables of a flow: named tensors, each row of which carries a mass."""

    @abstractmethod
    def init(self, data: LabeledDataset) -> Variables:
        """The variables at the start."""

    @abstractmethod
    def particles(self, variables: Variables, data: LabeledDataset) -> Particles:
        """What objectives see; ``data`` gives labels and weights, the variables may be on the tape."""

    def masses(self, variables: Variables, data: LabeledDataset) -> Variables:
        """``(rows,)`` float64 mass of the rows of each variable: the Wasserstein gradient is divided by it."""
        return dict.fromkeys(variables, data.normalised_weights)

    def project(self, variables: Variables) -> Variables:
        """Back to where the variables make sense."""
        return variables

    def relabel(self, step: int, variables: Variables, data: LabeledDataset) -> tuple[Variables, LabeledDataset]:
        """Labels found anew after ``step`` moves, where the dynamics does so."""
        return variables, data

    def dataset(self, variables: Variables, data: LabeledDataset) -> LabeledDataset:
        """The present data set."""
        return replace(data, x=variables["x"], levels=None)


@dataclass(frozen=True)
class FeatureFlow(Dynamics):
    """Features flow; classes are where their samples are.

    Args:
        moments: ``attached``: the gradient knows that moving a sample moves the moments of its class; it is then the
            gradient of the very value, and a line search can rely on it. ``detached``: the label table is held
            constant within a step and taken anew at the next.
    """

    moments: Moments = "attached"

    def __post_init__(self) -> None:
        check_choice("moments", self.moments, ("attached", "detached"))

    def init(self, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        return {"x": data.x.clone()}

    def particles(self, variables: Variables, data: LabeledDataset) -> Particles:
        """See :class:`Dynamics`."""
        return Particles(replace(data, x=variables["x"]), self.moments)


@dataclass(frozen=True)
class TiedFlow(Dynamics):
    """Features flow, and so do the class statistics, which start as the moments and move by their own gradient.

    The statistics are tied: one row ``[mean, deviation]`` for all samples of a class, of the mass of the class, so that
    it moves with the mean velocity of its samples' own.
    """

    def init(self, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        return {"x": data.x.clone(), "statistics": diagonal_statistics(data)}

    def particles(self, variables: Variables, data: LabeledDataset) -> Particles:
        """See :class:`Dynamics`."""
        return Particles(replace(data, x=variables["x"]), class_statistics=variables["statistics"])

    def masses(self, variables: Variables, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        weights = data.normalised_weights
        return {"x": weights, "statistics": weights.new_zeros(data.num_classes).index_add(0, data.y, weights)}

    def project(self, variables: Variables) -> Variables:
        """Deviations are not negative."""
        return {**variables, "statistics": _valid_statistics(variables["statistics"])}


@dataclass(frozen=True)
class Clustering:
    """How labels are found anew from label statistics.

    Args:
        method: ``kmeans`` or ``dbscan``, of scikit-learn.
        every: steps from one clustering to the next.
        clusters: of k-means; ``None`` keeps the present number of classes.
        radius: of DBSCAN, as a fraction of the largest distance between a statistic and their mean.
        min_samples: of DBSCAN.
        seed: of k-means.
    """

    method: Literal["kmeans", "dbscan"] = "kmeans"
    every: int = 1
    clusters: int | None = None
    radius: float = 0.1
    min_samples: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("kmeans", "dbscan"))
        check_fields(self, check_count, "every", "min_samples")
        check_fields(self, check_count, "clusters", optional=True)
        check_fields(self, check_number, "radius")
        check_fields(self, check_count, "seed", least=0, most=2**32 - 1)  # what scikit-learn takes

    def __call__(self, points: Tensor, weights: Tensor, classes: int) -> Tensor:
        """``(n,)`` int64 cluster of each row of ``points (n, p)``; all ``-1`` where DBSCAN finds none."""
        cluster = optional_import("sklearn.cluster", needed_for=f"re-clustering by {self.method}")
        rows = points.detach().to("cpu", torch.float64)
        if self.method == "kmeans":
            count = min(self.clusters or classes, len(torch.unique(rows, dim=0)))
            model = cluster.KMeans(n_clusters=count, n_init=4, random_state=self.seed)
            found = model.fit(rows.numpy(), sample_weight=weights.cpu().numpy()).labels_
            return torch.as_tensor(found, dtype=torch.int64, device=points.device)
        size = float((rows - rows.mean(0)).norm(dim=1).max())
        model = cluster.DBSCAN(eps=max(self.radius * size, 1e-12), min_samples=self.min_samples)
        found = torch.as_tensor(model.fit(rows.numpy()).labels_, dtype=torch.int64)
        return _adopt_noise(rows, found).to(points.device)


@dataclass(frozen=True)
class AugmentedFlow(Dynamics):
    """Every sample carries its features and the mean and deviation of its label, and all of them flow.

    Args:
        clustering: finds labels anew from the statistics, which then become the mean of their cluster; ``None`` keeps
            the labels fixed.
    """

    clustering: Clustering | None = field(default_factory=Clustering)

    def __post_init__(self) -> None:
        check_type("clustering", self.clustering, Clustering, optional=True)

    def init(self, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        return {"x": data.x.clone(), "statistics": diagonal_statistics(data)[data.y].to(data.x.dtype)}

    def particles(self, variables: Variables, data: LabeledDataset) -> Particles:
        """See :class:`Dynamics`."""
        return Particles(replace(data, x=variables["x"]), sample_statistics=variables["statistics"])

    def project(self, variables: Variables) -> Variables:
        """Deviations are not negative."""
        return {**variables, "statistics": _valid_statistics(variables["statistics"])}

    def relabel(self, step: int, variables: Variables, data: LabeledDataset) -> tuple[Variables, LabeledDataset]:
        """Cluster the statistics."""
        if self.clustering is None or step % self.clustering.every:
            return variables, data
        statistics, weights = variables["statistics"], data.normalised_weights
        y = self.clustering(statistics, weights, data.num_classes)
        if int(y.max()) < 0:
            log.warning("step %d: DBSCAN found no cluster, labels are kept: enlarge radius", step)
            return variables, data
        k = int(y.max()) + 1
        mass = weights.new_zeros(k).index_add(0, y, weights)
        sums = weights.new_zeros(k, statistics.shape[1]).index_add(0, y, weights[:, None] * statistics.double())
        shared = (sums / mass[:, None])[y].to(statistics.dtype)
        names = tuple(f"cluster {i}" for i in range(k))
        return {**variables, "statistics": shared}, renumbered(data, y, names)


@dataclass(eq=False)
class JointFlow(Dynamics):
    """Every sample carries a distribution over the classes of both sets, which flows along with its features.

    A label distribution ``p`` stands at ``sum_c p_c [mean_c, deviation_c]`` of the classes as they were at the start,
    and is projected back to the simplex after a step. A sample's label is its most likely class.

    Args:
        target: gives the classes that labels can turn into.
        rate: of the label distributions, relative to the features'. At 1 a label that is wrong by one typical squared
            distance between classes moves, at rate 1/2, in one step: the same scale as that of the features.
    """

    target: LabeledDataset
    rate: float = 1.0
    _places: Tensor | None = field(default=None, repr=False)
    _names: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_sides(target=self.target)
        check_fields(self, check_number, "rate")

    def init(self, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        places = torch.cat([diagonal_statistics(data), diagonal_statistics(self.target)])
        self._places = places.to(data.x.dtype)
        self._names = tuple(f"{side.name} {name}" for side in (data, self.target) for name in side.class_names)
        labels = torch.nn.functional.one_hot(data.y, len(places)).to(data.x.dtype)
        return {"x": data.x.clone(), "labels": labels}

    def particles(self, variables: Variables, data: LabeledDataset) -> Particles:
        """See :class:`Dynamics`."""
        assert self._places is not None
        return Particles(replace(data, x=variables["x"]), sample_statistics=variables["labels"] @ self._places)

    def masses(self, variables: Variables, data: LabeledDataset) -> Variables:
        """See :class:`Dynamics`."""
        assert self._places is not None
        spread = float((self._places - self._places.mean(0)).square().sum(1).mean()) or 1.0
        return {"x": data.normalised_weights, "labels": data.normalised_weights * (spread / self.rate)}

    def project(self, variables: Variables) -> Variables:
        """Label distributions are non-negative and sum to one."""
        return {**variables, "labels": project_simplex(variables["labels"])}

    def dataset(self, variables: Variables, data: LabeledDataset) -> LabeledDataset:
        """See :class:`Dynamics`."""
        return renumbered(super().dataset(variables, data), variables["labels"].argmax(1), self._names)


def _valid_statistics(statistics: Tensor) -> Tensor:
    mean, deviation = statistics.chunk(2, 1)
    return torch.cat([mean, deviation.clamp_min(0)], 1)


def _adopt_noise(rows: Tensor, found: Tensor) -> Tensor:
    """Rows that DBSCAN calls noise join the cluster whose mean is nearest."""
    if not bool((found < 0).any()) or int(found.max()) < 0:
        return found
    means = torch.stack([rows[found == k].mean(0) for k in range(int(found.max()) + 1)])
    return torch.where(found < 0, torch.cdist(rows, means).argmin(1), found)
