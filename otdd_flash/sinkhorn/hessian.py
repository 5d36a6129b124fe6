"""The Hessian of a divergence in the points of one side, a linear operator: ``H @ v``, its spectrum, ``solve``."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_count, check_number, check_tensor, check_type
from otdd_flash.errors import NotConvergedWarning, warn
from otdd_flash.ops import Memory
from otdd_flash.sinkhorn.divergence import Divergence
from otdd_flash.sinkhorn.implicit import DEFAULT_IMPLICIT, Derivatives, Fields, ImplicitOptions, Record, Wanted
from otdd_flash.sinkhorn.krylov import LinearSolution, Spectrum, conjugate_gradients, lanczos
from otdd_flash.torch_mode import plain_torch_methods

_DENSE_LIMIT = 4096


@plain_torch_methods
class SinkhornHessian:
    """``H = d^2 S / dx^2`` of a solved divergence, ``(n d, n d)``, symmetric, in general indefinite.

    A product takes one pass of the plan with ``d`` columns, one linear system on the potentials and one pass of the
    plan's derivative; memory is O((n + m) d). Where the divergence was solved with stored costs the plan is stored too.

    Args:
        found: a converged divergence, balanced or not, labelled or not, debiased or not. Its marginal error carries
            over to the products: solve to a tolerance well below the accuracy wanted.
        side: whose points move, ``x`` or ``y``.
        memory: ``streamed``, ``cached`` (plans as matrices), or ``auto`` for what the solve had.
        options: accuracy of the linear system.

    >>> import torch
    >>> from otdd_flash.sinkhorn import sinkhorn_divergence
    >>> x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    >>> H = SinkhornHessian(sinkhorn_divergence(x, y, epsilon=0.1))  # of |x - y|^2
    >>> (H @ torch.ones(2, dtype=torch.float64)).tolist()
    [2.0, 2.0]
    """

    def __init__(
        self,
        found: Divergence,
        *,
        side: Literal["x", "y"] = "x",
        memory: Memory = "auto",
        options: ImplicitOptions = DEFAULT_IMPLICIT,
    ) -> None:
        check_type("found", found, Divergence, "give the result of otdd_flash.sinkhorn_divergence(x, y, ...)")
        check_choice("side", side, ("x", "y"))
        check_choice("memory", memory, get_args(Memory))
        check_type("options", options, ImplicitOptions)
        self.side = side
        self.points: tuple[int, int] = tuple(found.cost.clouds[0 if side == "x" else 1].points.shape)  # type: ignore[assignment]
        stored = memory == "cached" or (memory == "auto" and found.info.memory == "cached")
        self._derivatives = Derivatives(found, stored=stored, options=options)
        self._wanted = Wanted(**{side: True})

    @property
    def shape(self) -> tuple[int, int]:
        """``(n d, n d)``."""
        size = self.points[0] * self.points[1]
        return size, size

    @property
    def device(self) -> torch.device:
        """Where the divergence was solved."""
        return self._derivatives.found.cost.device

    @property
    def record(self) -> Record:
        """Largest relative residual of the linear systems so far, their products, and whether all converged."""
        return self._derivatives.record

    def __matmul__(self, v: Tensor) -> Tensor:
        """``H v`` for one direction ``(n, d)`` or ``(n d,)``, or several at once ``(n d, s)``; float64, same shape."""
        n, d = self.points
        check_tensor("v", v)
        if not bool(torch.isfinite(v).all()):
            raise ValueError("v holds NaN or infinity")
        if tuple(v.shape) == (n, d):
            directions = v[None]
        elif v.dim() in (1, 2) and v.shape[0] == n * d:
            directions = v.reshape(n * d, -1).T.reshape(-1, n, d)
        else:
            raise ValueError(f"v must be ({n}, {d}), ({n * d},) or ({n * d}, s), got {tuple(v.shape)}")
        along = Fields(**{self.side: directions.to(self.device, torch.float64)})
        before = self.record.converged
        product = getattr(self._derivatives.hessian(along, self._wanted), self.side)
        if before and not self.record.converged:
            warn(
                f"the linear system of the potentials stopped at relative residual {self.record.residual:.1e}: raise "
                "ImplicitOptions.max_iterations, loosen its tol, or raise epsilon",
                NotConvergedWarning,
            )
        return product.reshape(len(directions), n * d).T.reshape(v.shape)

    def dense(self) -> Tensor:
        """``H`` as an ``(n d, n d)`` matrix.

        Raises:
            ValueError: more than 4,096 rows.
        """
        size = self.shape[0]
        if size > _DENSE_LIMIT:
            raise ValueError(f"a dense Hessian of {size} rows is refused; use H @ v, solve() or extreme_eigenvalues()")
        return self @ torch.eye(size, dtype=torch.float64, device=self.device)

    def extreme_eigenvalues(
        self, count: int = 1, *, tol: float = 1e-8, max_steps: int = 300, seed: int = 0, start: Tensor | None = None
    ) -> Spectrum:
        """Both ends of the spectrum by Lanczos; a negative smallest eigenvalue says that ``x`` is no minimum.

        Args:
            count: pairs at either end.
            tol: residual to reach, as a fraction of the spectral radius.
            max_steps: products allowed.
            seed: of the start vector.
            start: ``(n d,)`` or ``(n, d)`` start vector in place of a random one.
        """
        count, max_steps = (check_count(name, c) for name, c in (("count", count), ("max_steps", max_steps)))
        tol, seed = check_number("tol", tol, high=1.0), check_count("seed", seed, least=0)
        if start is None:
            generator = torch.Generator().manual_seed(seed)
            start = torch.randn(self.shape[0], generator=generator, dtype=torch.float64)
        check_tensor("start", start, shapes=[(self.shape[0],), self.points])
        start = start.reshape(-1).to(self.device, torch.float64)
        if not 0 < float(start.norm()) < torch.inf:
            raise ValueError("start must be finite and not zero")
        return lanczos(self.__matmul__, start, count=count, tol=tol, max_steps=max_steps)

    def solve(
        self, right: Tensor, *, tikhonov: float = 0.0, tol: float = 1e-8, max_iterations: int = 500
    ) -> LinearSolution:
        """``(H + tikhonov I) x = right`` by conjugate gradients; ``x`` has the shape of ``right``.

        Args:
            right: ``(n, d)``, ``(n d,)`` or ``(n d, s)``.
            tikhonov: added to every eigenvalue; above ``-lambda_min`` the system is positive definite.
            tol: relative residual to reach.
            max_iterations: products with ``H`` allowed.

        Returns:
            Solution and certificate; ``indefinite`` says that a direction of non-positive curvature was met, and the
            solution is then not to be trusted.
        """
        tikhonov = check_number("tikhonov", tikhonov, closed=True)
        tol, max_iterations = check_number("tol", tol, high=1.0), check_count("max_iterations", max_iterations)
        size = self.shape[0]
        check_tensor("right", right, shapes=[self.points, (size,), (size, None)])
        if not bool(torch.isfinite(right).all()):
            raise ValueError("right holds NaN or infinity")
        flat = right.to(self.device, torch.float64).reshape(self.shape[0], -1)
        found = conjugate_gradients(lambda v: self @ v + tikhonov * v, flat, tol=tol, max_iterations=max_iterations)
        return LinearSolution(
            found.x.reshape(right.shape), found.residual, found.iterations, found.converged, found.indefinite
        )
