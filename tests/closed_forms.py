"""Entropic OT problems whose values are known: inputs, expected value, tolerance.

``value`` is ``OT_eps(a, b) = min <P, C> + eps KL(P | a b^T)`` for ``C = |x - y|^2`` plus the label table,
``divergence`` the debiased one; ``None`` where no closed form is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """One problem with its answer; ``labels`` is ``(table, labels of x, labels of y)``."""

    name: str
    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    epsilon: float
    value: float | None = None
    divergence: float | None = None
    tolerance: float = 1e-10
    labels: tuple[Tensor, Tensor, Tensor] | None = None

    def __repr__(self) -> str:
        return self.name


def uniform(n: int) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def points(rows: list) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def random_weights(n: int, generator: torch.Generator) -> Tensor:
    weights = 0.1 + torch.rand(n, generator=generator, dtype=torch.float64)
    return weights / weights.sum()


def diracs() -> ClosedForm:
    """C17: two Diracs at distance 3."""
    x, y = points([[0.0, 0.0]]), points([[3.0, 0.0]])
    return ClosedForm("diracs", x, y, uniform(1), uniform(1), 0.5, 9.0, 9.0)


def labelled_diracs() -> ClosedForm:
    """Two Diracs of different classes: the table entry adds up."""
    table, labels = points([[0.0, 2.5], [2.5, 0.0]]), (torch.tensor([0]), torch.tensor([1]))
    x, y = points([[1.0]]), points([[3.0]])
    return ClosedForm("labelled_diracs", x, y, uniform(1), uniform(1), 0.1, 6.5, 6.5, labels=(table, *labels))


def dirac_to_cloud() -> ClosedForm:
    """One point against a weighted cloud: the only plan is the product."""
    rng = torch.Generator().manual_seed(1)
    y = torch.randn(7, 3, generator=rng, dtype=torch.float64)
    x, b = torch.ones(1, 3, dtype=torch.float64), random_weights(7, rng)
    value = float(b @ (y - x).square().sum(1))
    return ClosedForm("dirac_to_cloud", x, y, uniform(1), b, 0.3, value)


def two_points() -> ClosedForm:
    """The same two points at squared distance ``c`` on both sides: ``OT = -eps log((1 + exp(-c/eps))/2)``."""
    x, c, eps = points([[0.0], [1.5]]), 2.25, 0.8
    value = -eps * math.log((1 + math.exp(-c / eps)) / 2)
    return ClosedForm("two_points", x, x.clone(), uniform(2), uniform(2), eps, value, 0.0)


def two_classes() -> ClosedForm:
    """All features equal, two classes at ``c``: the two-point problem carried by the label table alone."""
    x, c, eps = torch.ones(2, 4, dtype=torch.float64), 3.0, 0.7
    labels = (points([[0.0, c], [c, 0.0]]), torch.tensor([0, 1]), torch.tensor([1, 0]))
    value = -eps * math.log((1 + math.exp(-c / eps)) / 2)
    return ClosedForm("two_classes", x, x.clone(), uniform(2), uniform(2), eps, value, 0.0, labels=labels)


def permutation() -> ClosedForm:
    """Far-apart points, shuffled and moved a little: the plan is the permutation, its KL ``log n``."""
    n, eps = 6, 1e-2
    x = 10 * torch.eye(n, dtype=torch.float64)
    y = (x + 0.1)[torch.randperm(n, generator=torch.Generator().manual_seed(2))]
    moved = n * 0.01
    return ClosedForm("permutation", x, y, uniform(n), uniform(n), eps, moved + eps * math.log(n), moved)


def translation() -> ClosedForm:
    """A cloud against itself moved by ``t``: the divergence is ``|t|^2`` at every epsilon."""
    rng = torch.Generator().manual_seed(3)
    x, a = torch.randn(20, 5, generator=rng, dtype=torch.float64), random_weights(20, rng)
    t = torch.randn(5, generator=rng, dtype=torch.float64)
    return ClosedForm("translation", x, x + t, a, a, 0.5, divergence=float(t @ t))


def product() -> ClosedForm:
    """A product of two-point problems in two coordinates: values add."""
    c, e, eps = 1.0, 4.0, 0.9
    x = points([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    value = sum(-eps * math.log((1 + math.exp(-s / eps)) / 2) for s in (c, e))
    return ClosedForm("product", x, x.flip(0), uniform(4), uniform(4), eps, value, 0.0)


def gaussian_value(gap: float, s: float, t: float, eps: float) -> float:
    """``OT_eps(N(0, s^2), N(gap, t^2))``: minimise over the correlation (Janati et al. 2020, in one dimension)."""
    rho = (math.sqrt(eps**2 + 16 * (s * t) ** 2) - eps) / (4 * s * t)
    return gap**2 + s**2 + t**2 - 2 * rho * s * t - eps / 2 * math.log1p(-(rho**2))


def gaussians(gap: float = 0.7, s: float = 1.0, t: float = 0.6, eps: float = 0.5, n: int = 97) -> ClosedForm:
    """One-dimensional Gaussians on regular grids, where sums converge to integrals faster than any power of n."""
    u = torch.linspace(-7, 7, n, dtype=torch.float64)
    w = torch.exp(-u.square() / 2)
    value = gaussian_value(gap, s, t, eps)
    divergence = value - gaussian_value(0, s, s, eps) / 2 - gaussian_value(0, t, t, eps) / 2
    name = f"gaussians_{s}_{t}_{eps}"
    return ClosedForm(
        name, (s * u)[:, None], (gap + t * u)[:, None], w / w.sum(), w / w.sum(), eps, value, divergence, 1e-8
    )


CASES = [
    diracs(),
    labelled_diracs(),
    dirac_to_cloud(),
    two_points(),
    two_classes(),
    permutation(),
    translation(),
    product(),
    gaussians(),
    gaussians(gap=0.0, s=0.5, t=0.5, eps=2.0),
]
