"""Dense float64 oracle of every operation: it reads as the definition and is too slow for anything but tests.

It shares no code with the cost, the operators or the solver, so that agreement means something. Everywhere
``P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps)`` and ``OT_eps = min_P <P, C> + eps KL(P | a b^T)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

LabelCost = Tensor | tuple[Tensor, Tensor, Tensor]


def cost_matrix(x: Tensor, y: Tensor, *, feature_weight: float = 1.0, label_cost: LabelCost | None = None) -> Tensor:
    """``C_ij = w |x_i - y_j|^2 + L_ij``, the squared distance taken from differences.

    Args:
        x: ``(n, d)`` points.
        y: ``(m, d)`` points.
        feature_weight: ``w``.
        label_cost: ``L`` itself ``(n, m)``, or ``(table, rows, columns)`` with ``L_ij = table[rows_i, columns_j]``.

    Returns:
        ``(n, m)`` float64.
    """
    distance = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")
    cost = feature_weight * distance.square()
    if label_cost is None:
        return cost
    if isinstance(label_cost, tuple):
        table, rows, columns = label_cost
        label_cost = table[rows][:, columns]
    return cost + label_cost.double()


def softmin(C: Tensor, potential: Tensor, log_weights: Tensor, eps: float) -> Tensor:
    """``f_i = -eps log sum_j exp(log b_j + (g_j - C_ij)/eps)``; pass ``C.T`` for the other side."""
    return -eps * torch.logsumexp(log_weights + (potential - C) / eps, dim=1)


def plan(C: Tensor, f: Tensor, g: Tensor, a: Tensor, b: Tensor, eps: float) -> Tensor:
    """``P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps)``."""
    return torch.exp(a.log()[:, None] + b.log()[None, :] + (f[:, None] + g[None, :] - C) / eps)


def marginals(C: Tensor, f: Tensor, g: Tensor, a: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Row and column sums ``(P 1, P^T 1)``."""
    P = plan(C, f, g, a, b, eps)
    return P.sum(1), P.sum(0)


def apply_plan(C: Tensor, f: Tensor, g: Tensor, a: Tensor, b: Tensor, eps: float, v: Tensor) -> Tensor:
    """``P v`` for ``v (m, w)``; for ``P^T u`` pass ``C.T`` and swap ``f, g`` and ``a, b``."""
    return plan(C, f, g, a, b, eps) @ v


def sinkhorn(
    C: Tensor, a: Tensor, b: Tensor, eps: float, tol: float = 1e-12, max_iterations: int = 300
) -> tuple[Tensor, Tensor]:
    """Potentials whose plan has marginals ``a, b`` to L1 error ``tol``.

    Epsilon is halved from the largest cost down to ``eps``. At each level a symmetric problem takes damped steps
    ``f <- (f + T f)/2``; any other takes Newton steps on the semi-dual ``g -> <a, f(g)> + <b, g>``.

    Args:
        C: ``(n, m)`` costs.
        a: ``(n,)`` weights that sum to one; zeros allowed.
        b: ``(m,)`` weights that sum to one; zeros allowed.
        eps: regularisation, in units of the cost.
        tol: L1 error of both marginals; sums of n terms carry rounding, so 1e-15 is not reachable.
        max_iterations: at ``eps`` itself.

    Returns:
        ``f (n,), g (m,)`` float64.

    Raises:
        RuntimeError: the error is still above ``tol`` after ``max_iterations``.
    """
    C, a, b = C.double(), a.double(), b.double()
    symmetric = len(a) == len(b) and torch.equal(a, b) and torch.allclose(C, C.T, rtol=1e-13, atol=0)
    level, g = max(float(C.max()), eps), torch.zeros_like(b)
    while True:
        level, target, steps = (level, 1e-2, 20) if level > eps else (eps, tol, max_iterations)
        for _ in range(steps):
            f = g if symmetric else softmin(C, g, b.log(), level)
            r, c = marginals(C, f, g, a, b, level)
            error = float((r - a).abs().sum() + (c - b).abs().sum())
            if error <= target:
                break
            g = (g + softmin(C, g, b.log(), level)) / 2 if symmetric else _newton_step(C, f, g, a, b, level)
        if level == eps:
            break
        level /= 2
    if error > tol:
        raise RuntimeError(f"the oracle stopped at marginal error {error:.2e} > tol = {tol:.0e} (eps = {eps})")
    return f, g


def _newton_step(C: Tensor, f: Tensor, g: Tensor, a: Tensor, b: Tensor, eps: float) -> Tensor:
    """One Newton step of the semi-dual in ``g`` that does not overshoot along its direction; else a half step."""
    P, rows, columns = plan(C, f, g, a, b, eps), a > 0, b > 0
    P, direction = P[rows][:, columns], torch.zeros_like(g)
    c = P.sum(0)
    hessian = (torch.diag(c) - P.T @ (P / P.sum(1, keepdim=True))) / eps  # its kernel: the constants
    ridge = hessian.diagonal().mean()
    hessian += ridge / len(c) + torch.diag(1e-13 * c / eps)
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if not failed:
        direction[columns] = torch.cholesky_solve((b[columns] - c)[:, None], factor)[:, 0]
        slope = float(direction[columns] @ (b[columns] - c))
        for damping in (1.0, 0.5, 0.25, 0.125, 0.03, 0.01):
            trial = g + damping * direction
            _, c_trial = marginals(C, softmin(C, trial, b.log(), eps), trial, a, b, eps)
            if abs(float(direction @ (b - c_trial))) < 0.9 * slope:
                return trial
    return softmin(C.T, f, a.log(), eps)


def ot_value(C: Tensor, a: Tensor, b: Tensor, eps: float, tol: float = 1e-12) -> float:
    """Dual value of ``OT_eps(a, b)``: ``<a, f> + <b, g> - eps (sum P - 1)``."""
    f, g = sinkhorn(C, a, b, eps, tol)
    r, _ = marginals(C, f, g, a.double(), b.double(), eps)
    return float(a.double() @ f + b.double() @ g - eps * (r.sum() - 1))


def divergence(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    eps: float,
    *,
    feature_weight: float = 1.0,
    label_cost: tuple[Tensor, Tensor, Tensor] | None = None,
    tol: float = 1e-12,
) -> float:
    """``S = OT(a, b) - OT(a, a)/2 - OT(b, b)/2``.

    Args:
        x: ``(n, d)`` points.
        y: ``(m, d)`` points.
        a: ``(n,)`` weights that sum to one.
        b: ``(m,)`` weights that sum to one.
        eps: regularisation, in units of the cost.
        feature_weight: factor of the squared distance.
        label_cost: ``(table, labels of x, labels of y)``, both pointing into one symmetric joint table.
        tol: L1 marginal error of each of the three problems.

    Returns:
        The debiased divergence, in units of the cost.
    """
    sides = {"x": (x, a, 1), "y": (y, b, 2)}

    def value(left: str, right: str) -> float:
        (p, weights, row), (q, other, column) = sides[left], sides[right]
        labels = None if label_cost is None else (label_cost[0], label_cost[row], label_cost[column])
        return ot_value(cost_matrix(p, q, feature_weight=feature_weight, label_cost=labels), weights, other, eps, tol)

    return value("x", "y") - value("x", "x") / 2 - value("y", "y") / 2
