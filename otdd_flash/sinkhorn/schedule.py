"""Epsilon annealing: from the largest cost down to the target."""

from __future__ import annotations

import math


def annealing(largest: float, epsilon: float, scaling: float) -> list[float]:
    """Epsilons above the target, in falling order: ``epsilon / scaling^(2k)``, the first no smaller than ``largest``.

    They are counted from the target, so that problems of one epsilon share their last steps whatever their costs are.

    Args:
        largest: an upper bound of the cost, where the plan is all but independent.
        epsilon: the target, not part of the list.
        scaling: factor of ``sqrt(epsilon)`` per step, in ``(0, 1)`` (as GeomLoss counts it).

    >>> annealing(16.0, 1.0, 0.5)
    [16.0, 4.0]
    """
    if largest <= epsilon:
        return []
    ratio = scaling**2
    steps = math.ceil(math.log(epsilon / largest) / math.log(ratio) - 1e-9)
    return [epsilon / ratio**k for k in range(steps, 0, -1)]
