"""Nuclear norms of ``F_i F_j^T`` for many pairs of factors, in large batches: the cross terms of Bures distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Pair = tuple[int, int]

_BATCH_BYTES = 1 << 27
_QUINTIC_STEPS, _CUBIC_STEPS = 15, 6
_FAST_FLOAT64 = {(8, 0), (9, 0), (10, 0)}


class Products(NamedTuple):
    """Products of some pairs of factors, of like size and padded with zeros, which add no singular value.

    A product is ``F_i F_j^T`` where the rank of ``i`` is at most that of ``j``, else its transpose.
    """

    positions: list[int]  # of the pairs in the list that was given
    matrices: Tensor  # (B, p, q), p <= q


def nuclear_pairs(factors: Sequence[Tensor], pairs: Sequence[Pair]) -> Tensor:
    """``(P,)`` nuclear norms of ``F_i F_j^T``.

    Args:
        factors: matrices ``(r_i, d)``, float64, of one width and device.
        pairs: ``P`` pairs of their positions.
    """
    if not pairs:
        return torch.zeros(0, dtype=torch.float64)
    norms = factors[0].new_zeros(len(pairs))
    for positions, matrices in product_batches(factors, pairs):
        norms[positions] = nuclear_norm(matrices)
    return norms


def product_batches(factors: Sequence[Tensor], pairs: Sequence[Pair]) -> Iterator[Products]:
    """The products of all pairs in batches of like size that stay within the byte budget."""
    cpu = not factors or factors[0].device.type == "cpu"
    groups: dict[tuple[int, int], list[int]] = {}
    for position, (i, j) in enumerate(pairs):
        low, high = sorted((factors[i].shape[0], factors[j].shape[0]))
        groups.setdefault((_size_class(low, cpu=cpu), _size_class(high, cpu=cpu)), []).append(position)
    for (low, high), positions in sorted(groups.items()):
        each = 8 * ((low + high) * factors[0].shape[1] + 4 * low * high)
        size = max(1, _BATCH_BYTES // max(each, 1))
        for start in range(0, len(positions), size):
            chunk = positions[start : start + size]
            yield Products(chunk, _products(factors, [pairs[position] for position in chunk]))


def _products(factors: Sequence[Tensor], pairs: Sequence[Pair]) -> Tensor:
    """``(B, p, q)`` products of the factor of lower rank with the other one."""
    oriented = [(i, j) if factors[i].shape[0] <= factors[j].shape[0] else (j, i) for i, j in pairs]
    first, second = (_stack(factors, side) for side in zip(*oriented, strict=True))
    return first @ second.mT


def _stack(factors: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
    """``(B, r, d)`` factors with zero rows below; each distinct one is read once."""
    at = {k: position for position, k in enumerate(dict.fromkeys(chosen))}
    stack = pad_sequence([factors[k] for k in at], batch_first=True)
    return stack if len(at) == len(chosen) else stack[[at[k] for k in chosen]]


def _size_class(rank: int, *, cpu: bool) -> int:
    """The size that stands for ``rank``: padding is less than 8 rows on a CPU, an eighth of the rank on a GPU.

    A CPU decomposes one matrix after the other, so that a batch saves it no more than the calls.
    """
    step = 8 if cpu else max(8, 1 << max(rank.bit_length() - 4, 0))
    return -(-rank // step) * step


def nuclear_norm(matrices: Tensor) -> Tensor:
    """Sum of singular values of each matrix ``(B, p, q)``, ``p <= q``."""
    if matrices.shape[1] == 0:
        return matrices.new_zeros(matrices.shape[0])
    if matrices.device.type == "cpu":
        return torch.linalg.svdvals(matrices).sum(1)
    return polar_nuclear_norm(matrices.to(product_dtype(matrices.device))).to(matrices.dtype)


def polar_nuclear_norm(matrices: Tensor) -> Tensor:
    """``|M|_* = <U, M>`` with the polar factor ``U``, for GPUs."""
    return (polar_factor(matrices) * matrices).sum((1, 2))


def polar_factor(matrices: Tensor) -> Tensor:
    """The orthogonal factor ``U`` of ``M = U (M^T M)^1/2`` by Newton-Schulz: matrix products only.

    Odd polynomials drive every singular value towards one. The quintic triples small ones a step and leaves all in
    about ``[0.7, 1.2]``; the cubic then converges quadratically. A value below ``1e-8`` of the Frobenius norm may end
    below one: in ``<U, M>`` it is then counted too low, by no more than itself.
    """
    norms = torch.linalg.matrix_norm(matrices).clamp_min(torch.finfo(matrices.dtype).tiny)
    x = matrices / norms[:, None, None]
    for _ in range(_QUINTIC_STEPS):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    for _ in range(_CUBIC_STEPS):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


def relative_error(device: torch.device, ranks: Sequence[int]) -> float:
    """How far a nuclear norm may be off, as a fraction of the larger trace of the two covariances."""
    if device.type == "cpu":
        return 0.0
    return max(ranks) * max(torch.finfo(product_dtype(device)).eps, 1e-8)


def product_dtype(device: torch.device) -> torch.dtype:
    """Float64 where the GPU multiplies such matrices at full rate, else float32."""
    return torch.float64 if torch.cuda.get_device_capability(device) in _FAST_FLOAT64 else torch.float32
