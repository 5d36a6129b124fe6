"""The result of a ranking: candidates in order, with intervals, class matching and what a screen saw of the rest."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.matrix.result import Failure
from otdd_flash.screening import Screen


@dataclass(frozen=True, eq=False)
class RankedSet:
    """One candidate at its place.

    Args:
        name: of the candidate.
        value: squared divergence to the target, in units of the cost.
        root: its square root.
        low: lower end of the interval of the value.
        high: upper end.
        std: standard deviation of the value from sampling both sets.
        bias: how much too large the value is for these sample sizes; the interval has it subtracted.
        p_next: two-sided p-value of the difference to the next candidate; ``None`` for the last.
        certain: whether that difference is significant at the ranking's level; ``None`` for the last or without
            replicates.
        converged: every problem of the value met its tolerance.
        marginal_error: the worst of them.
        error: stated absolute error of the value.
        n: samples.
        class_names: of the candidate.
        coupling: ``(c, c')`` mass that the plan sends from each class of the candidate to each class of the target.
        screened: squared screening distance, where candidates were screened first.
    """

    name: str
    value: float
    root: float
    low: float | None
    high: float | None
    std: float | None
    bias: float | None
    p_next: float | None
    certain: bool | None
    converged: bool
    marginal_error: float
    error: float
    n: int
    class_names: tuple[str, ...]
    coupling: Tensor = field(repr=False)
    screened: float | None = None


@dataclass(frozen=True)
class RankScreening:
    """What was screened before the ranking.

    Args:
        screen: how.
        values: squared screening distance of every candidate by name, nearest first; on another scale than the full
            one.
        refined: names of those that got the full distance.
        near_ties: how many of them lie past ``screen.keep``, within the margin of the cut.
        ties_left: how many more would have been within the margin.
        rank_correlation: Spearman's, of screening and full distance over the refined; ``None`` below three.
        seconds: that screening took.
    """

    screen: Screen
    values: dict[str, float]
    refined: tuple[str, ...]
    near_ties: int
    ties_left: int
    rank_correlation: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        finite = {name: value if math.isfinite(value) else None for name, value in self.values.items()}
        return {**asdict(self), "refined": list(self.refined), "values": finite}


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates from the nearest to the farthest.

    Args:
        candidates: in order; of screened ones those that got the full distance.
        target: name of the target.
        target_classes: its class names.
        level: of intervals and tests.
        bootstrap: number of half-sample replicates.
        epsilon: of every problem, in units of the cost.
        seed: of the draws.
        failures: candidates that could not be compared.
        options: of the distances.
        seconds: wall time.
        screening: where candidates were screened first: what was seen of all of them.
    """

    candidates: tuple[RankedSet, ...]
    target: str
    target_classes: tuple[str, ...]
    level: float
    bootstrap: int
    epsilon: float
    seed: int
    failures: tuple[Failure, ...]
    options: dict[str, Any] = field(repr=False)
    seconds: float = 0.0
    screening: RankScreening | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Candidates from the nearest to the farthest."""
        return tuple(candidate.name for candidate in self.candidates)

    @property
    def order(self) -> tuple[str, ...]:
        """All that could be compared: the ranked ones, then the others as the screen has them."""
        rest = () if self.screening is None else (n for n in self.screening.values if n not in self.screening.refined)
        return (*self.names, *rest)

    def __getitem__(self, name: str) -> RankedSet:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        if self.screening is not None and name in self.screening.values:
            raise KeyError(f"{name!r} was screened out: raise screen.keep; ranked are {list(self.names)}")
        raise KeyError(f"{name!r} is not ranked; there are {list(self.names)}")

    def matching(self, name: str) -> list[dict[str, Any]]:
        """For each class of the target, the class of candidate ``name`` that feeds it most, and with what share.

        ``share`` is the fraction of the target class that comes from ``source``; ``sent`` the fraction of ``source``
        that goes there.
        """
        candidate = self[name]
        shares = candidate.coupling / candidate.coupling.sum(0, keepdim=True)
        sent = candidate.coupling / candidate.coupling.sum(1, keepdim=True)
        best = shares.argmax(0).tolist()
        return [
            {
                "target": target, "source": candidate.class_names[i], "share": float(shares[i, j]),
                "sent": float(sent[i, j]),
            }
            for j, (target, i) in enumerate(zip(self.target_classes, best, strict=True))
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's own types."""
        ranked = [
            {**{k: v for k, v in vars(c).items() if k not in ("coupling", "class_names")},
             "class_names": list(c.class_names), "coupling": c.coupling.tolist(), "matching": self.matching(c.name)}
            for c in self.candidates
        ]  # fmt: skip
        return {
            "target": self.target, "target_classes": list(self.target_classes), "candidates": ranked,
            "level": self.level, "bootstrap": self.bootstrap, "method": "half-samples of both sets, paired by target",
            "epsilon": self.epsilon, "seed": self.seed, "options": self.options, "seconds": self.seconds,
            "failures": [{**asdict(failure), "names": list(failure.names)} for failure in self.failures],
            "screening": None if self.screening is None else self.screening.to_dict(),
        }  # fmt: skip

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_dict`."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        return path
