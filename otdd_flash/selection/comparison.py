"""Many sets against one target, on all samples and on halves of them, in batches of problems."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.cost import weighted_mean
from otdd_flash.problems import (
    CLASSES,
    Frames,
    Settings,
    Shape,
    SolvedPairs,
    batches,
    score_limit,
    sides_of,
    solve_pairs,
)
from otdd_flash.selection.ranking import RankedSet
from otdd_flash.sinkhorn.terms import Solved, Total, total
from otdd_flash.types import LabeledDataset

Pair = tuple[int, int]
_GOAL = 0  # position of the target, before all candidates


@dataclass(frozen=True, eq=False)
class Comparison:
    """A target and its candidates, ready to be compared.

    Args:
        sets: the target first.
        frames: of the sets; halves have those of the whole.
        settings: options and epsilons; the options' seed is that of the halves.
    """

    sets: tuple[LabeledDataset, ...]
    frames: Frames
    settings: Settings

    @classmethod
    def of(cls, goal: LabeledDataset, candidates: Sequence[LabeledDataset], settings: Settings) -> Comparison:
        """Of placed sets of one width."""
        sets = (goal, *candidates)
        return cls(sets, Frames.of({k: _mean_and_spread(data) for k, data in enumerate(sets)}), settings)

    def whole(self, step: Callable[[], None]) -> list[RankedSet]:
        """The candidates on all samples; their places and intervals come later."""
        values: dict[Pair, Solved] = {}
        couplings: dict[int, Tensor] = {}
        keys = range(len(self.sets))
        for batch in self._solved(self.sets, keys, [(i, _GOAL) for i in keys[1:]]):
            values |= zip(batch.pairs, batch.values, strict=True)
            for k, (i, j) in enumerate(batch.pairs):
                if i != j:
                    couplings[i] = batch.plan(k).class_coupling(self.sets[i].y, self.sets[_GOAL].y).cpu()
                    step()
        return [_ranked(self.sets[i], _total(values, i, _GOAL), couplings[i], same=self._same(i)) for i in keys[1:]]

    def halves(self, replicates: int, step: Callable[[], None]) -> Tensor:
        """``(replicates, k)`` values of halves of all sets; a set that is the target itself stays at zero."""
        out = torch.zeros(replicates, len(self.sets) - 1, dtype=torch.float64)
        drawn = [i for i in range(1, len(self.sets)) if not self._same(i)]
        keys = [_GOAL, *drawn]
        for group in self._groups(replicates, keys) if drawn else ():
            sets = [self._half(i, b) for b in group for i in keys]
            crosses = [(start + k, start) for start in range(0, len(sets), len(keys)) for k in range(1, len(keys))]
            values: dict[Pair, Solved] = {}
            for batch in self._solved(sets, keys * len(group), crosses):
                values |= zip(batch.pairs, batch.values, strict=True)
            found = torch.tensor([_total(values, *cross).value for cross in crosses], dtype=torch.float64)
            out[group.start : group.stop, torch.tensor(drawn) - 1] = found.view(len(group), -1)
            for _ in range(len(group) * (len(self.sets) - 1)):
                step()
        return out

    def _same(self, i: int) -> bool:
        """Whether a candidate's debiased distance is zero to the last bit."""
        return self.settings.options.debiased and self.sets[i].fingerprint == self.sets[_GOAL].fingerprint

    def _groups(self, replicates: int, keys: Sequence[int]) -> Iterator[range]:
        """Replicates whose halves are solved together."""
        sizes = [self.sets[k].n // 2 for k in keys]
        scores = sizes[0] * sum(sizes[1:]) + self.settings.options.debiased * sum(size**2 for size in sizes)
        classes = sum(self.sets[k].num_classes for k in keys)
        together = max(1, min(self._limit // max(scores, 1), CLASSES // classes))
        for start in range(0, replicates, together):
            yield range(start, min(start + together, replicates))

    @property
    def _limit(self) -> int:
        return score_limit(self.settings.options, self.sets[_GOAL].x.device)

    def _solved(
        self, datasets: Sequence[LabeledDataset], keys: Sequence[int], crosses: Sequence[Pair]
    ) -> Iterator[SolvedPairs]:
        """The cross problems and, where it is debiased, the self problems, in batches as large as fit.

        Args:
            datasets: sets or halves.
            keys: of the set that each is or is a half of.
            crosses: positions in ``datasets``.
        """
        sides = sides_of(datasets, self.settings)
        shapes = {k: Shape(s.n, s.num_classes, self.frames.frame[keys[k]]) for k, s in enumerate(datasets)}
        selves = [(k, k) for k in range(len(datasets))] if self.settings.options.debiased else []
        known: dict[int, float] = {}
        for part in batches(shapes, [*selves, *crosses], self._limit):
            origin = self.frames.origin(*(keys[k] for k in part[0]))
            found = solve_pairs(sides, part, self.settings, origin=origin, selves=known)
            known |= {i: value.dual for (i, j), value in zip(part, found.values, strict=True) if i == j}
            yield found

    def _half(self, i: int, replicate: int) -> LabeledDataset:
        """Half of the rows, drawn without replacement by seed, replicate and role."""
        dataset, role = self.sets[i], "target" if i == _GOAL else f"candidate {i - 1}"
        generator = torch.Generator().manual_seed(
            zlib.crc32(f"{self.settings.options.seed}/{replicate}/{role}".encode())
        )
        rows = torch.randperm(dataset.n, generator=generator)[: dataset.n // 2].sort().values
        return dataset.subset(rows)


def _mean_and_spread(dataset: LabeledDataset) -> tuple[Tensor, float]:
    """Mean of the features and mean squared distance from it."""
    weights = dataset.normalised_weights
    mean = weighted_mean(dataset.x, weights)
    squares = (dataset.x.to(torch.float64) - mean).square().sum(1)
    return mean.cpu(), float(weights @ squares)


def _total(values: dict[Pair, Solved], i: int, j: int) -> Total:
    """The value of a pair from the solved problems, debiased where the self problems are among them."""
    return total([values[pair] for pair in ((i, j), (i, i), (j, j)) if pair in values])


def _ranked(dataset: LabeledDataset, found: Total, coupling: Tensor, *, same: bool) -> RankedSet:
    """One candidate; its place and its intervals come later."""
    value, error = (0.0, 0.0) if same else (found.value, found.error)
    return RankedSet(
        name=dataset.name, value=value, root=math.sqrt(max(value, 0.0)), low=None, high=None, std=None, bias=None,
        p_next=None, certain=None, converged=found.converged, marginal_error=found.marginal_error, error=error,
        n=dataset.n, class_names=dataset.class_names, coupling=coupling,
    )  # fmt: skip
