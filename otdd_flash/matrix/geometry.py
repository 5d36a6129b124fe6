"""What a matrix of distances says as geometry: how Euclidean it is, a tree, maps of the plane."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_count, check_number
from otdd_flash.errors import optional_import


class Map(NamedTuple):
    """Points ``(k, p)`` for ``k`` sets, how they were found and how well they keep the distances.

    ``stress`` is Kruskal's normalised stress-1 of the points, ``sqrt(sum (d - d')^2 / sum d^2)`` over pairs.
    """

    points: Tensor
    method: str
    stress: float


def gram_matrix(squared: Tensor) -> Tensor:
    """``-J D J / 2`` of squared distances ``D (k, k)`` with ``J = I - 1/k``: inner products where Euclidean."""
    rows = squared - squared.mean(0)
    return -0.5 * (rows - rows.mean(1, keepdim=True))


def negative_share(squared: Tensor) -> float:
    """Share of negative eigenvalues of the double-centred matrix, ``sum |l|, l < 0, over sum |l|``.

    Zero where the roots are distances of points in a Euclidean space.
    """
    values = torch.linalg.eigvalsh(gram_matrix(squared))
    total = float(values.abs().sum())
    return float(values.clamp_max(0).abs().sum()) / total if total > 0 else 0.0


LINKAGES = ("average", "single", "complete", "weighted", "centroid", "median", "ward")  # scipy's


def linkage(distances: Tensor, method: str = "average") -> tuple[Any, list[int]]:
    """The linkage ``(k - 1, 4)`` of the sets as scipy gives it, and the order of the tree's leaves.

    Raises:
        ValueError: fewer than two sets.
    """
    if len(distances) < 2:
        raise ValueError(f"a tree needs at least two sets, got {len(distances)}")
    check_choice("method", method, LINKAGES)
    hierarchy = optional_import("scipy.cluster.hierarchy", needed_for="a dendrogram")
    i, j = torch.triu_indices(len(distances), len(distances), offset=1)
    tree = hierarchy.linkage(distances[i, j].numpy(), method=method, optimal_ordering=True)
    return tree, [int(leaf) for leaf in hierarchy.leaves_list(tree)]


def classical_map(squared: Tensor, dimensions: int) -> Tensor:
    """``(k, p)`` principal coordinates: the leading eigenvectors of the double-centred matrix (Torgerson 1952)."""
    values, vectors = torch.linalg.eigh(gram_matrix(squared))
    order = values.argsort(descending=True)[:dimensions]
    points = vectors[:, order] * values[order].clamp_min(0).sqrt()
    return torch.nn.functional.pad(points, (0, dimensions - points.shape[1]))


def mds_map(distances: Tensor, *, seed: int, dimensions: int = 2, starts: int = 8) -> Map:
    """Metric multidimensional scaling by SMACOF: the best of a start at principal coordinates and random ones."""
    seed, dimensions = check_count("seed", seed, least=0, most=2**32 - 1), check_count("dimensions", dimensions)
    if dimensions > len(distances):
        raise ValueError(f"dimensions must be at most the {len(distances)} sets, got {dimensions}")
    manifold = optional_import("sklearn.manifold", needed_for="an MDS map")
    table = distances.numpy()
    first = classical_map(distances.square(), dimensions).numpy()
    common: dict[str, Any] = {"n_components": dimensions, "normalized_stress": False, "max_iter": 1000}
    found = [manifold.smacof(table, init=first, n_init=1, **common)]
    found.append(manifold.smacof(table, n_init=starts, random_state=seed, **common))
    points = torch.from_numpy(min(found, key=lambda pair: pair[1])[0])
    return Map(points, "mds", stress(distances, points))


def tsne_map(distances: Tensor, *, seed: int, perplexity: float | None = None, dimensions: int = 2) -> Map:
    """t-SNE of the given distances; neighbourhoods are kept, distances are not.

    Raises:
        ValueError: fewer than four sets.
    """
    k = len(distances)
    if k < 4:
        raise ValueError(f"t-SNE needs at least four sets, got {k}: use mds")
    seed = check_count("seed", seed, least=0, most=2**32 - 1)
    perplexity = check_number("perplexity", perplexity, high=k, optional=True)
    manifold = optional_import("sklearn.manifold", needed_for="a t-SNE map")
    chosen = min(30.0, (k - 1) / 3) if perplexity is None else perplexity
    fit = manifold.TSNE(dimensions, metric="precomputed", init="random", perplexity=chosen, random_state=seed)
    points = torch.from_numpy(fit.fit_transform(distances.numpy()).astype("float64"))
    return Map(points, "tsne", stress(distances, points))


def stress(distances: Tensor, points: Tensor) -> float:
    """Kruskal's stress-1 of ``points`` for ``distances``."""
    found = torch.cdist(points, points)
    total = float(distances.square().sum())
    return (float((found - distances).square().sum()) / total) ** 0.5 if total > 0 else 0.0
