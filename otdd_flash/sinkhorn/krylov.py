"""Krylov methods for operators that are only known by their products: conjugate gradients and Lanczos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MatVec = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """Solution of ``A x = b`` for several right-hand sides at once, with its certificate.

    Args:
        x: ``(n, s)``.
        residual: largest ``|b - A x| / |b|`` over the right-hand sides, recomputed from ``x`` itself.
        iterations: products with ``A`` that were needed.
        converged: whether ``residual`` met the tolerance.
        indefinite: whether a direction of non-positive curvature was met; its right-hand side stopped there.
    """

    x: Tensor
    residual: float
    iterations: int
    converged: bool
    indefinite: bool


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Both ends of the spectrum of a symmetric operator.

    Args:
        smallest: ``(count,)`` ascending.
        smallest_vectors: ``(n, count)`` orthonormal.
        largest: ``(count,)`` descending.
        largest_vectors: ``(n, count)``.
        residual: largest ``|A v - lambda v|`` over the pairs, as a fraction of the spectral radius.
        steps: products with the operator.
        converged: whether ``residual`` met the tolerance.
    """

    smallest: Tensor
    smallest_vectors: Tensor
    largest: Tensor
    largest_vectors: Tensor
    residual: float
    steps: int
    converged: bool


def conjugate_gradients(
    matvec: MatVec,
    b: Tensor,
    *,
    diagonal: Tensor | None = None,
    kernel: Tensor | None = None,
    tol: float = 1e-10,
    max_iterations: int = 500,
    check_every: int = 1,
) -> LinearSolution:
    """Preconditioned conjugate gradients for a symmetric positive semi-definite operator (Hestenes and Stiefel 1952).

    Args:
        matvec: ``(n, s) -> (n, s)``.
        b: ``(n, s)`` right-hand sides; each has its own step lengths and stops on its own.
        diagonal: ``(n,)`` positive preconditioner, divided by.
        kernel: ``(n,)`` vector with ``A kernel = 0``, kept out of the residuals against rounding.
        tol: relative residual to reach, in the norm of the preconditioner.
        max_iterations: products allowed.
        check_every: products between looks at the residual from the host.
    """
    inverse = torch.ones_like(b[:, 0]) if diagonal is None else 1.0 / diagonal
    clean = _projector(kernel)
    b = clean(b)
    x, r = torch.zeros_like(b), b.clone()
    z = inverse[:, None] * r
    p, rho = z.clone(), (r * z).sum(0)
    goal = rho * tol**2
    live, indefinite = rho > goal, torch.zeros_like(rho, dtype=torch.bool)
    iterations = 0
    for step in range(max_iterations):
        if step % check_every == 0 and not bool(live.any()):
            break
        q = matvec(p)
        curvature = (p * q).sum(0)
        bad = live & (curvature <= 0)
        indefinite, live = indefinite | bad, live & ~bad
        alpha = torch.where(live, rho / torch.where(live, curvature, 1.0), 0.0)
        x, r = x + alpha * p, clean(r - alpha * q)
        z = inverse[:, None] * r
        fresh = (r * z).sum(0)
        beta = torch.where(live, fresh / torch.where(live, rho, 1.0), 0.0)
        p, rho = z + beta * p, torch.where(live, fresh, rho)
        live = live & (rho > goal)
        iterations += 1
    error = clean(b - matvec(x))
    scale = (b * inverse[:, None] * b).sum(0).clamp_min(torch.finfo(b.dtype).tiny)
    residual = float(((error * inverse[:, None] * error).sum(0) / scale).max().sqrt())
    hit = bool(indefinite.any())
    return LinearSolution(x, residual, iterations, not bool(live.any()) and not hit, hit)


def lanczos(
    matvec: MatVec, start: Tensor, *, count: int = 1, tol: float = 1e-8, max_steps: int = 300, check_every: int = 5
) -> Spectrum:
    """Extreme eigenpairs of a symmetric operator by Lanczos with full reorthogonalisation.

    Args:
        matvec: ``(n,) -> (n,)``.
        start: ``(n,)`` start vector, not zero; in exact arithmetic only eigenspaces that it touches are found.
        count: pairs at either end.
        tol: residual to reach, as a fraction of the spectral radius.
        max_steps: products allowed, and vectors of length ``n`` kept.
        check_every: products between looks at the residuals.

    Raises:
        ValueError: more pairs than the operator has.

    Source: Golub and Van Loan (2013), section 10.1 and algorithm 10.3.1 (twice the Gram-Schmidt step).
    """
    n = start.numel()
    if not 1 <= count <= n:
        raise ValueError(f"count must lie in 1..{n} for an operator of size {n}, got {count}")
    limit = min(n, max(max_steps, 2 * count))
    basis = torch.zeros(limit, n, dtype=start.dtype, device=start.device)
    diagonal, off = torch.zeros(limit, dtype=torch.float64), torch.zeros(limit, dtype=torch.float64)
    basis[0] = start / start.norm()
    for k in range(limit):
        w = matvec(basis[k])
        diagonal[k] = w @ basis[k]
        for _ in range(2):
            w = w - basis[: k + 1].T @ (basis[: k + 1] @ w)
        off[k] = w.norm()
        last = k + 1 == limit
        if last or (k + 1 >= count and (k + 1) % check_every == 0):
            values, vectors = torch.linalg.eigh(_tridiagonal(diagonal[: k + 1], off[:k]))
            radius = float(values.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
            ends = torch.cat([vectors[-1, :count], vectors[-1, -count:]]).abs()
            residual = 0.0 if k + 1 == n else float(off[k] * ends.max()) / radius
            if last or residual <= tol:
                ritz = (basis[: k + 1].T @ vectors.to(basis)).to(start)
                order = torch.arange(k, k - count, -1)
                return Spectrum(
                    values[:count], ritz[:, :count], values[order], ritz[:, order], residual, k + 1, residual <= tol
                )
        if float(off[k]) <= 1e-14 * float(diagonal[: k + 1].abs().max() + off[:k].sum()):
            off[k] = 0.0  # an invariant subspace: go on in its complement
            w = _fresh(basis[: k + 1])
        basis[k + 1] = w / w.norm()
    raise AssertionError("the last step returns")


def _tridiagonal(diagonal: Tensor, off: Tensor) -> Tensor:
    return torch.diag(diagonal) + torch.diag(off, 1) + torch.diag(off, -1)


def _fresh(basis: Tensor) -> Tensor:
    """A reproducible vector orthogonal to the rows of ``basis``."""
    generator = torch.Generator().manual_seed(basis.shape[0])
    w = torch.randn(basis.shape[1], generator=generator, dtype=torch.float64).to(basis)
    for _ in range(2):
        w = w - basis.T @ (basis @ w)
    return w


def _projector(kernel: Tensor | None) -> MatVec:
    """Orthogonal projection away from ``kernel``."""
    if kernel is None:
        return lambda r: r
    unit = kernel / kernel.norm()
    return lambda r: r - unit[:, None] * (unit @ r)
