"""The solver's own arithmetic on a GPU: a step of a batch of balanced problems in a handful of launches.

The loop works on vectors of ``n + m`` float64 numbers a problem. Written with tensor operations a step is a hundred
launches, and below some 30,000 points the host that makes them takes longer than the plan itself. The kernels here do
what :class:`otdd_flash.sinkhorn.anderson.Anderson` does (see there for the method):

    remember    R = log(w / s), newest differences into their slot, parts of the Gram row <dR_slot, dR_k> and <R, dR_k>
    combine     alpha = (Gram + ridge)^-1 <R, dR>, safeguards; one program a problem
    accelerate  theta R - sum_k alpha_k (dz_k + theta dR_k), parts of its largest entry
    move        (f, g) += eps times that, cut where it is wild, or the plain step
    measure     marginals of the live problems kept, parts of their L1 error

``w`` are the weights and ``s`` the sums of both sides, rows first. Sums over a problem are partial sums of fixed
blocks, added in a fixed order. A symmetric problem has a first side only. Scalars travel as float32: epsilon comes in
two parts.
"""

import torch
import triton
import triton.language as tl

from otdd_flash.kernels.potentials import two_parts
from otdd_flash.kernels.primitives import gauss_jordan

BLOCK = 1024
PARTS = 32  # values a block leaves: Gram row, right-hand side, largest residual; padded
_VECTORS = ["n", "m", "blocks"]


@triton.jit
def _both(rows, columns, problem, t, n, m):
    """Entries ``t`` of ``[rows, columns]`` of one problem; zero past the end."""
    left = tl.load(rows + problem * n + t, mask=t < n, other=0.0)
    right = tl.load(columns + problem * m + (t - n), mask=(t >= n) & (t < n + m), other=0.0)
    return tl.where(t < n, left, right)


@triton.jit
def _residual(weights, sums, second):
    """``log(w / s)``; zero where a weight is zero or a sum is lost, and on the second side of a symmetric problem."""
    step = tl.log(weights / sums)
    return tl.where((tl.abs(step) < float("inf")) & ~second, step, 0.0)


@triton.jit
def _store_both(rows, columns, problem, t, n, m, values, wanted):
    tl.store(rows + problem * n + t, values, mask=wanted & (t < n))
    tl.store(columns + problem * m + (t - n), values, mask=wanted & (t >= n) & (t < n + m))


@triton.jit(do_not_specialize=["n", "m"])
def _anneal_kernel(
    f, g, a, b, r, c, symmetric, live, n, m, eps_hi, eps_lo, rows_by, columns_by, symmetric_by, BLOCK: tl.constexpr
):  # fmt: skip
    problem = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alone = tl.load(symmetric + problem) != 0
    step = _residual(_both(a, b, problem, t, n, m), _both(r, c, problem, t, n, m), alone & (t >= n))
    change = step * tl.where(alone, symmetric_by, tl.where(t < n, rows_by, columns_by))
    moved = _both(f, g, problem, t, n, m) + (change * eps_hi + change * eps_lo)
    _store_both(f, g, problem, t, n, m, moved, tl.load(live + problem) != 0)


@triton.jit(do_not_specialize=_VECTORS)
def _remember_kernel(
    f, g, a, b, r, c, symmetric, live, last_z, last_residual, moves, changes, slots, parts, n, m, blocks, slope_hi,
    slope_lo, BLOCK: tl.constexpr, MEMORY: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(1).to(tl.int64)
    if tl.load(live + problem) == 0:
        return
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = n + m
    inside = t < size
    alone = tl.load(symmetric + problem) != 0
    weights = _both(a, b, problem, t, n, m)
    residual = _residual(weights, _both(r, c, problem, t, n, m), alone & (t >= n))
    residual = tl.where(inside, residual, 0.0)
    z = _both(f, g, problem, t, n, m)
    z = z * slope_hi + z * slope_lo
    at = problem * size + t
    change = residual - tl.load(last_residual + at, mask=inside, other=0.0)
    move = z - tl.load(last_z + at, mask=inside, other=0.0)
    tl.store(last_residual + at, residual, mask=inside)
    tl.store(last_z + at, z, mask=inside)
    slot = tl.load(slots + problem)
    history = (problem * MEMORY + slot) * size + t
    tl.store(moves + history, move, mask=inside)
    tl.store(changes + history, change, mask=inside)
    weights = tl.where(alone & (t >= n), 0.0, weights)
    part = parts + (problem * blocks + tl.program_id(0)) * PARTS
    for k in tl.static_range(MEMORY):
        older = tl.load(changes + (problem * MEMORY + k) * size + t, mask=inside, other=0.0)
        older = weights * tl.where(k == slot, change, older)
        tl.store(part + k, tl.sum(older * change, 0))
        tl.store(part + MEMORY + k, tl.sum(older * residual, 0))
    tl.store(part + 2 * MEMORY, tl.max(tl.abs(residual), 0))


@triton.jit(do_not_specialize=["blocks"])
def _combine_kernel(
    parts, gram, valid, slots, error, best, plain, turn, alpha, facts, live, blocks, growth, plain_steps,
    regularisation, MEMORY: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    if tl.load(live + problem) == 0:
        return
    k = tl.arange(0, MEMORY)
    row, right = tl.zeros([MEMORY], tl.float64), tl.zeros([MEMORY], tl.float64)
    largest = tl.zeros([CHUNK], tl.float64)
    for start in range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        part = parts + (problem * blocks + block) * PARTS
        there = block < blocks
        row += tl.sum(tl.load(part[:, None] + k[None, :], mask=there[:, None], other=0.0), 0)
        right += tl.sum(tl.load(part[:, None] + MEMORY + k[None, :], mask=there[:, None], other=0.0), 0)
        largest = tl.maximum(largest, tl.load(part + 2 * MEMORY, mask=there, other=0.0))
    slot = tl.load(slots + problem)
    now, before, left = tl.load(error + problem), tl.load(best + problem), tl.load(plain + problem)
    grown = ~(now <= before * growth)
    left = tl.where(grown & (left <= 0), plain_steps, left)
    forget = left > 0
    tl.store(best + problem, tl.where(grown, now, tl.minimum(before, now)))
    tl.store(plain + problem, left - 1)
    known = tl.where(forget, 0, tl.where(k == slot, 1, tl.load(valid + problem * MEMORY + k)))
    tl.store(valid + problem * MEMORY + k, known)
    row = tl.where(known != 0, row, 0.0)
    right = tl.where(known != 0, right, 0.0)
    i, j = k[:, None], k[None, :]
    cell = gram + (problem * MEMORY + i) * MEMORY + j
    matrix = tl.load(cell)  # [MEMORY, MEMORY]
    matrix = tl.where(i == slot, row[None, :], tl.where(j == slot, row[:, None], matrix))
    matrix = tl.where(forget, 0.0, matrix)
    tl.store(cell, matrix)
    diagonal = tl.sum(tl.where(i == j, matrix, 0.0), 1)
    ridge = tl.max(diagonal, 0) * regularisation + tl.where(diagonal == 0, 1.0, 0.0)
    matrix += tl.where(i == j, ridge[:, None], 0.0)
    solution = gauss_jordan(matrix, right, MEMORY)
    tl.store(alpha + problem * MEMORY + k, tl.where(known != 0, solution, 0.0))
    tl.store(slots + problem, (slot + 1) % MEMORY)
    side = tl.load(turn + problem)
    tl.store(turn + problem, 1 - side)
    fact = facts + problem * 4  # largest residual; whether the history may be used; whose turn a plain step is
    tl.store(fact, tl.max(largest, 0))
    tl.store(fact + 1, tl.where(forget, 0.0, 1.0))
    tl.store(fact + 2, side)


@triton.jit(do_not_specialize=_VECTORS)
def _accelerate_kernel(
    moves, changes, alpha, last_residual, symmetric, live, out, longest, n, m, blocks, symmetric_by,
    BLOCK: tl.constexpr, MEMORY: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(1).to(tl.int64)
    if tl.load(live + problem) == 0:
        return
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = n + m
    inside = t < size
    theta = tl.where(tl.load(symmetric + problem) != 0, symmetric_by, 1.0)
    step = tl.load(last_residual + problem * size + t, mask=inside, other=0.0) * theta
    for k in tl.static_range(MEMORY):
        factor = tl.load(alpha + problem * MEMORY + k)
        at = (problem * MEMORY + k) * size + t
        move = tl.load(moves + at, mask=inside, other=0.0)
        change = tl.load(changes + at, mask=inside, other=0.0)
        step -= tl.where(factor != 0, factor * (move + change * theta), 0.0)  # what was forgotten may be infinite
    tl.store(out + problem * size + t, step, mask=inside)
    lost = tl.sum((step != step).to(tl.int32), 0) > 0
    peak = tl.max(tl.where(step == step, tl.abs(step), 0.0), 0)
    tl.store(longest + problem * blocks + tl.program_id(0), tl.where(lost, float("inf"), peak))


@triton.jit(do_not_specialize=_VECTORS)
def _move_kernel(
    f, g, step, last_residual, longest, facts, symmetric, live, n, m, blocks, eps_hi, eps_lo, symmetric_by, free,
    longer, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(1).to(tl.int64)
    if tl.load(live + problem) == 0:
        return
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = n + m
    inside = t < size
    peaks = tl.zeros([CHUNK], tl.float64)
    for start in range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        peaks = tl.maximum(peaks, tl.load(longest + problem * blocks + block, mask=block < blocks, other=0.0))
    peak = tl.max(peaks, 0)
    fact = facts + problem * 4
    limit = tl.load(fact) * longer + free
    usable = (tl.load(fact + 1) != 0) & (peak < float("inf"))
    side = tl.load(fact + 2)
    shorter = tl.where(peak > limit, limit / peak, 1.0)
    alone = tl.load(symmetric + problem) != 0
    turn = tl.where(t < n, side, 1.0 - side)
    plain = tl.load(last_residual + problem * size + t, mask=inside, other=0.0)
    plain = plain * tl.where(alone, symmetric_by, turn)
    chosen = tl.where(usable, shorter * tl.load(step + problem * size + t, mask=inside, other=0.0), plain)
    moved = _both(f, g, problem, t, n, m) + (chosen * eps_hi + chosen * eps_lo)
    _store_both(f, g, problem, t, n, m, moved, inside)


@triton.jit(do_not_specialize=_VECTORS)
def _measure_kernel(
    a, b, new_r, new_c, r, c, live, least, parts, n, m, blocks, BLOCK: tl.constexpr
):  # fmt: skip
    problem = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = t < n + m
    fresh = tl.load(live + problem) != 0
    sums = tl.where(fresh, _both(new_r, new_c, problem, t, n, m), _both(r, c, problem, t, n, m))
    _store_both(r, c, problem, t, n, m, sums, inside & fresh)
    weights = _both(a, b, problem, t, n, m)
    lost = inside & ~(sums > 0) & (weights > tl.load(least + problem))
    off = tl.where(inside, tl.abs(sums - weights), 0.0)
    tl.store(parts + problem * blocks + tl.program_id(0), tl.sum(tl.where(lost, float("inf"), off), 0))


class Vectors:
    """Grid and buffers of a batch: ``B`` problems of ``n + m`` entries.

    Args:
        a: ``(B, n)`` float64 weights of the rows.
        b: ``(B, m)`` float64 weights of the columns.
        symmetric: ``(B,)`` int32, not zero for a problem with a first side only.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, symmetric: torch.Tensor) -> None:
        self.a, self.b, self.symmetric = a, b, symmetric
        self.batch, self.n, self.m = a.shape[0], a.shape[1], b.shape[1]
        self.blocks = triton.cdiv(self.n + self.m, BLOCK)
        self.grid = self.blocks, self.batch
        self.parts = a.new_empty(self.batch, self.blocks)

    def anneal(self, potentials, sums, live, *, epsilon, rows_by, columns_by, symmetric_by) -> None:
        """``(f, g) += eps`` times the residual times a factor of the side, in place."""
        _anneal_kernel[self.grid](
            *potentials, self.a, self.b, *sums, self.symmetric, live, self.n, self.m, *two_parts(epsilon), rows_by,
            columns_by, symmetric_by, BLOCK=BLOCK,
        )  # fmt: skip

    def measure(self, new, kept, live, least) -> torch.Tensor:
        """Keep the new sums of the live problems in place; ``(B,)`` L1 errors, infinite where a sum is lost."""
        _measure_kernel[self.grid](
            self.a, self.b, *new, *kept, live, least, self.parts, self.n, self.m, self.blocks, BLOCK=BLOCK
        )  # fmt: skip
        return self.parts.sum(1)


class History:
    """State and kernels of accelerated steps of a batch.

    Args:
        vectors: of the batch.
        memory: differences kept, a power of two.
        turn: 1.0 where the first plain step is the rows', 0.0 for the columns.
    """

    def __init__(self, vectors: Vectors, memory: int, turn: float) -> None:
        like, batch, size = vectors.a, vectors.batch, vectors.n + vectors.m
        self.vectors, self.memory = vectors, memory
        self.moves, self.changes = (like.new_zeros(batch, memory, size) for _ in range(2))
        self.last_z, self.last_residual = like.new_zeros(batch, size), like.new_zeros(batch, size)
        self.step = like.new_empty(batch, size)
        self.gram, self.alpha = like.new_zeros(batch, memory, memory), like.new_empty(batch, memory)
        self.parts = like.new_empty(batch, vectors.blocks, PARTS)
        self.longest, self.facts = like.new_empty(batch, vectors.blocks), like.new_empty(batch, 4)
        self.best, self.plain = like.new_full((batch,), torch.inf), like.new_ones(batch)
        self.turn = like.new_full((batch,), turn)
        self.slots, self.valid = (
            torch.zeros(shape, dtype=torch.int32, device=like.device) for shape in ((batch,), (batch, memory))
        )

    def forget(self, problems) -> None:
        """Start the histories of some problems ``(B,)`` bool anew."""
        self.best.masked_fill_(problems, torch.inf)
        self.plain.masked_fill_(problems, 1.0)

    def advance(self, potentials, sums, error, live, *, epsilon, symmetric_by, growth, plain_steps, regularisation,
                free, longer) -> None:  # fmt: skip
        """One step of the live problems, in place; arguments are the constants of the method."""
        v = self.vectors
        sizes = v.n, v.m, v.blocks
        _remember_kernel[v.grid](
            *potentials, v.a, v.b, *sums, v.symmetric, live, self.last_z, self.last_residual, self.moves, self.changes,
            self.slots, self.parts, *sizes, *two_parts(1.0 / epsilon), BLOCK=BLOCK, MEMORY=self.memory, PARTS=PARTS,
        )  # fmt: skip
        _combine_kernel[(v.batch,)](
            self.parts, self.gram, self.valid, self.slots, error, self.best, self.plain, self.turn, self.alpha,
            self.facts, live, v.blocks, growth, plain_steps, regularisation, MEMORY=self.memory, PARTS=PARTS, CHUNK=32,
        )  # fmt: skip
        _accelerate_kernel[v.grid](
            self.moves, self.changes, self.alpha, self.last_residual, v.symmetric, live, self.step, self.longest,
            *sizes,            symmetric_by, BLOCK=BLOCK, MEMORY=self.memory,
        )  # fmt: skip
        _move_kernel[v.grid](
            *potentials, self.step, self.last_residual, self.longest, self.facts, v.symmetric, live, *sizes,
            *two_parts(epsilon), symmetric_by, free, longer, BLOCK=BLOCK, CHUNK=128,
        )  # fmt: skip
