"""Other solvers behind one signature: a function of no arguments that runs them once and returns potentials.

Each runs its own method, as its authors ship it. Potentials come back in our convention (cost ``|x - y|^2``, no 1/2).
The autotune lists of flash-sinkhorn's Sinkhorn kernels are cut to block sizes that are in the running on a large GPU:
the rest costs minutes of compilation and never wins.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from registry import Row, timed
from torch import Tensor

Potentials = tuple[Tensor, Tensor]


def flash_missing() -> str | None:
    """Why flash-sinkhorn cannot run, or ``None``; its autotune lists are cut at the first call."""
    if importlib.util.find_spec("flash_sinkhorn") is None:
        return "flash-sinkhorn is not installed"
    _cut_autotune_lists()
    return None


@cache
def _cut_autotune_lists() -> None:
    import flash_sinkhorn.kernels.sinkhorn_flashstyle_sqeuclid as kernels

    for name in dir(kernels):
        tuner = getattr(kernels, name)
        if hasattr(tuner, "configs") and hasattr(tuner, "fn"):
            tuner.configs = [c for c in tuner.configs if _in_the_running(c.kwargs)] or tuner.configs


def _in_the_running(blocks: dict[str, int]) -> bool:
    return blocks.get("BLOCK_K", 32) == 32 and min(blocks.get("BLOCK_M", 64), blocks.get("BLOCK_N", 64)) >= 64


def centred(x: Tensor, y: Tensor) -> Potentials:
    """Both clouds about their common mean: TF32 loses digits off the centre."""
    centre = (x.double().mean(0) + y.double().mean(0)) / 2
    return (x.double() - centre).float(), (y.double() - centre).float()


def flash_alternating(x: Tensor, y: Tensor, epsilon: float, iterations: int) -> Callable[[], Potentials]:
    """flash-sinkhorn's alternating solver for uniform weights."""
    from flash_sinkhorn.sinkhorn_solvers import sinkhorn_flashstyle_alternating

    x, y = centred(x, y)
    a, b = (torch.full((len(z),), 1 / len(z), device=z.device) for z in (x, y))
    return lambda: sinkhorn_flashstyle_alternating(x, y, a, b, eps=epsilon, n_iters=iterations)


def flash_loss(epsilon: float, *, debiased: bool, **options: Any) -> Any:
    """flash-sinkhorn's loss module at ``epsilon`` in units of the unhalved cost."""
    from flash_sinkhorn import SamplesLoss

    return SamplesLoss(blur=epsilon**0.5, debias=debiased, half_cost=False, **options)


def flash_iteration(x: Tensor, y: Tensor, epsilon: float) -> tuple[Row, bool]:
    """What one more epsilon step costs flash-sinkhorn's debiased loss, and whether its value is a number."""

    def total(steps: int) -> tuple[Row, Tensor]:
        loss = flash_loss(epsilon, debiased=True, eps_list=[epsilon] * steps)
        with torch.no_grad():
            return timed(lambda: loss(x, y), repeats=3)

    (few, _), (many, value) = total(2), total(6)
    timing = {key: (many[key] - few["ms"]) / 4 for key in ("q20", "ms", "q80")}
    return {**many, **timing}, bool(value.isfinite())


def dense_torch(x: Tensor, y: Tensor, epsilon: float, iterations: int) -> Callable[[], Potentials]:
    """The plain baseline: a stored float32 cost, alternating log-sum-exp updates by torch."""

    def run() -> Potentials:
        cost = (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp_min_(0) / -epsilon
        log_a, log_b = -math.log(len(x)), -math.log(len(y))
        g = torch.zeros_like(y[:, 0])
        for _ in range(iterations):
            f = -torch.logsumexp(cost + (g + log_b), 1)
            g = -torch.logsumexp(cost + (f + log_a)[:, None], 0)
        return epsilon * f, epsilon * g

    return run


def geomloss_tensorized(x: Tensor, y: Tensor, epsilon: float, iterations: int) -> Callable[[], Potentials]:
    """GeomLoss's loop on a stored cost, its own schedule continued by ``iterations`` at the target; cross problem."""
    from geomloss._legacy.sinkhorn_divergence import epsilon_schedule, sinkhorn_loop
    from geomloss._legacy.sinkhorn_samples import softmin_tensorized

    def run() -> Potentials:
        a, b = (torch.full((1, len(z)), -math.log(len(z)), device=z.device) for z in (x, y))
        norms = x.square().sum(1)[:, None] + y.square().sum(1)
        cost = ((norms - 2 * x @ y.T).clamp_min_(0) / 2)[None]
        diameter = float((x.amax(0).maximum(y.amax(0)) - x.amin(0).minimum(y.amin(0))).norm())
        schedule = epsilon_schedule(2, diameter, math.sqrt(epsilon / 2), 0.5) + [epsilon / 2] * iterations
        with torch.no_grad():
            _, _, g, f = sinkhorn_loop(
                softmin_tensorized, [a], [b], None, None, [cost], [cost.mT.contiguous()], schedule, None, debias=False
            )
        return 2 * f[0], 2 * g[0]

    return run


def ott_jax(x: Tensor, y: Tensor, epsilon: float, iterations: int) -> Callable[[], Potentials]:
    """OTT-JAX with the cost in memory, a fixed number of alternating iterations."""
    import jax
    import jax.numpy as jnp
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    solver = sinkhorn.Sinkhorn(threshold=-1.0, max_iterations=iterations, min_iterations=iterations)
    left, right = (jnp.asarray(z.cpu().numpy()) for z in (x, y))
    solve = jax.jit(lambda p, q: solver(linear_problem.LinearProblem(pointcloud.PointCloud(p, q, epsilon=epsilon))))

    def run() -> Potentials:
        out = jax.block_until_ready(solve(left, right))
        # OTT's plan is exp((f + g - C) / epsilon), without the weights in front
        f, g = (torch.tensor(jax.device_get(p)).to(x.device) for p in (out.f, out.g))
        return f + epsilon * math.log(len(x)), g + epsilon * math.log(len(y))

    return run


def installed() -> dict[str, Callable[[Tensor, Tensor, float, int], Callable[[], Potentials]]]:
    """The solvers of a cross problem that can run here, by name."""
    found: dict[str, Callable] = {"dense torch, float32": dense_torch}
    if importlib.util.find_spec("geomloss") is not None:
        found["geomloss tensorized"] = geomloss_tensorized
    if flash_missing() is None:
        found["flash-sinkhorn alternating"] = flash_alternating
    if importlib.util.find_spec("ott") is not None:
        found["OTT-JAX"] = ott_jax
    return found


def iterations_needed(
    make: Callable[[int], Callable[[], Potentials]], check: Callable[[Tensor, Tensor], float], tol: float
) -> tuple[int | None, float]:
    """The smallest of 10, 14, 20, 28, ... 640 iterations that meets ``tol`` (``None``: none does), and its error."""
    best, count = math.inf, 10.0
    while count < 700:
        error = check(*make(round(count))())
        if error <= tol:
            return round(count), error
        best, count = min(best, error), count * math.sqrt(2)
    return None, best


def bound(make: Callable, x: Tensor, y: Tensor, epsilon: float) -> Callable[[int], Callable[[], Potentials]]:
    """``make`` with all but the number of iterations given."""
    return partial(make, x, y, epsilon)
