"""Blocked torch backend: any device, float32 or float64, streamed or with stored costs.

Scores are formed block by block, small enough to stay in the processor's cache; one block gives row and column sums.
A symmetric problem visits the blocks right of the diagonal only. In cached mode the costs are kept, and so is the plan
of the last full evaluation: as long as the potentials move by a few epsilon, new marginals are two matrix-vector
products with it (``r = e^{df} * (P0 e^{dg})``), no exponential per score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.memory import free_memory
from otdd_flash.ops.base import Memory, OperatorInfo, PlanProduct, Precision, Problem, marginal_resolution
from otdd_flash.ops.linear import exp_
from otdd_flash.torch_mode import plain_torch_methods

_DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
SCALES = {"fp32": (1e-30, 1e30), "fp64": (1e-250, 1e250)}  # smallest and largest "largest cost" of a problem
_BLOCK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
_FEW_ELEMENTS = 1 << 15  # scores of a batch, padding included, up to which its problems form one group
_ABSORPTION_LIMIT = 8.0  # how far, in epsilons, potentials may move before the stored plan is formed anew
# Entries of a plan below are dropped before it is multiplied: subnormal numbers make matrix products ten times slower.
_SMALLEST_ENTRY = {torch.float32: 1e-30, torch.float64: 1e-290}
FLOAT32_RANGE = 2048.0  # cost / epsilon above which float32 exponents lose the fourth digit


@dataclass
class _Block:
    """Scores ``[problems, rows, columns]`` of a group; a symmetric block starts at its own diagonal."""

    problems: slice
    rows: slice
    columns: slice
    cost: Tensor | None = None
    plan: Tensor | None = None


@dataclass
class _Group:
    """Problems of similar size, padded to one shape and treated as a batch."""

    index: Tensor  # (G,) positions in the operator's batch, on the cost's device
    part: Tensor | slice  # the same, a slice where they follow each other
    host_index: Tensor  # the same on the host
    symmetric: bool
    alpha: Tensor  # (G, n)
    beta: Tensor  # (G, m)
    q: Tensor  # (G, n, k)
    k: Tensor  # (G, m, k)
    log_a: Tensor  # (G, n) float64, -inf at padding
    log_b: Tensor  # (G, m)
    selves: Tensor | None  # (G, 1) which are self problems, in a group of both kinds
    blocks: list[_Block] = field(default_factory=list)
    absorbed: tuple[Tensor, Tensor, float] | None = None  # f, g, epsilon of the stored plan

    @property
    def n(self) -> int:
        """Padded rows."""
        return self.alpha.shape[1]

    @property
    def m(self) -> int:
        """Padded columns."""
        return self.beta.shape[1]

    @property
    def elements(self) -> int:
        """Scores that the blocks cover."""
        return sum(_size(block) for block in self.blocks)


@plain_torch_methods
class BlockedOperator:
    """:class:`~otdd_flash.ops.base.PlanOperator` in blocked torch."""

    def __init__(
        self, cost: DotProductCost, problems: Sequence[Problem], dtype: torch.dtype, *, cached: bool, keep_plan: bool
    ) -> None:
        self.cost = cost
        self.problems = tuple(problems)
        self.dtype = dtype
        self._cached, self._keep_plan = cached, keep_plan
        rows = max(cost.clouds[i].n for i, _ in problems)
        columns = max(cost.clouds[j].n for _, j in problems)
        self.a = self._stack_weights([i for i, _ in problems], rows)
        self.b = self._stack_weights([j for _, j in problems], columns)
        self._groups = [self._make_group(index) for index in _similar(cost, self.problems)]
        stored = sum(group.elements for group in self._groups) * dtype.itemsize * (cached + (cached and keep_plan))
        vectors = sum(t.numel() * t.element_size() for group in self._groups for t in (group.q, group.k))
        precision = next(name for name, value in _DTYPES.items() if value == dtype)
        self.info = OperatorInfo("torch", precision, "cached" if cached else "streamed", stored + vectors)

    @classmethod
    def build(
        cls,
        cost: DotProductCost,
        problems: Sequence[Problem],
        *,
        epsilon: float,
        precision: Precision = "auto",
        memory: Memory = "auto",
        memory_budget: int | None = None,
        tol: float | None = None,
    ) -> BlockedOperator:
        """Choose precision and memory mode; see :func:`otdd_flash.ops.make_operator`.

        Raises:
            ValueError: a precision that this backend does not have.
            MemoryError: ``memory="cached"`` beyond the budget.
        """
        largest = max(cost.bound(i, j) for i, j in problems)
        if precision == "auto":
            precision = _auto_precision(cost, problems, largest, epsilon, tol)
        if precision in SCALES and not (largest == 0 or SCALES[precision][0] < largest < SCALES[precision][1]):
            raise ValueError(
                f"costs up to {largest:g} are beyond what precision={precision!r} holds: rescale the features"
                + (", or use precision='fp64'" if precision == "fp32" else "")
            )
        if precision not in _DTYPES:
            raise ValueError(f"precision={precision!r} needs backend='triton'; the torch backend has fp32 and fp64")
        dtype = _DTYPES[precision]
        scores = sum(_scores(cost, problem) for problem in problems) * dtype.itemsize
        free = free_memory(cost.device) if memory_budget is None else 2 * memory_budget
        budget = int(0.9 * free) if memory == "cached" and memory_budget is None else free // 2
        if memory == "cached" and scores > budget:
            raise MemoryError(
                f"memory='cached' needs {scores / 2**30:.2f} GiB for {len(problems)} problems of up to "
                f"{max(cost.clouds[i].n for i, _ in problems)} x {max(cost.clouds[j].n for _, j in problems)} points, "
                f"the budget is {budget / 2**30:.2f} GiB: use memory='streamed' or fewer samples"
            )
        cached = memory != "streamed" and scores <= budget
        keep_plan = cached and 2 * scores <= budget
        return cls(cost, problems, dtype, cached=cached, keep_plan=keep_plan)

    def marginals(self, f: Tensor, g: Tensor, epsilon: float, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Row and column sums of the plan; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        whole = active is None or bool(active.all())
        if whole and len(self._groups) == 1:
            return self._group_marginals(self._groups[0], *self._of_group(self._groups[0], f, g), epsilon, None)
        r, c = torch.zeros_like(self.a), torch.zeros_like(self.b)
        for group in self._groups:
            live = None if whole or active is None else active[group.host_index]
            if live is not None and not bool(live.any()):
                continue
            rg, cg = self._group_marginals(group, *self._of_group(group, f, g), epsilon, live)
            r[group.part, : group.n] = rg
            c[group.part, : group.m] = cg
        return r, c

    def softmin(self, potential: Tensor, epsilon: float, *, side: Literal["rows", "columns"]) -> Tensor:
        """Safe half step; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        rows = side == "rows"
        out = torch.zeros_like(self.a if rows else self.b)
        for group in self._groups:
            n, m = (group.n, group.m) if rows else (group.m, group.n)
            log_w = group.log_b if rows else group.log_a
            h = potential[group.index, :m] / epsilon + log_w
            lse = torch.full((len(group.index), n), -torch.inf, dtype=torch.float64, device=out.device)
            for block in group.blocks:
                minus_cost = self._cost(group, block).div(-epsilon)
                parts = [(block.rows, block.columns, minus_cost)] if rows else []
                if not rows:
                    parts = [(block.columns, block.rows, minus_cost.mT)]
                if group.symmetric:
                    rest = slice(block.rows.stop, group.m)
                    past = minus_cost[..., block.rows.stop - block.columns.start :].mT
                    parts = [(block.rows, block.columns, minus_cost), (rest, block.rows, past)]
                for target, source, score in parts:
                    if target.stop > target.start:
                        part = torch.logsumexp(score + h[block.problems, None, source].to(self.dtype), -1)
                        view = lse[block.problems, target]
                        view.copy_(torch.logaddexp(view, part.to(torch.float64)))
            weights = (self.a if rows else self.b)[group.index, :n]
            out[group.index, :n] = torch.where(weights > 0, -epsilon * lse, 0.0)
        return out

    def apply_plan(
        self, problem: int, f: Tensor, g: Tensor, epsilon: float, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> PlanProduct:
        """``P v`` and ``P^T u``; see :class:`~otdd_flash.ops.base.PlanOperator`."""
        group, position = next(
            (group, int((group.index == problem).nonzero()))
            for group in self._groups
            if bool((group.index == problem).any())
        )
        n, m = len(f), len(g)
        x = (f.to(torch.float64) / epsilon + group.log_a[position, :n]).to(self.dtype)
        y = (g.to(torch.float64) / epsilon + group.log_b[position, :m]).to(self.dtype)
        forward = None if v is None else _Product(v, n, self.dtype)
        backward = None if u is None else _Product(u, m, self.dtype)
        for rows, columns, cost in self._problem_blocks(group, position, n, m):
            plan = exp_(torch.add(x[rows, None], cost, alpha=-1.0 / epsilon).add_(y[None, columns]))
            torch.threshold_(plan, _SMALLEST_ENTRY[self.dtype], 0.0)
            if forward is not None:
                forward.add(rows, plan, columns)
            if backward is not None:
                backward.add(columns, plan.mT, rows)
            if group.symmetric:
                # the mirror image of the part right of the diagonal block: P_ji with the roles of f and g exchanged
                rest = slice(rows.stop, m)
                past = cost[:, rows.stop - columns.start :]
                mirror = exp_(torch.add(x[rest, None], past.mT, alpha=-1.0 / epsilon).add_(y[None, rows]))
                torch.threshold_(mirror, _SMALLEST_ENTRY[self.dtype], 0.0)
                if forward is not None:
                    forward.add(rest, mirror, rows)
                if backward is not None:
                    backward.add(rows, mirror.mT, rest)
        pv, r = (None, None) if forward is None else forward.result()
        ptu, c = (None, None) if backward is None else backward.result()
        return PlanProduct(pv, ptu, r, c)

    def pack_rows(self, values: Tensor, problem: int) -> Tensor:
        """Pad to the row layout."""
        return _pad(values, self.a.shape[1])

    def pack_columns(self, values: Tensor, problem: int) -> Tensor:
        """Pad to the column layout."""
        return _pad(values, self.b.shape[1])

    def unpack_rows(self, values: Tensor, problem: int) -> Tensor:
        """Cut the padding off."""
        return values[: self.cost.clouds[self.problems[problem][0]].n]

    def unpack_columns(self, values: Tensor, problem: int) -> Tensor:
        """Cut the padding off."""
        return values[: self.cost.clouds[self.problems[problem][1]].n]

    def _of_group(self, group: _Group, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Potentials ``(G, n), (G, m)`` of a group; both of a self problem are its first one."""
        f = f[group.part, : group.n]
        if group.symmetric:
            return f, f
        g = g[group.part, : group.m]
        return f, g if group.selves is None else torch.where(group.selves, _pad_columns(f, group.m), g)

    def _group_marginals(
        self, group: _Group, f: Tensor, g: Tensor, epsilon: float, live: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self._keep_plan and group.absorbed is not None and group.absorbed[2] == epsilon:
            df, dg = (f - group.absorbed[0]) / epsilon, (g - group.absorbed[1]) / epsilon
            if max(float(d.abs().max()) for d in ((df,) if group.symmetric else (df, dg))) < _ABSORPTION_LIMIT:
                return self._rescaled_marginals(group, df.exp(), dg.exp(), live)
        live = None if self._keep_plan else live  # the stored plan must be of one state
        group.absorbed = (f.clone(), g.clone(), epsilon) if self._keep_plan else None
        x, y = (f / epsilon + group.log_a).to(self.dtype), (g / epsilon + group.log_b).to(self.dtype)
        r = torch.zeros(f.shape, dtype=torch.float64, device=f.device)
        c = torch.zeros(g.shape, dtype=torch.float64, device=g.device)
        scratch = None
        for block in _live_blocks(group, live):
            if self._keep_plan and block.cost is not None:
                block.plan = torch.empty_like(block.cost) if block.plan is None else block.plan
                plan = block.plan
            else:
                scratch = self._scratch(scratch, block)
                plan = scratch
            u, v = x[block.problems, block.rows, None], y[block.problems, None, block.columns]
            if block.cost is not None:
                exp_(torch.add(u, block.cost, alpha=-1.0 / epsilon, out=plan).add_(v))
            else:
                plan = exp_(self._scores(group, block, plan).div_(epsilon).add_(u).add_(v))
            r[block.problems, block.rows] += plan.sum(-1)
            rest = block.rows.stop
            if group.symmetric and rest < group.m:
                r[block.problems, rest:] += plan[..., rest - block.columns.start :].sum(-2)
            elif not group.symmetric:
                c[block.problems, block.columns] += plan.sum(-2)
            if self._keep_plan:
                torch.threshold_(plan, _SMALLEST_ENTRY[self.dtype], 0.0)
        return r, (r if group.symmetric else c)

    def _rescaled_marginals(self, group: _Group, ef: Tensor, eg: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
        """Marginals of ``diag(ef) P0 diag(eg)`` from the stored plan ``P0``."""
        x, y = ef.to(self.dtype), eg.to(self.dtype)
        if len(group.blocks) == 1 and group.blocks[0].plan is not None:
            r = _row_products(y, group.blocks[0].plan.mT) * ef
            return r, (r if group.symmetric else _row_products(x, group.blocks[0].plan) * eg)
        r, c = torch.zeros_like(ef), torch.zeros_like(eg)
        for block in _live_blocks(group, live):
            assert block.plan is not None
            plan, rest = block.plan, block.rows.stop
            left, right = x[block.problems, block.rows], y[block.problems, block.columns]
            r[block.problems, block.rows] += _row_products(right, plan.mT)
            if not group.symmetric:
                c[block.problems, block.columns] += _row_products(left, plan)
            elif rest < group.m:
                r[block.problems, rest:] += _row_products(left, plan[..., rest - block.columns.start :])
        r *= ef
        return r, (r if group.symmetric else c * eg)

    def _scores(self, group: _Group, block: _Block, out: Tensor) -> Tensor:
        """Minus the cost of a block, written to ``out``."""
        q, k = group.q[block.problems, block.rows], group.k[block.problems, block.columns]
        torch.matmul(q, k.mT, out=out)
        out.sub_(group.alpha[block.problems, block.rows, None])
        return out.sub_(group.beta[block.problems, None, block.columns])

    def _cost(self, group: _Group, block: _Block) -> Tensor:
        if block.cost is not None:
            return block.cost
        return self._scores(group, block, self._scratch(None, block)).neg_()

    def _scratch(self, scratch: Tensor | None, block: _Block) -> Tensor:
        """A contiguous buffer of the block's shape, reused when it is large enough."""
        shape = (_length(block.problems), _length(block.rows), _length(block.columns))
        if scratch is None or scratch.numel() < math.prod(shape):
            return torch.empty(shape, dtype=self.dtype, device=self.cost.device)
        return scratch.flatten()[: math.prod(shape)].view(shape)

    def _problem_blocks(self, group: _Group, position: int, n: int, m: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """Row and column ranges and costs of one problem, padding cut off."""
        for block in group.blocks:
            if block.problems.start <= position < block.problems.stop and block.rows.start < n:
                rows = slice(block.rows.start, min(block.rows.stop, n))
                columns = slice(block.columns.start, min(block.columns.stop, m))
                cost = self._cost(group, block)[position - block.problems.start]
                yield rows, columns, cost[: _length(rows), : _length(columns)]

    def _make_group(self, index: list[int]) -> _Group:
        problems = [self.problems[p] for p in index]
        selves = [i == j for i, j in problems]
        factors = self.cost.many_factors(problems, self.dtype)
        n, m = max(len(x.alpha) for x in factors), max(len(x.beta) for x in factors)
        width = max(x.q.shape[1] for x in factors)
        position = torch.tensor(index, device=self.cost.device)
        group = _Group(
            index=position,
            part=slice(index[0], index[-1] + 1) if index == list(range(index[0], index[-1] + 1)) else position,
            host_index=torch.tensor(index),
            symmetric=all(selves),
            alpha=torch.stack([_pad(x.alpha, n) for x in factors]).to(self.dtype),
            beta=torch.stack([_pad(x.beta, m) for x in factors]).to(self.dtype),
            q=torch.stack([_pad(x.q, n, width) for x in factors]),
            k=torch.stack([_pad(x.k, m, width) for x in factors]),
            log_a=self.a[position, :n].log(),
            log_b=self.b[position, :m].log(),
            selves=torch.tensor(selves, device=self.cost.device)[:, None] if len(set(selves)) == 2 else None,
        )
        group.blocks = list(_partition(len(index), n, m, group.symmetric, self.cost.device.type))
        if self._cached:
            for block in group.blocks:
                block.cost = self._cost(group, block)
        return group

    def _stack_weights(self, clouds: list[int], length: int) -> Tensor:
        return torch.stack([_pad(self.cost.clouds[i].weights.to(torch.float64), length) for i in clouds])


def _live_blocks(group: _Group, live: Tensor | None) -> list[_Block]:
    """Blocks with a problem still to be solved."""
    return group.blocks if live is None else [block for block in group.blocks if bool(live[block.problems].any())]


def _partition(batch: int, n: int, m: int, symmetric: bool, device: str) -> Iterator[_Block]:
    """Blocks of about ``_BLOCK_ELEMENTS`` scores: several small problems together, or some rows of a large one."""
    target = _BLOCK_ELEMENTS.get(device, _BLOCK_ELEMENTS["cuda"])
    if n * m <= target:
        step = max(1, target // (n * m))
        for s in range(0, batch, step):
            yield _Block(slice(s, min(s + step, batch)), slice(0, n), slice(0, m))
        return
    for p in range(batch):
        start = 0
        while start < n:
            first = start if symmetric else 0
            stop = min(n, start + max(1, target // (m - first)))
            yield _Block(slice(p, p + 1), slice(start, stop), slice(first, m))
            start = stop


def _similar(cost: DotProductCost, problems: Sequence[Problem]) -> list[list[int]]:
    """Problems grouped so that padding to a common shape wastes little: same kind, sizes within a quarter.

    A few small problems are one group, whatever they are: there it is the number of operations that counts.
    """
    sizes = [(cost.clouds[i].n, cost.clouds[j].n) for i, j in problems]
    if len(sizes) * max(n for n, _ in sizes) * max(m for _, m in sizes) <= _FEW_ELEMENTS:
        return [list(range(len(problems)))]

    def size(p: int) -> tuple[bool, int, int]:
        i, j = problems[p]
        return (i == j, cost.clouds[i].n, cost.clouds[j].n)

    groups: list[list[int]] = []
    for p in sorted(range(len(problems)), key=size, reverse=True):
        if groups:
            kind, n, m = size(groups[-1][0])
            same, rows, columns = size(p)
            if kind == same and n * max(m, columns) <= 1.25 * rows * columns + 4096:
                groups[-1].append(p)
                continue
        groups.append([p])
    return groups


def _auto_precision(
    cost: DotProductCost, problems: Sequence[Problem], largest: float, epsilon: float, tol: float | None
) -> Precision:
    """Float64 for float64 data, and where costs, ``cost / epsilon`` or ``tol`` are beyond what float32 resolves."""
    low, high = SCALES["fp32"]
    if cost.clouds[0].points.dtype == torch.float64 or not (largest == 0 or low < largest < high):
        return "fp64"
    if largest > FLOAT32_RANGE * epsilon:
        return "fp64"
    ratio = cost.means(problems).max() / epsilon
    return "fp32" if tol is None or tol >= 2 * float(marginal_resolution("fp32", ratio)) else "fp64"


def _scores(cost: DotProductCost, problem: Problem) -> int:
    i, j = problem
    n, m = cost.clouds[i].n, cost.clouds[j].n
    return n * m // 2 if i == j else n * m


def _pad(values: Tensor, length: int, width: int | None = None) -> Tensor:
    """Zeros appended to the first (and second) dimension."""
    if width is None:
        return torch.nn.functional.pad(values, (0, length - values.shape[0]))
    return torch.nn.functional.pad(values, (0, width - values.shape[1], 0, length - values.shape[0]))


def _row_products(vectors: Tensor, matrices: Tensor) -> Tensor:
    """``(G, m)`` products of ``(G, n)`` and ``(G, n, m)``, in the form of which a batch is fast: rows from the left."""
    return torch.bmm(vectors[:, None], matrices)[:, 0]


def _pad_columns(values: Tensor, length: int) -> Tensor:
    """Zeros appended to, or columns cut from, the last dimension."""
    missing = length - values.shape[1]
    return values if missing == 0 else torch.nn.functional.pad(values, (0, missing))


def _length(part: slice) -> int:
    return part.stop - part.start


def _size(block: _Block) -> int:
    return _length(block.problems) * _length(block.rows) * _length(block.columns)


class _Product:
    """A matrix times a plan that comes block by block, and the plan's row sums, accumulated in float64."""

    def __init__(self, values: Tensor, rows: int, dtype: torch.dtype) -> None:
        self.like, self.values = values, values.to(dtype)
        self.out = torch.zeros(rows, values.shape[1], dtype=torch.float64, device=values.device)
        self.sums = torch.zeros(rows, dtype=torch.float64, device=values.device)

    def add(self, rows: slice, plan: Tensor, columns: slice) -> None:
        """Take in one block of the plan."""
        self.out[rows] += plan @ self.values[columns]
        self.sums[rows] += plan.sum(1)

    def result(self) -> tuple[Tensor, Tensor]:
        """The product in the dtype of the values, and the sums."""
        return self.out.to(self.like.dtype), self.sums
