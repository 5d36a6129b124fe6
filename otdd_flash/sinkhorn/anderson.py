"""Anderson acceleration of Sinkhorn's fixed point, for a batch of problems, without host synchronisation.

With ``z = (f, g)/eps`` and residuals ``R(z) = (log(a/r), log(b/c))`` the next iterate is

    z + theta R - sum_k alpha_k (dz_k + theta dR_k),      alpha = argmin |R - sum_k alpha_k dR_k|

over the differences of the last passes, in the norm weighted by the masses (Walker and Ni 2011). On the linearised
problem this is a Krylov method: it finds the few slow directions of a Sinkhorn iteration itself, where over-relaxation
needs its one parameter tuned. A problem whose error grows forgets its history and takes plain steps for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from otdd_flash.ops.linear import solve_small
from otdd_flash.ops.steps import history_of

if TYPE_CHECKING:
    from otdd_flash.kernels.steps import Vectors

MEMORY = 8  # a power of two: the GPU solver's size
_SYMMETRIC_MIXING = 2.0 / 3.0
_REGULARISATION = 1e-10  # of the Gram matrix, relative to its largest diagonal entry
_GROWTH = 4.0  # times the best error so far that makes a problem forget its history
_PLAIN_STEPS = 4  # taken after that
# An accelerated step is cut to this many epsilons plus so many times the largest residual. Mass that must cross between
# far clusters shows in no residual until the potentials have moved by many epsilons: steps may be long, but not wild.
_FREE = 2.0
_LONGEST = 10.0


class Anderson:
    """History and safeguards of one solve; see the module.

    Args:
        weights: ``(B, N + M)`` float64, those of both sides.
        idle: ``(B, N + M)`` bool, where nothing moves: on the second side of symmetric problems.
        symmetric: ``(B, 1)`` bool; such problems have a first potential only.
    """

    def __init__(self, weights: Tensor, idle: Tensor, symmetric: Tensor) -> None:
        a, batch = weights, len(weights)
        self.root = weights.masked_fill(idle, 0.0).sqrt_()
        self.mixing = torch.where(symmetric, _SYMMETRIC_MIXING, 1.0).to(a)
        shape = (batch, MEMORY, self.root.shape[1])
        self.moves, self.changes = a.new_zeros(shape), a.new_zeros(shape)
        self.gram = a.new_zeros(batch, MEMORY, MEMORY)  # of the changes, weighted
        self.slot = torch.zeros(1, dtype=torch.int64, device=a.device)  # where the next difference goes
        self.last = torch.zeros_like(self.root), torch.zeros_like(self.root)
        self.best = a.new_full((batch, 1), torch.inf)
        self.plain = a.new_full((batch, 1), 1.0)  # plain steps still to take; the first one starts the history
        self.all = self.root, self.mixing
        self.held = torch.arange(batch)  # problems that have a history here, on the host

    def hold(self, problems: Tensor) -> None:
        """Keep histories of ``problems (B',)``, positions in rising order, alone; new ones start without.

        Vectors of the steps that follow are theirs. Not while steps are recorded: all state moves.
        """
        if torch.equal(problems, self.held):
            return
        place = torch.full((len(self.all[0]),), -1)
        place[self.held] = torch.arange(len(self.held))
        place = place[problems]
        fresh = place < 0
        states = {"moves": 0.0, "changes": 0.0, "gram": 0.0, "best": torch.inf, "plain": 1.0}
        for name, start in states.items():
            kept = getattr(self, name)[place.clamp_min(0)]
            kept[fresh] = start
            setattr(self, name, kept)
        self.last = self.last[0][place.clamp_min(0)], self.last[1][place.clamp_min(0)]
        self.root, self.mixing = self.all[0][problems], self.all[1][problems]
        self.held = problems

    def step(self, potentials: Tensor, residual: Tensor, plain: Tensor, error: Tensor, eps: float) -> Tensor:
        """The next move of ``(f, g)`` in epsilons, ``(B, N + M)``.

        All state is updated in place: a step can be recorded into a CUDA graph.

        Args:
            potentials: ``(B, N + M)``, first ones, then second ones.
            residual: full Sinkhorn steps of both, in epsilons.
            plain: the safe step to take without history.
            error: ``(B,)`` marginal error of the potentials.
            eps: epsilon.
        """
        z = potentials / eps
        weighted = self._remember(z, residual)
        self._guard(error[:, None])
        accelerated = self._combine(residual, weighted)
        longest = accelerated.abs().amax(1, keepdim=True)
        limit = _FREE + _LONGEST * residual.abs().amax(1, keepdim=True)
        accelerated = accelerated * (limit / longest).clamp_max(1.0)
        usable = (self.plain <= 0) & longest.isfinite()
        self.plain.sub_(1)
        return torch.where(usable, accelerated, plain)

    def forget(self, problems: Tensor) -> None:
        """Start the histories of some problems ``(B,)`` bool anew."""
        anew = problems[self.held.to(problems.device)][:, None]
        self.best.masked_fill_(anew, torch.inf)
        self.plain.masked_fill_(anew, 1.0)

    def _remember(self, z: Tensor, residual: Tensor) -> Tensor:
        """Take in the latest differences; returns all weighted changes, of whose products only one row is new."""
        for history, last, now in zip((self.moves, self.changes), self.last, (z, residual), strict=True):
            history.index_copy_(1, self.slot, (now - last)[:, None])
            last.copy_(now)
        weighted = self.changes * self.root[:, None]
        row = torch.bmm(weighted.index_select(1, self.slot), weighted.mT)
        self.gram.index_copy_(1, self.slot, row)
        self.gram.index_copy_(2, self.slot, row.mT)
        self.slot.add_(1).remainder_(MEMORY)
        return weighted

    def _guard(self, error: Tensor) -> None:
        grown = ~(error <= _GROWTH * self.best)
        if error.device.type == "cpu" and not bool((grown | (self.plain > 0)).any()):  # no wait there
            torch.minimum(self.best, error, out=self.best)
            return
        self.plain.copy_(torch.where(grown & (self.plain <= 0), float(_PLAIN_STEPS), self.plain))
        forget = (self.plain > 0)[..., None]
        self.moves.masked_fill_(forget, 0.0)
        self.changes.masked_fill_(forget, 0.0)
        self.gram.masked_fill_(forget, 0.0)
        self.best.copy_(torch.where(grown, error, torch.minimum(self.best, error)))

    def _combine(self, residual: Tensor, weighted: Tensor) -> Tensor:
        matrix = self.gram.clone()
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        # an empty slot takes no part
        diagonal.add_(_REGULARISATION * diagonal.amax(1, keepdim=True) + (diagonal == 0))
        right = torch.bmm(weighted, (self.root * residual)[..., None])
        alpha = solve_small(matrix, right[..., 0])[:, None]
        along = torch.bmm(alpha, self.changes)[:, 0].sub_(residual).mul_(self.mixing)
        return torch.bmm(alpha, self.moves)[:, 0].add_(along).neg_()


class FusedAnderson:
    """The same on a GPU, in a few launches.

    Args:
        vectors: kernels of the batch.
        turn: 1.0 where the first plain step of a cross problem is the rows', 0.0 for the columns.
    """

    def __init__(self, vectors: Vectors, turn: float) -> None:
        self.history = history_of(vectors, MEMORY, turn)

    def forget(self, problems: Tensor) -> None:
        """Start the histories of some problems ``(B,)`` bool anew."""
        self.history.forget(problems)

    def advance(
        self, potentials: tuple[Tensor, Tensor], sums: tuple[Tensor, Tensor], error: Tensor, live: Tensor, eps: float
    ) -> None:
        """Move ``(f, g)`` in place.

        Args:
            potentials: ``f (B, N), g (B, M)``.
            sums: marginals ``r, c`` of their plan.
            error: ``(B,)`` marginal error.
            live: ``(B,)`` int32, zero for problems to leave alone.
            eps: epsilon.
        """
        self.history.advance(
            potentials, sums, error, live, epsilon=eps, symmetric_by=_SYMMETRIC_MIXING, growth=_GROWTH,
            plain_steps=float(_PLAIN_STEPS), regularisation=_REGULARISATION, free=_FREE, longer=_LONGEST,
        )  # fmt: skip
