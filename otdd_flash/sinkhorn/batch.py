"""Many small transport problems in one ragged batch: one pass serves them all, and each retires when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_callable, check_flag, check_tensor, shown
from otdd_flash.cost import DotProductCost, PointCloud, mean_of
from otdd_flash.errors import not_converged
from otdd_flash.ops import Execution, Problem
from otdd_flash.ops.execution import DEFAULT_EXECUTION
from otdd_flash.sinkhorn.divergence import (
    Divergence,
    check_masses,
    check_solve,
    make_cloud,
    same_cloud,
    summarise,
    unmet,
)
from otdd_flash.sinkhorn.solver import DEFAULT_OPTIONS, Progress, SolverOptions, solve
from otdd_flash.sinkhorn.terms import Term
from otdd_flash.torch_mode import plain_torch

Pair = Sequence[Tensor | None]  # (x, y) or (x, y, a, b)


@plain_torch
def sinkhorn_batch(
    problems: Sequence[Pair],
    *,
    epsilon: float,
    debiased: bool = True,
    options: SolverOptions = DEFAULT_OPTIONS,
    execution: Execution = DEFAULT_EXECUTION,
    strict: bool = False,
    progress: Progress | None = None,
) -> list[Divergence]:
    """Sinkhorn divergences of many pairs of small clouds for the squared Euclidean cost (no 1/2), solved together.

    Every result is that of :func:`~otdd_flash.sinkhorn.sinkhorn_divergence` for its pair, with a certificate of its
    own. A cloud that occurs in several pairs (the same tensors) is held once and its self problem is solved once; a
    problem that has met its tolerance takes no further part. Where the clouds are decides where the work is done:
    ``backend="auto"`` never moves them to a GPU.

    Args:
        problems: pairs ``(x, y)`` or ``(x, y, a, b)`` of points ``(n, d), (m, d)`` and weights ``(n,), (m,)`` (or
            ``None`` for uniform; normalised unless the problem is unbalanced). Sizes and ``d`` may differ from pair to
            pair. Potentials are padded to the largest cloud: meant for clouds of like and modest size.
        epsilon: in units of the squared distance, the same for all.
        debiased: subtract the self terms.
        options: tolerances and method; an unbalanced batch needs ``rho_x = rho_y``.
        execution: backend, precision, memory mode, for all.
        strict: raise where a problem is not converged.
        progress: called with (stage, passes, worst marginal error).

    Returns:
        One divergence a pair, in order.

    Raises:
        ValueError: shapes, devices or weights that do not fit; says in which pair.
        NotConvergedError: under ``strict``.
    """
    epsilon = check_solve(epsilon, debiased, options, execution)
    check_flag("strict", strict)
    check_callable("progress", progress, optional=True)
    if isinstance(problems, Tensor | str) or not isinstance(problems, Sequence):
        raise TypeError(f"problems must be a list of pairs (x, y) of tensors, got {shown(problems)}")
    pairs = [_four(pair, k) for k, pair in enumerate(problems)]
    if not pairs:
        return []
    normalise = options.balanced
    clouds, sides = _distinct_clouds(pairs, normalise=normalise)
    cost = DotProductCost.build(own_frames(clouds, sides))
    batch = _Batch([], {})
    members: list[tuple[DotProductCost, Term]] = []
    for k, (i, j) in enumerate(sides):
        pair = replace(cost, clouds=(cost.clouds[i], cost.clouds[j]))
        try:
            check_masses(pair, options)
        except ValueError as error:
            raise ValueError(f"pair {k}: {error}") from error
        same = i == j or (options.rho_x == options.rho_y and same_cloud(pair))
        members.append((pair, batch.add((i, i) if same else (i, j), debiased=debiased)))
    operator = execution.operator(cost, batch.problems, epsilon=epsilon, tol=options.tol)
    solution = solve(operator, epsilon, options, terms=[term for _, term in members], progress=progress)
    found = [summarise(pair, solution, term, debiased=debiased) for pair, term in members]
    _report(found, options, strict=strict)
    return found


@dataclass
class _Batch:
    """The problems to solve, each once."""

    problems: list[Problem]
    position: dict[Problem, int]

    def add(self, cross: Problem, *, debiased: bool) -> Term:
        """The value of one pair."""
        i, j = cross
        if i == j:
            return Term((self._at(cross),), (0.0 if debiased else 1.0,))
        selves = [(i, i), (j, j)] if debiased else []
        return Term.of(self._at(cross), [self._at(problem) for problem in selves])

    def _at(self, problem: Problem) -> int:
        if problem not in self.position:
            self.position[problem] = len(self.problems)
            self.problems.append(problem)
        return self.position[problem]


def _four(pair: Pair, k: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """``(x, y, a, b)``, checked as far as it concerns both sides."""
    if not isinstance(pair, tuple | list):
        raise TypeError(f"pair {k} must be (x, y) or (x, y, a, b), got {shown(pair)}")
    if len(pair) not in (2, 4):
        raise ValueError(f"pair {k} must be (x, y) or (x, y, a, b), got {len(pair)} entries")
    x, y, a, b = (*pair, None, None)[:4]
    for name, side in (("x", x), ("y", y)):
        if side is not None:
            check_tensor(f"{name} of pair {k}", side)
    if x is None or y is None or x.dim() != 2 or y.dim() != 2:
        got = [None if side is None else tuple(side.shape) for side in (x, y)]
        raise ValueError(f"pair {k} needs points of shape (n, d) and (m, d), got {got[0]} and {got[1]}")
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"pair {k}: x has {x.shape[1]} features and y {y.shape[1]}: embed or project them to one width"
        )
    return x.detach(), y.detach(), a, b


def _distinct_clouds(
    pairs: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]], *, normalise: bool
) -> tuple[list[PointCloud], list[Problem]]:
    """The different clouds, of one dtype and padded with zero columns to one width, and the two sides of each pair."""
    devices = {str(side.device) for x, y, _, _ in pairs for side in (x, y)}
    if len(devices) > 1:
        raise ValueError(f"all pairs must be on one device, got {', '.join(sorted(devices))}")
    clouds: list[PointCloud] = []
    seen: dict[tuple[Any, ...], int] = {}
    sides = []
    for k, (x, y, a, b) in enumerate(pairs):
        ends = []
        for name, points, weights in (("x", x, a), ("y", y, b)):
            key = (_identity(points), None if weights is None else _identity(weights))
            if key not in seen:
                seen[key] = len(clouds)
                clouds.append(make_cloud(points, weights, f"{name} of pair {k}", normalise=normalise))
            ends.append(seen[key])
        sides.append((ends[0], ends[1]))
    dtype = reduce(torch.promote_types, (cloud.points.dtype for cloud in clouds))
    width = max(cloud.points.shape[1] for cloud in clouds)
    wide = [torch.nn.functional.pad(c.points.to(dtype), (0, width - c.points.shape[1])) for c in clouds]
    return [replace(cloud, points=points) for cloud, points in zip(clouds, wide, strict=True)], sides


def _identity(values: Tensor) -> tuple[Any, ...]:
    """What two tensors share that are the same data; good while both are alive."""
    return values.data_ptr(), tuple(values.shape), values.stride(), values.dtype


def own_frames(clouds: list[PointCloud], sides: Sequence[Problem]) -> list[PointCloud]:
    """The clouds, each group that is compared within itself moved to its own mean where the groups lie far apart.

    A cost is centred once, and points far from the centre lose digits: clouds that are never compared need no common
    origin. Groups no further apart than they are wide stay as they are (and on their 8-bit grid).
    """
    group = _groups(len(clouds), sides)
    means = torch.stack([mean_of(cloud) for cloud in clouds])
    index = torch.tensor(group, device=means.device)
    counts = torch.bincount(index, minlength=len(clouds)).clamp_min(1)[:, None]
    centres = torch.zeros_like(means).index_add_(0, index, means) / counts
    own = centres[index]
    width = torch.stack([_radius(cloud, own[k]) for k, cloud in enumerate(clouds)]).amax()
    apart = (own - means.mean(0)).square().sum(1).amax()
    if bool(apart <= width):
        return clouds
    return [
        replace(cloud, points=(cloud.points.to(torch.float64) - own[k]).to(cloud.points.dtype))
        for k, cloud in enumerate(clouds)
    ]


def _radius(cloud: PointCloud, center: Tensor) -> Tensor:
    """Largest squared distance of a point with weight from the center."""
    return torch.where(cloud.weights != 0, (cloud.points - center).square().sum(1), 0.0).amax()


def _groups(count: int, sides: Sequence[Problem]) -> list[int]:
    """The connected component of each cloud in the graph of pairs, named by its first cloud."""
    root = list(range(count))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for i, j in sides:
        low, high = sorted((find(i), find(j)))
        root[high] = low
    return [find(i) for i in range(count)]


def _report(found: list[Divergence], options: SolverOptions, *, strict: bool) -> None:
    """Say loudly which pairs missed the tolerance."""
    missed = [k for k, result in enumerate(found) if not result.converged]
    if not missed:
        return
    worst = max(missed, key=lambda k: found[k].marginal_error)
    message = (
        f"{len(missed)} of {len(found)} pairs are not converged, the worst is pair {worst} after "
        f"{found[worst].iterations} iterations: {unmet(found[worst].marginal_error, found[worst].error, options)}; "
        f"raise max_iterations (now {options.max_iterations}) or epsilon, or loosen tol"
    )
    not_converged(message, strict=strict)
