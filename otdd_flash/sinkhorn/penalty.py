"""Penalties on the marginals of a batch of problems: what makes optimal transport unbalanced.

    OT(a, b) = min_P <P, C> + eps KL(P | a b^T) + rho_x KL(P 1 | a) + rho_y KL(P^T 1 | b)
             = max_fg -rho_x <a, e^{-f/rho_x} - 1> - rho_y <b, e^{-g/rho_y} - 1> - eps <a b^T, e^{(f + g - C)/eps} - 1>

(Sejourne et al. 2019, arXiv 1910.12958, with KL(p | q) = sum p log(p/q) - p + q). At the solution
``P 1 = a e^{-f/rho_x}``, and a Sinkhorn step is the balanced one times ``1 / (1 + eps/rho)``. ``rho = inf`` is a hard
constraint; written with ``1/rho`` the balanced formulas are the case zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Penalty:
    """The KL penalty on one marginal of each problem of a batch.

    Args:
        strengths: ``rho`` of each problem, in units of the cost; ``None`` for a hard constraint.
        device: where the potentials live.
    """

    def __init__(self, strengths: list[float | None], device: torch.device) -> None:
        inverse = [0.0 if rho is None else 1.0 / rho for rho in strengths]
        self.hard = not any(inverse)
        self.inverse = torch.tensor(inverse, dtype=torch.float64, device=device)[:, None]

    def damping(self, epsilon: float) -> Tensor:
        """``1 / (1 + eps/rho)`` of each problem, ``(B, 1)``."""
        return 1.0 / (1.0 + epsilon * self.inverse)

    def step(self, potential: Tensor, weights: Tensor, marginal: Tensor, epsilon: float) -> Tensor:
        """Full Sinkhorn step of one potential in epsilons; zero where the weight is zero or the sum is lost."""
        step = (weights / marginal).log_()
        if not self.hard:
            step = self.damping(epsilon) * (step - potential * self.inverse)
        return step.nan_to_num_(0.0, 0.0, 0.0)

    def target(self, weights: Tensor, potential: Tensor) -> Tensor:
        """The marginal that the plan has at the solution, ``a e^{-f/rho}``."""
        return weights if self.hard else weights * (-potential * self.inverse).exp()

    def dual(self, weights: Tensor, potential: Tensor) -> Tensor:
        """The dual's term of one marginal, ``(B,)``: ``<a, f>`` or ``rho <a, 1 - e^{-f/rho}>``."""
        linear = (weights * potential).sum(1)
        if self.hard:
            return linear
        bent = -(weights * torch.expm1(-potential * self.inverse)).sum(1)
        inverse = self.inverse[:, 0]
        return torch.where(inverse > 0, bent / inverse, linear)

    def primal(self, marginal: Tensor, weights: Tensor) -> Tensor:
        """``rho KL(r | a)`` of each problem, ``(B,)``; zero for a hard constraint."""
        if self.hard:
            return torch.zeros_like(marginal[:, 0])
        ratio = torch.where(weights > 0, marginal / weights, 1.0)
        divergence = (torch.xlogy(marginal, ratio) - marginal + weights).sum(1)
        inverse = self.inverse[:, 0]
        return torch.where(inverse > 0, divergence / inverse, 0.0)


def best_shift(a: Tensor, b: Tensor, f: Tensor, g: Tensor, rows: Penalty, columns: Penalty) -> Tensor:
    """``(B, 1)`` constant ``t`` for which ``(f + t, g - t)``, the same plan, has the largest dual value.

    Alternating steps find it only at the rate ``1 / (1 + eps/rho)^2``; here it is exact (Sejourne et al. 2022,
    arXiv 2201.00730, proposition 2). Zero where both constraints are hard.
    """
    stiffness = rows.inverse + columns.inverse
    log_masses = [
        torch.logsumexp(weights.log() - potential * penalty.inverse, 1, keepdim=True)
        for weights, potential, penalty in ((a, f, rows), (b, g, columns))
    ]
    return torch.where(stiffness > 0, (log_masses[0] - log_masses[1]) / stiffness, 0.0)
