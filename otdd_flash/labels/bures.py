"""Bures distances between the covariances of classes as a function of their samples.

With ``Z`` the centred rows of a class times the roots of their weights, ``S = Z^T Z``, and ``Z_i Z_j^T = U D V^T``,

    B_ij = |Z_i|^2 + |Z_j|^2 - 2 tr D        dB_ij/dZ_i = 2 (Z_i - U V^T Z_j)

All of it lives in the span of the samples: a class of few samples in many features has small matrices. One of more
samples than features enters by a factor ``Z = Q F`` of as many rows as features, with ``Q^T Q = I``: the derivative by
``Z_i`` is ``2 Z_i F_i^+ (F_i - U V^T F_j)`` for ``F_i F_j^T = U D V^T``.

That is the gradient where the distance has one, classes of few samples included, whose span turns with them. Where it
has none, in directions that a class of many samples lacks, it is the subgradient without a part there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels.nuclear import Pair, in_order, nuclear_pairs, polar_factor, product_batches
from otdd_flash.labels.samples import ClassSample
from otdd_flash.labels.triangles import solve_triangle

_Sides = tuple[Sequence[ClassSample], Sequence[ClassSample]]
_LOST = 1e-7  # of the largest deviation of a class of many samples: directions below it are absent
_NOISE = 1e-12  # of the largest singular value: what rounding leaves of a zero


@dataclass(frozen=True, eq=False)
class FixedClasses:
    """Classes that do not move: factors ``(r_i, d)`` of their covariances, ``(c', c')`` distances between them."""

    factors: tuple[Tensor, ...]
    table: Tensor

    @classmethod
    def of(cls, samples: Sequence[ClassSample]) -> FixedClasses:
        """The factors and distances of some classes."""
        factors = tuple(sample.factor for sample in samples)
        pairs = _pairs(factors, [True] * len(factors))
        return cls(factors, _distances(factors, pairs, nuclear_pairs(factors, pairs)))


class BuresTable(torch.autograd.Function):
    """``(c + c', c + c')`` squared Bures distances between the classes of two sets; differentiable once.

    Takes the features ``x (n, d)``, those of the other set or ``None`` where it does not move, the classes of both (of
    the first alone where the second does not move), and the classes that do not move.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, samples: _Sides, fixed: FixedClasses | None) -> Tensor:
        """The table."""
        moving = [*samples[0], *samples[1]]
        factors = [*(sample.factor for sample in moving), *(fixed.factors if fixed else ())]
        pairs = _pairs(factors, [p < len(moving) for p in range(len(factors))])
        turns = _Turns.of(factors, pairs) if any(ctx.needs_input_grad[:2]) else None
        table = _distances(factors, pairs, nuclear_pairs(factors, pairs, exact=True) if turns is None else turns.norms)
        if fixed is not None:
            table[len(moving) :, len(moving) :] = fixed.table
        ctx.samples, ctx.turns = samples, turns
        ctx.save_for_backward(x, y)
        return table

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by ``x`` and ``y``."""
        needed = tuple(ctx.needs_input_grad[:2])
        return *_Gradient.apply(upstream, *ctx.saved_tensors, ctx.samples, ctx.turns, needed), None, None


class _Gradient(torch.autograd.Function):
    """The gradients; a node of the graph only to refuse what would otherwise be silently lost."""

    @staticmethod
    def forward(
        ctx: Any, upstream: Tensor, x: Tensor, y: Tensor | None, samples: _Sides, turns: _Turns,
        needed: tuple[bool, bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        wanted = [need for side, need in zip(samples, needed, strict=True) for _ in side]
        wanted += [False] * (len(turns.factors) - len(wanted))
        pulls = iter(turns.pulls((upstream + upstream.T).fill_diagonal_(0.0), wanted))
        sides = zip((x, y), needed, strict=True)
        out = [torch.empty_like(points) if need and points is not None else None for points, need in sides]
        for gradient, side in zip(out, samples, strict=True):
            for sample in side:
                pull = next(pulls)
                if gradient is not None:
                    _write_gradient(gradient, sample, pull)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        raise NotImplementedError("attached moments of label_distance='gaussian' are differentiable once")


def _distances(factors: Sequence[Tensor], pairs: Sequence[Pair], norms: Tensor) -> Tensor:
    """Squared Bures distances of the pairs, from the nuclear norms of their products; zero elsewhere."""
    traces = torch.stack([factor.square().sum() for factor in factors])
    table = traces.new_zeros(len(factors), len(factors))
    if pairs:
        rows, columns = torch.tensor(pairs, device=table.device).T
        table[rows, columns] = table[columns, rows] = traces[rows] + traces[columns] - 2 * norms
    return table


def _pairs(factors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Pair]:
    """All pairs with a wanted member once, the factor of lower rank first."""
    order = sorted(range(len(factors)), key=lambda i: factors[i].shape[0])
    return [(i, j) for i, j in itertools.combinations(order, 2) if wanted[i] or wanted[j]]


@dataclass(frozen=True, eq=False)
class _Turns:
    """What value and gradient of a table share: of each pair ``U V^T`` of ``F_i F_j^T = U D V^T``, and ``tr D``.

    Args:
        factors: of all classes.
        pairs: positions of two factors each, that of lower rank first.
        norms: ``(P,)`` nuclear norms of the products.
        turns: of each pair ``(r_i, r_j)``, without what belongs to singular values of zero; float32 on a GPU, where
            their own error is larger than its rounding.
    """

    factors: Sequence[Tensor]
    pairs: Sequence[Pair]
    norms: Tensor
    turns: Sequence[Tensor]

    @classmethod
    def of(cls, factors: Sequence[Tensor], pairs: Sequence[Pair]) -> _Turns:
        """The decompositions, in batches."""
        norms, turns = [], [factors[0][:0]] * len(pairs)
        for positions, (values, padded) in product_batches(factors, pairs, _decomposed):
            norms.append((positions, values))
            for position, turn in zip(positions, padded, strict=True):
                i, j = pairs[position]
                turns[position] = turn[: factors[i].shape[0], : factors[j].shape[0]]
        return cls(factors, pairs, in_order(norms) if pairs else factors[0].new_zeros(0), turns)

    def pulls(self, weight: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
        """Half the derivative of ``sum_i<j weight_ij B_ij`` by each wanted factor; ``weight`` is symmetric."""
        factors, weights = self.factors, weight.tolist()
        pulls = [sum(row) * factor for row, factor in zip(weights, factors, strict=True)]
        for (i, j), kept in zip(self.pairs, self.turns, strict=True):
            turn = kept.to(factors[i].dtype)
            if wanted[i]:
                pulls[i].addmm_(turn, factors[j], alpha=-weights[i][j])
            if wanted[j]:
                pulls[j].addmm_(turn.T, factors[i], alpha=-weights[i][j])
        return pulls


def _decomposed(products: Tensor) -> tuple[Tensor, Tensor]:
    """``(B,)`` values ``tr D``, ``(B, p, q)`` turns ``U V^T`` of ``U D V^T`` without what belongs to zeros in ``D``."""
    if products.numel() == 0:
        return products.new_zeros(len(products)), products
    if products.device.type != "cpu":
        return _by_products(products)
    U, D, Vh = torch.linalg.svd(products, full_matrices=False)
    return D.sum(1), (U * (_NOISE * D[:, :1] < D)[:, None]) @ Vh


def _by_products(products: Tensor) -> tuple[Tensor, Tensor]:
    """The same for GPUs; zero stays zero."""
    polar = polar_factor(products)
    return (polar * products).sum((1, 2)), polar.float()


def _write_gradient(out: Tensor, sample: ClassSample, pull: Tensor) -> None:
    """The derivative by the samples of a class, from that by its factor: ``dZ = Q dF``."""
    few = len(pull) == sample.n  # the factor is the centred rows themselves
    matrix = None if few else _solved(sample.factor, pull)
    start = 0
    for index, weights in sample.pieces():
        if matrix is None:
            rows = weights.sqrt()[:, None] * pull[start : start + len(index)]
        else:
            rows = weights[:, None] * ((sample.x[index].to(torch.float64) - sample.mean) @ matrix)
        out[index] = (2 * rows).to(out.dtype)
        start += len(index)


def _solved(factor: Tensor, pull: Tensor) -> Tensor:
    """``F^+ B``; on a CPU without the directions that are lost, which a triangle on a GPU does not have."""
    if factor.device.type == "cpu":
        return torch.linalg.pinv(factor, rtol=_LOST) @ pull
    return solve_triangle(factor, pull)
