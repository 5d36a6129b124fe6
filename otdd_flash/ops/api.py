"""Choice of backend, precision and memory mode: explicit requests are honoured or refused, never replaced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from otdd_flash.cost import DotProductCost
from otdd_flash.errors import BackendUnavailableError
from otdd_flash.ops.base import Backend, Memory, PlanOperator, Precision, Problem, on_device
from otdd_flash.ops.support import SupportOperator
from otdd_flash.torch_mode import plain_torch


@plain_torch
def make_operator(
    cost: DotProductCost,
    problems: Sequence[Problem],
    *,
    epsilon: float,
    backend: Backend = "auto",
    precision: Precision = "auto",
    memory: Memory = "auto",
    memory_budget: int | None = None,
    deterministic: bool = True,
    tol: float | None = None,
) -> PlanOperator:
    """Prepare ``problems`` over ``cost`` for solving; points of weight zero take no part.

    Args:
        cost: clouds and ground cost.
        problems: ordered pairs of cloud indices; ``(i, i)`` is a self problem.
        epsilon: the smallest regularisation that will be asked for, in units of the cost (``auto`` precision needs it).
        backend: ``auto`` takes Triton for CUDA tensors and blocked torch elsewhere.
        precision: ``auto`` takes the fastest mode that keeps values within 1e-4 relative of float64.
        memory: ``streamed`` O((n+m)d), ``cached`` stores the costs, ``auto`` caches what fits ``memory_budget``;
            on the Triton backend also a part of them (recorded as ``part-cached``).
        memory_budget: bytes for stored costs; default a fraction of the free memory.
        deterministic: fixed summation order (Triton backend only; torch is always so).
        tol: marginal error that will be asked for; ``auto`` precision of the torch backend resolves it.

    Raises:
        ValueError: an unknown choice, or a precision that the backend does not have.
        BackendUnavailableError: ``triton`` asked for without Triton or without a CUDA device.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
    if memory not in ("auto", "streamed", "cached"):
        raise ValueError(f"memory must be auto, streamed or cached, got {memory!r}")
    supported = cost.supported
    if supported is not cost:
        inner = make_operator(
            supported, problems, epsilon=epsilon, backend=backend, precision=precision, memory=memory,
            memory_budget=memory_budget, deterministic=deterministic, tol=tol,
        )  # fmt: skip
        return SupportOperator(cost, inner)
    if backend == "triton" or (backend == "auto" and cost.device.type == "cuda" and triton_missing() is None):
        reason = triton_missing()
        if reason is not None:
            raise BackendUnavailableError(f"backend='triton' was asked for but {reason}; use backend='torch'")
        from otdd_flash.ops.fused import FusedOperator

        with on_device(cost.device):
            return FusedOperator.build(
                cost,
                problems,
                epsilon=epsilon,
                precision=precision,
                memory=memory,
                memory_budget=memory_budget,
                deterministic=deterministic,
            )
    from otdd_flash.ops.blocked import BlockedOperator

    return BlockedOperator.build(
        cost, problems, epsilon=epsilon, precision=precision, memory=memory, memory_budget=memory_budget, tol=tol
    )


def triton_missing() -> str | None:
    """Why Triton cannot run here, or ``None``. The interpreter (``TRITON_INTERPRET=1``) runs without a GPU."""
    import os

    try:
        import triton  # noqa: F401
    except ImportError:
        return "the package triton is not installed (pip install triton, Linux only)"
    if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available():
        return None
    return "no CUDA device is visible to torch"
