"""Nuclear norms of ``F_i F_j^T`` for many pairs of factors, in large batches: the cross terms of Bures distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from otdd_flash.ops.tuning import fast_float64

Pair = tuple[int, int]
Result = TypeVar("Result")

_BATCH_BYTES = {"cpu": 1 << 27, "cuda": 3 << 27}  # work space of a batch
_QUINTIC = (3.4445, -4.7750, 2.0315)
_QUINTIC_STEPS, _CUBIC_STEPS = 15, 6  # 3.4445^15 = 1e8
_HALF_CUBIC_STEPS, _LAST_STEPS = 3, 2  # errors of 1e-3, which half precision leaves, end at 1e-12
_SCALE = 64.0  # of half-precision operands: entries of 1e-9 of the largest are still told from zero
_HALF_ERROR = 2e-5  # of a nuclear norm; seen: 0.2e-6 to 2e-6, and up to 1.4e-5 where all but one row is zero
_SMALL = 64  # rows of products that are not worth half precision


def nuclear_pairs(factors: Sequence[Tensor], pairs: Sequence[Pair], *, exact: bool = False) -> Tensor:
    """``(P,)`` nuclear norms of ``F_i F_j^T``.

    Args:
        factors: matrices ``(r_i, d)``, float64, of one width and device.
        pairs: ``P`` pairs of their positions.
        exact: float64 throughout, on a GPU too.
    """
    if not pairs:
        return torch.zeros(0, dtype=torch.float64)
    return in_order(list(product_batches(factors, pairs, lambda matrices: _nuclear_norm(matrices, exact=exact))))


def in_order(batches: Sequence[tuple[list[int], Tensor]]) -> Tensor:
    """The values of batches in the order of the pairs that :func:`product_batches` was given."""
    place = torch.tensor([position for positions, _ in batches for position in positions]).argsort()
    values = torch.cat([found for _, found in batches])
    return values[place.to(values.device)]


def product_batches(
    factors: Sequence[Tensor], pairs: Sequence[Pair], apply: Callable[[Tensor], Result]
) -> Iterator[tuple[list[int], Result]]:
    """What ``apply`` makes of the products of all pairs, in batches of like size that stay within the byte budget.

    A product is ``F_i F_j^T`` where the rank of ``i`` is at most that of ``j``, else its transpose; padded with zeros,
    which add no singular value. The host waits for none of them.

    Args:
        factors: matrices ``(r_i, d)`` of one width and device.
        pairs: positions of two factors each.
        apply: takes products ``(B, p, q)``, ``p <= q``.

    Yields:
        Positions of some pairs in the list that was given, and the result for them.
    """
    stack = _Stack.of(factors)
    ranks = [factor.shape[0] for factor in factors]
    oriented = [(i, j) if ranks[i] <= ranks[j] else (j, i) for i, j in pairs]
    chunks = stack.chunks([(ranks[i], ranks[j]) for i, j in oriented])
    sides = torch.tensor([oriented[position] for chunk in chunks for position in chunk]).to(stack.rows.device)
    for chunk, (first, second) in zip(chunks, (part.T for part in sides.split([len(c) for c in chunks])), strict=True):
        low, high = (max(ranks[oriented[position][side]] for position in chunk) for side in (0, 1))
        yield chunk, apply(stack.take(first, low) @ stack.take(second, high).mT)


class _Stack(NamedTuple):
    """The rows of all factors and one row of zeros after them."""

    rows: Tensor
    start: Tensor
    ranks: Tensor

    @classmethod
    def of(cls, factors: Sequence[Tensor]) -> _Stack:
        rows = torch.cat([*factors, factors[0].new_zeros(1, factors[0].shape[1])])
        ranks = torch.tensor([factor.shape[0] for factor in factors])
        return cls(rows, (ranks.cumsum(0) - ranks).to(rows.device), ranks.to(rows.device))

    def chunks(self, shapes: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Positions of products of like shape that go into one batch."""
        groups: dict[tuple[int, int], list[int]] = {}
        for position, (p, q) in enumerate(shapes):
            groups.setdefault((self._size_class(p), self._size_class(q)), []).append(position)
        out: list[list[int]] = []
        for (p, q), positions in sorted(groups.items()):
            work = max(8 * (p + q) * self.rows.shape[1] + 8 * p * q, 48 * p * q, 1)
            count = max(1, _BATCH_BYTES[self.rows.device.type] // work)
            out += [positions[start : start + count] for start in range(0, len(positions), count)]
        return out

    def take(self, chosen: Tensor, size: int) -> Tensor:
        """``(B, r, d)`` factors with zeros below; ``r`` is a multiple of eight on a GPU, which aligns its products."""
        cpu = self.rows.device.type == "cpu"
        row = torch.arange(size if cpu else -(-size // 8) * 8, device=self.rows.device)
        index = self.start[chosen][:, None] + row
        return self.rows[torch.where(row < self.ranks[chosen][:, None], index, len(self.rows) - 1)]

    def _size_class(self, rank: int) -> int:
        """The size that stands for ``rank``: up to a quarter more on a GPU, where few batches are wanted.

        A CPU decomposes one matrix after the other: a batch saves it no more than the calls, and padding costs.
        """
        if self.rows.device.type == "cpu":
            return rank
        step = max(8, 1 << max(rank.bit_length() - 3, 0))
        return -(-rank // step) * step


def _nuclear_norm(matrices: Tensor, *, exact: bool) -> Tensor:
    """Sum of singular values of each matrix ``(B, p, q)``, ``p <= q``; on a GPU ``<U, M>`` with the polar factor ``U``.

    As ``|U| <= 1`` that is a lower bound of the nuclear norm, which is the maximum over such ``U``: what is wrong with
    ``U`` enters squared.
    """
    if matrices.shape[1] == 0:
        return matrices.new_zeros(matrices.shape[0])
    if matrices.device.type == "cpu":
        return torch.linalg.svdvals(matrices).sum(1)
    rounded = matrices if exact else matrices.to(_product_dtype(matrices.device))
    fine = exact or matrices.shape[1] <= _SMALL
    polar = polar_factor(rounded) if fine else mixed_polar_factor(rounded)
    return (polar * rounded).sum((1, 2)).to(matrices.dtype)


def polar_factor(matrices: Tensor) -> Tensor:
    """The orthogonal factor ``U`` of ``M = U (M^T M)^1/2`` by Newton-Schulz: matrix products only.

    Odd polynomials drive every singular value towards one. The quintic triples small ones a step and leaves all in
    about ``[0.7, 1.2]``; the cubic then converges quadratically. A value below ``1e-8`` of the Frobenius norm may end
    below one: in ``<U, M>`` it is then counted too low, by no more than itself. Zero stays zero, which it would not in
    a lower precision: gradients are made of ``U`` itself.
    """
    a, b, c = _QUINTIC
    x = _normalised(matrices)
    for _ in range(_QUINTIC_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return _cubic_steps(x, _CUBIC_STEPS)


def mixed_polar_factor(matrices: Tensor) -> Tensor:
    """``U`` to 1e-3, with ``|U| <= 1``: operands have ten bits but in the last steps, sums are float32."""
    a, b, c = _QUINTIC
    x = (_SCALE * _normalised(matrices)).to(torch.float32)
    back = _SCALE**-2
    for _ in range(_QUINTIC_STEPS):
        half = x.half()
        gram = _half_product(half, half.mT)
        rounded = gram.half()
        inner = gram.mul_(b).add_(_half_product(rounded, rounded), alpha=c * back).half()
        x.mul_(a).add_(_half_product(inner, half), alpha=back)
    for _ in range(_HALF_CUBIC_STEPS):
        half = x.half()
        x.mul_(1.5).sub_(_half_product(_half_product(half, half.mT).half(), half), alpha=0.5 * back)
    return _cubic_steps((x / _SCALE).to(matrices.dtype), _LAST_STEPS)


def _normalised(matrices: Tensor) -> Tensor:
    """Matrices of Frobenius norm one; zeros stay."""
    norms = torch.linalg.matrix_norm(matrices).clamp_min(torch.finfo(matrices.dtype).tiny)
    return matrices / norms[:, None, None]


def _cubic_steps(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


def _half_product(left: Tensor, right: Tensor) -> Tensor:
    """Float32 product of half-precision matrices: no process-wide switch of a precision is touched."""
    if left.device.type == "cpu":
        return left.float() @ right.float()
    return torch.bmm(left, right, out_dtype=torch.float32)


def relative_error(device: torch.device, ranks: Sequence[int]) -> float:
    """How far a nuclear norm may be off, as a fraction of the larger trace of the two covariances."""
    if device.type == "cpu":
        return 0.0
    rounding = max(ranks) * max(torch.finfo(_product_dtype(device)).eps, 1e-8)
    return rounding + (_HALF_ERROR if max(ranks) > _SMALL else 0.0)


def _product_dtype(device: torch.device) -> torch.dtype:
    """Float64 where the GPU multiplies such matrices at full rate, else float32."""
    return torch.float64 if fast_float64(device) else torch.float32
