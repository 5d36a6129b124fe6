"""The Triton backend: a batch of problems over one packed operand, one launch per pass for all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.kernels.marginals import JOB_FIELDS, marginals
from otdd_flash.kernels.ordered_sum import ordered_sum
from otdd_flash.kernels.potentials import exponents, two_parts
from otdd_flash.kernels.scores import scores
from otdd_flash.kernels.softmin import SOFTMIN_FIELDS, softmin
from otdd_flash.kernels.source import ScoreSource
from otdd_flash.kernels.stored_marginals import stored_marginals
from otdd_flash.ops import choices, tuning
from otdd_flash.ops.base import Memory, OperatorInfo, PlanProduct, Precision, Problem, on_device
from otdd_flash.ops.packing import PackedClouds, pack
from otdd_flash.ops.plan_product import PlanRows
from otdd_flash.ops.sweeps import ALIGN, Piece, Sweep, divide, softmin_jobs
from otdd_flash.ops.tiles import Extent, ceil_div, tile_count
from otdd_flash.torch_mode import plain_torch_methods

_INTERPRETER_BUDGET = 256 << 20
_LEAST_PART = 0.1  # of the scores that must fit before some are stored: a second sweep costs two launches


_Method = TypeVar("_Method", bound=Callable)


def _on_its_device(method: _Method) -> _Method:
    """Run a method with the operator's GPU as the current one."""

    @wraps(method)
    def run(self: FusedOperator, *arguments: Any, **named: Any) -> Any:
        with on_device(self.device):
            return method(self, *arguments, **named)

    return run  # type: ignore[return-value]


@plain_torch_methods
class FusedOperator:
    """Triton implementation of :class:`otdd_flash.ops.base.PlanOperator`.

    Args:
        cost: clouds and ground cost.
        problems: ordered pairs of clouds.
        packed: the operand.
        capacity: scores that may be stored; what does not fit is streamed.
        deterministic: fixed summation order.
        config: of the streamed pass, instead of this GPU's choice or the table's.
    """

    def __init__(
        self,
        cost: DotProductCost,
        problems: Sequence[Problem],
        *,
        packed: PackedClouds,
        capacity: int,
        deterministic: bool,
        config: tuning.KernelConfig | None = None,
    ):
        self.cost, self.problems, self.packed = cost, tuple(problems), packed
        self.device = packed.operand.device
        self.arch = tuning.architecture(self.device)
        sizes = [(cost.clouds[i].n, cost.clouds[j].n) for i, j in self.problems]
        self._rows, self._cols = (ceil_div(max(s[k] for s in sizes), ALIGN) * ALIGN for k in (0, 1))
        self.a = torch.stack([self.pack_rows(cost.clouds[i].weights, p) for p, (i, _) in enumerate(self.problems)])
        self.b = torch.stack([self.pack_columns(cost.clouds[j].weights, p) for p, (_, j) in enumerate(self.problems)])
        self.log_weight = torch.cat([self.a.flatten(), self.b.flatten()]).log2()
        self.alpha = torch.cat([self._layout_alpha(0), self._layout_alpha(1)])
        self._exponent = torch.empty(self.alpha.shape, dtype=torch.float32, device=self.device)
        self.stored_config = tuning.stored_config(packed.mode, self.arch)
        extents = self._make_extents()
        stored, streamed = divide(extents, capacity, self.stored_config)
        whole = not streamed
        self.extents = [extent for _, extent in stored] if whole else extents
        self.strip = self.stored_config.block_n if whole else 0  # softmin and apply_plan read whole problems
        self._softmin_config = tuning.softmin_config(packed.mode, self.arch, stored=self.strip)
        self._sweeps = self._make_sweeps(stored, streamed, config, deterministic=deterministic)
        self._descriptors: dict[tuple[int, int], object] = {}
        self._plans: dict[tuple[int, bool], tuple[tuple, PlanRows]] = {}
        self._tiles = self._store_scores() if stored else None
        held = (self.a, self.b, self.log_weight, self.alpha, self._exponent, self._tiles)
        self.info = OperatorInfo(
            "triton", packed.mode, "cached" if whole else "part-cached" if stored else "streamed",
            packed.bytes + sum(t.numel() * t.element_size() for t in held if t is not None),
        )  # fmt: skip

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
        deterministic: bool = True,
    ) -> FusedOperator:
        """Pack the clouds and, where it pays, store the scores, or those that the budget allows.

        Args:
            cost: clouds and ground cost.
            problems: ordered pairs of cloud indices; ``(i, i)`` is symmetric.
            epsilon: the smallest regularisation to come, in units of the cost (unused: the modes do not depend on it).
            precision: operand mode; ``auto`` is ``int8`` on an 8-bit grid, else ``fp16x3``.
            memory: ``streamed``, ``cached`` or ``auto``, which stores a part of the scores where not all fit.
            memory_budget: bytes for stored scores; default 0.6 of the free device memory.
            deterministic: fixed summation order instead of atomic additions.

        Raises:
            ValueError: no problems, clouds on the CPU outside the interpreter, or a precision this backend lacks.
        """
        del epsilon
        if not problems:
            raise ValueError("problems must hold at least one pair of clouds, got none")
        if cost.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(
                f"backend='triton' needs the clouds on a CUDA device, got {cost.device}; move them there or use "
                "backend='torch'"
            )
        packed = pack(cost, precision)
        budget = _free_bytes(cost.device) if memory_budget is None else memory_budget
        stored = tuning.stored_config(packed.mode, tuning.architecture(cost.device))
        need = 4 * (_stored_scores(cost, problems, stored) + _spare_scores(stored))
        if memory == "cached" and need > budget:
            raise ValueError(
                f"memory='cached' needs {need / 2**30:.1f} GiB for the scores, over the budget of {budget / 2**30:.1f} "
                "GiB; raise memory_budget or use memory='streamed' (memory='auto' stores what fits)"
            )
        pays = tuning.caching_pays(packed.mode, packed.width) and budget >= _LEAST_PART * need
        store = memory == "cached" or (memory == "auto" and pays)
        capacity = max(0, budget // 4 - _spare_scores(stored)) if store else 0
        return cls(cost, problems, packed=packed, capacity=capacity, deterministic=deterministic)

    @_on_its_device
    def marginals(self, f: Tensor, g: Tensor, epsilon: float, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Row and column sums of the plan of ``f, g``; see :class:`otdd_flash.ops.base.PlanOperator`."""
        _, slope = self.slopes(epsilon)
        out = torch.zeros(self.alpha.shape, dtype=torch.float64, device=self.device)
        rows = self.a.numel()
        sums = out[:rows].view(self.a.shape), out[rows:].view(self.b.shape)
        if active is not None and not active.any():
            return sums
        exponents(f.contiguous(), g.contiguous(), self.alpha, self.log_weight, slope, self._exponent)
        for sweep in self._sweeps:
            jobs, config = sweep.jobs(active, self.device), sweep.config
            if jobs is not None:
                kernel = stored_marginals if sweep.stored else marginals
                source = self.source(config, epsilon, stored=sweep.stored)
                slots = torch.zeros(sweep.plan.slots, dtype=torch.float32, device=self.device)
                kernel(source, self._exponent, jobs.jobs, slots, config=config)
                ordered_sum(slots, jobs.sums, out, block=config.block_n)
        return sums

    @_on_its_device
    def softmin(self, potential: Tensor, epsilon: float, *, side: Literal["rows", "columns"]) -> Tensor:
        """Safe half step of all problems; see :class:`otdd_flash.ops.base.PlanOperator`."""
        if side not in ("rows", "columns"):
            raise ValueError(f"side must be rows or columns, got {side!r}")
        _, slope = self.slopes(epsilon)
        rows = side == "rows"
        f, g = (torch.zeros_like(self.a), potential) if rows else (potential, torch.zeros_like(self.b))
        exponents(f.contiguous(), g.contiguous(), self.alpha, self.log_weight, slope, self._exponent)
        own, weights = (self.alpha[: self.a.numel()], self.a) if rows else (self.alpha[self.a.numel() :], self.b)
        splits, jobs = softmin_jobs(
            self.extents, self._softmin_config, rows=rows, fields=SOFTMIN_FIELDS,
            sizes=(self.a.numel(), self.b.numel()), stored=self.stored_config,
        )  # fmt: skip
        peak = torch.full((splits, own.numel()), -math.inf, dtype=torch.float32, device=self.device)
        total = torch.zeros_like(peak)
        source = self.source(self._softmin_config, epsilon, stored=self.strip > 0)
        softmin(source, self._exponent, jobs.to(self.device), peak, total, config=self._softmin_config)
        value = torch.logsumexp(peak.to(torch.float64) * math.log(2.0) + total.to(torch.float64).log(), 0)
        out = (own - value / (slope * math.log(2.0))).view(weights.shape)
        return torch.where(self._inside(rows), out, 0.0)

    @_on_its_device
    def apply_plan(
        self, problem: int, f: Tensor, g: Tensor, epsilon: float, *, v: Tensor | None = None, u: Tensor | None = None
    ) -> PlanProduct:
        """``P v`` and ``P^T u`` of one problem; see :class:`otdd_flash.ops.base.PlanOperator`."""
        i, j = self.problems[problem]
        if i == j:
            g = f
        pv, r = (None, None) if v is None else self._plan_rows(problem, (f, g), epsilon, transposed=False).times(v)
        ptu, c = (None, None) if u is None else self._plan_rows(problem, (g, f), epsilon, transposed=True).times(u)
        return PlanProduct(pv, ptu, r, c)

    def _plan_rows(
        self, problem: int, potentials: tuple[Tensor, Tensor], epsilon: float, *, transposed: bool
    ) -> PlanRows:
        """The plan as it was last prepared, where it is the same: linear solvers multiply one plan many times."""
        state = epsilon, tuple(potential._version for potential in potentials)
        kept = self._plans.get((problem, transposed))
        if kept is not None:
            known, rows = kept
            if known == state and all(p is q for p, q in zip(rows.potentials, potentials, strict=True)):
                return rows
        rows = PlanRows(self, problem, potentials, epsilon, transposed=transposed)
        self._plans[problem, transposed] = state, rows
        return rows

    def of_problem(self, values: Tensor, problem: int) -> tuple[Tensor, Tensor]:
        """The rows' and the columns' part, for one problem, of values in the flat layout of all."""
        rows, columns = values[: self.a.numel()], values[self.a.numel() :]
        return rows.view(self.a.shape)[problem], columns.view(self.b.shape)[problem]

    def pack_rows(self, values: Tensor, problem: int) -> Tensor:
        """Cloud order ``(n,)`` to the row layout ``(N,)``."""
        return self._pack(values, self.problems[problem][0], self._rows)

    def pack_columns(self, values: Tensor, problem: int) -> Tensor:
        """Cloud order ``(m,)`` to the column layout ``(M,)``."""
        return self._pack(values, self.problems[problem][1], self._cols)

    def unpack_rows(self, values: Tensor, problem: int) -> Tensor:
        """Row layout ``(N,)`` to cloud order ``(n,)``."""
        return self._unpack(values, self.problems[problem][0])

    def unpack_columns(self, values: Tensor, problem: int) -> Tensor:
        """Column layout ``(M,)`` to cloud order ``(m,)``."""
        return self._unpack(values, self.problems[problem][1])

    def _pack(self, values: Tensor, cloud: int, size: int) -> Tensor:
        order = self.packed.order[cloud]
        out = torch.zeros(size, dtype=torch.float64, device=self.device)
        out[: len(values)] = values if order is None else values[order]
        return out

    def _unpack(self, values: Tensor, cloud: int) -> Tensor:
        order, n = self.packed.order[cloud], self.cost.clouds[cloud].n
        if order is None:
            return values[:n].clone()
        out = torch.empty(n, dtype=values.dtype, device=values.device)
        out[order] = values[:n]
        return out

    def _layout_alpha(self, side: int) -> Tensor:
        """``alpha`` of every problem's clouds on one side, in the flat layout."""
        size = (self._rows, self._cols)[side]
        out = torch.zeros(len(self.problems), size, dtype=torch.float64, device=self.device)
        for p, pair in enumerate(self.problems):
            start, n = self.packed.offsets[pair[side]], self.cost.clouds[pair[side]].n
            out[p, :n] = self.packed.alpha[start : start + n]
        return out.flatten()

    def _inside(self, rows: bool) -> Tensor:
        """True where a layout holds a point."""
        side, size = (0, self._rows) if rows else (1, self._cols)
        counts = torch.tensor([self.cost.clouds[pair[side]].n for pair in self.problems], device=self.device)
        return torch.arange(size, device=self.device)[None, :] < counts[:, None]

    def _make_extents(self) -> list[Extent]:
        """Where each problem's operand rows, exponents and sums are."""
        extents, start = [], len(self.problems) * self._rows
        for p, (i, j) in enumerate(self.problems):
            row, col = p * self._rows, start + p * self._cols
            extents.append(
                Extent(
                n=self.cost.clouds[i].n, m=self.cost.clouds[j].n, row_base=self.packed.offsets[i],
                col_base=self.packed.offsets[j], u=row, v=row if i == j else col, tile=0, symmetric=i == j,
                r=row, c=col,
            )
            )  # fmt: skip
        return extents

    def _make_sweeps(
        self, stored: list[Piece], streamed: list[Piece], config: tuning.KernelConfig | None, *, deterministic: bool
    ) -> list[Sweep]:
        """One sweep over the stored scores and one over the rest."""
        slot_bytes = max(192 << 20, 256 * self.packed.alpha.shape[0])
        mode, features = self.packed.mode, self.packed.features
        config = config or choices.load(self.device, mode, features) or tuning.table_config(mode, features, self.arch)
        return [
            Sweep(pieces, shape, stored=kept, deterministic=deterministic, slot_bytes=slot_bytes)
            for pieces, shape, kept in ((stored, self.stored_config, True), (streamed, config, False))
            if pieces
        ]

    def slopes(self, epsilon: float) -> tuple[float, float]:
        """``(per unit of a score, per unit of the cost)``, base 2; consistent to the last bit of float32."""
        slope = math.log2(math.e) / epsilon
        scale, _ = two_parts(self._unit * slope)
        return scale, scale / self._unit

    @property
    def _unit(self) -> float:
        """Cost per unit of a score: of the dot product, or of the table where the features do not count."""
        return self.packed.scale or 1.0

    def source(self, config: tuning.KernelConfig, epsilon: float, *, stored: bool) -> ScoreSource:
        """Where the kernels of ``config`` get their scores at ``epsilon``."""
        scale, slope = self.slopes(epsilon)
        packed = self.packed
        rows, cols = (
            self._descriptor(block, config.block_k) if config.tma else packed.operand
            for block in (config.block_m, config.block_n)
        )
        return ScoreSource(
            rows, cols, packed.width, packed.main, packed.half, scale if stored or packed.scale else 0.0,
            packed.labels, packed.table, -slope, self._tiles if stored else None,
        )  # fmt: skip

    def _descriptor(self, block: int, block_k: int) -> object:
        """Tensor descriptor of the operand for one block shape, built once."""
        if (block, block_k) not in self._descriptors:
            from triton.tools.tensor_descriptor import TensorDescriptor

            operand = (
                self.packed.operand
            )  # the copy engine fills what lies behind the used columns with zeros: less to read
            self._descriptors[block, block_k] = TensorDescriptor(
                operand, [len(operand), self.packed.used], list(operand.stride()), [block, block_k]
            )
        return self._descriptors[block, block_k]

    def _store_scores(self) -> Tensor:
        """Write the tiles of the first sweep once."""
        sweep, config = self._sweeps[0], tuning.fill_config(self.stored_config, self.arch)
        count = sum(tile_count(e, config.block_m, config.block_n) for e in sweep.plan.extents)
        spare = _spare_scores(config)
        size = count * config.block_m * config.block_n
        tiles = torch.empty(size + spare, dtype=torch.float32, device=self.device)
        tiles[-spare:] = 0.0
        jobs = sweep.jobs(None, self.device)
        assert jobs is not None
        source = replace(
            self.source(config, 1.0, stored=False), tiles=tiles, scale=self.packed.scale / self._unit,
            table_scale=-1.0 / self._unit,
        )  # fmt: skip
        scores(source, jobs.jobs, config=config, fields=JOB_FIELDS)
        return tiles


def _stored_scores(cost: DotProductCost, problems: Sequence[Problem], config: tuning.KernelConfig) -> int:
    """Scores of all problems in whole tiles."""
    total = 0
    for i, j in problems:
        extent = Extent(cost.clouds[i].n, cost.clouds[j].n, 0, 0, 0, 0, 0, i == j, 0, 0)
        total += tile_count(extent, config.block_m, config.block_n)
    return total * config.block_m * config.block_n


def _spare_scores(config: tuning.KernelConfig) -> int:
    """Behind the last tile: a transposed read may run past the last strip."""
    return config.block_n * config.block_n


def _free_bytes(device: torch.device) -> int:
    """Default budget for stored scores."""
    if device.type != "cuda":
        return _INTERPRETER_BUDGET
    return int(0.6 * torch.cuda.mem_get_info(device)[0])
