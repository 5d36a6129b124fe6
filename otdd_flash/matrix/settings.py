"""What all work items of a matrix share: the options, the one epsilon, and the keys of finished work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from otdd_flash.arguments import settled
from otdd_flash.labels import METHODS, LabelSinkhorn
from otdd_flash.matrix.moments import Moments, reference_class_cost, reference_cost
from otdd_flash.matrix.store import Store, content_key
from otdd_flash.problems import DistanceOptions, Settings

_LABEL_FRACTION = LabelSinkhorn().relative_epsilon


@dataclass(frozen=True)
class MatrixSettings(Settings):
    """Settings with the keys under which finished work is kept."""

    def numbers(self) -> dict[str, Any]:
        """Everything that a transport value depends on besides the data, JSON-safe."""
        names = ("feature_weight", "label_weight", "tol", "max_iterations", "debiased", "reach", "precision", "backend")
        record = {name: getattr(self.options, name) for name in names}
        return {**record, "epsilon": self.epsilon, "labels": self.label_numbers()}

    def label_numbers(self) -> dict[str, Any] | None:
        """Everything that a label table depends on besides the data."""
        if not self.labelled:
            return None
        sinkhorn = self.label_sinkhorn(torch.device("cpu"))
        return {
            "method": method_name(self.options.label_distance),
            **({} if sinkhorn is None else {**sinkhorn.parameters(), "relative_epsilon": None}),
        }

    def label_key(self, fingerprint: str) -> str:
        """Key of one set's own label table."""
        return content_key("labels", fingerprint, self.label_numbers())

    def key(self, *fingerprints: str) -> str:
        """Key of a set's self term, or of a pair's cross term: the same for either order."""
        kind = "self" if len(fingerprints) == 1 else "pair"
        return content_key(kind, *sorted(fingerprints), self.numbers())


def method_name(method: Any) -> str | None:
    """A label distance in a record."""
    return f"callable {getattr(method, '__qualname__', type(method).__name__)}" if callable(method) else method


def make_options(
    options: DistanceOptions | None, overrides: Mapping[str, Any], *, stored: bool, function: str = "pairwise"
) -> DistanceOptions:
    """The options of a matrix or ranking, checked.

    Args:
        options: all together, or ``None`` for the defaults.
        overrides: fields over ``options``.
        stored: whether results are kept in a folder, where they are found by key.
        function: named in messages.

    Raises:
        TypeError: an argument that is no option.
        ValueError: an option that has no meaning for a symmetric matrix.
    """
    chosen = settled(function, options, overrides, DistanceOptions())
    method = chosen.label_distance
    if callable(method):
        if chosen.epsilon is None:
            raise ValueError("a callable label distance needs an absolute epsilon: its scale is not known ahead")
        if stored:
            raise ValueError("a callable label distance has no content key: leave out folder, or name a method")
    elif method is not None and not (isinstance(method, str) and method in METHODS):
        raise ValueError(
            f"label_distance must be one of {', '.join(METHODS)}, a callable or None, got "
            f"{method if isinstance(method, str) else type(method).__name__}: a given table belongs to one pair"
        )
    if chosen.convention is not None:
        raise ValueError(f"{function} gives converged distances alone: leave convention out")
    if chosen.reach_x != chosen.reach_y:
        raise ValueError("reach_x and reach_y must be equal, both sets have self terms: give reach")
    return chosen if chosen.reach_x is None else replace(chosen, reach=chosen.reach_x, reach_x=None, reach_y=None)


def settle(
    options: DistanceOptions, moments: Mapping[str, Moments], store: Store
) -> tuple[MatrixSettings, tuple[str, ...]]:
    """Epsilons for these options, taken from the sets the first time and kept in the store from then on.

    A later run in the same folder with more sets, or with a broken one mended, keeps the epsilon of the first, so that
    its finished pairs stay valid.

    Args:
        options: checked options.
        moments: by fingerprint.
        store: where the choice is kept.

    Returns:
        The settings, and notes where the kept epsilon is not what today's sets would give.
    """
    asked = _asked(options)
    key = content_key("settings", asked)
    ordered = [moments[fingerprint] for fingerprint in sorted(moments)]
    fresh = epsilons(options, ordered, itertools.combinations(ordered, 2))
    kept = store.write_first("settings", key, {"asked": asked, **fresh})
    notes = []
    for name in ("epsilon", "label_epsilon"):
        ours, theirs = fresh[name], kept[name]
        if ours is not None and not math.isclose(ours, theirs, rel_tol=1e-6):
            notes.append(
                f"{name} {theirs:.6g} is kept from the first run in this folder; today's sets alone would give "
                f"{ours:.6g} (a new folder takes that)"
            )
    return MatrixSettings(options, kept["epsilon"], kept["label_epsilon"], kept["reference_cost"]), tuple(notes)


def _asked(options: DistanceOptions) -> dict[str, Any]:
    """What was asked for: options that the epsilons or the data depend on."""
    names = (
        "epsilon", "relative_epsilon", "label_epsilon", "feature_weight", "label_weight", "tol", "max_iterations",
        "debiased", "reach", "precision", "backend", "max_samples", "seed",
    )  # fmt: skip
    record = {name: getattr(options, name) for name in names}
    if options.epsilon is not None:
        record["relative_epsilon"] = None
    return {**record, "label_distance": method_name(options.label_distance)}


def epsilons(
    options: DistanceOptions, moments: Sequence[Moments], pairs: Iterable[tuple[Moments, Moments]]
) -> dict[str, Any]:
    """``epsilon``, ``label_epsilon`` and ``reference_cost`` for these sets and the pairs of them that matter."""
    reference = None
    epsilon = options.epsilon
    if epsilon is None:
        reference = reference_cost(pairs, options)
        epsilon = options.epsilon_for(reference)
    label_epsilon = None
    if options.label_distance == "sinkhorn" and options.label_weight > 0:
        scale = reference_class_cost(moments)
        label_epsilon = options.label_epsilon or (_LABEL_FRACTION * scale if scale > 0 else 1.0)
    return {"epsilon": epsilon, "label_epsilon": label_epsilon, "reference_cost": reference}
