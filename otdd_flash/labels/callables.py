"""A user's own distance between two classes, called once a pair and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.labels.samples import ClassSample

ClassDistance = Callable[..., Any]


def callable_entries(pairs: Sequence[tuple[ClassSample, ClassSample]], distance: ClassDistance) -> Tensor:
    """``(P,)`` float64 squared distances by a user's function of the points, and of the weights where it takes four.

    Args:
        pairs: two classes each.
        distance: ``(points, points)`` or ``(points, points, weights, weights)`` to one number.

    Raises:
        TypeError: another number of parameters than two or four, or a result that is not one real number.
        ValueError: a result that is negative or not finite, or weighted classes and a callable without weights.
    """
    weighted = _takes_weights(distance)
    _check_signature(distance, 4 if weighted else 2)
    if not weighted:
        _refuse_weights({id(sample): sample for pair in pairs for sample in pair}.values())
    values = torch.zeros(len(pairs), dtype=torch.float64)
    for k, (p, q) in enumerate(pairs):
        value = _number(distance(p.points, q.points, *((p.weights, q.weights) if weighted else ())), p, q)
        if not 0 <= value < float("inf"):
            raise ValueError(f"the label distance callable gave {value} for {p.name} and {q.name}, must be >= 0")
        values[k] = value
    return values


def _number(value: Any, p: ClassSample, q: ClassSample) -> float:
    """What a callable gave for two classes, as one real number."""
    complex_valued = isinstance(value, complex) or bool(getattr(getattr(value, "dtype", None), "is_complex", False))
    try:
        if not complex_valued:
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
    raise TypeError(
        f"the label distance callable gave {type(value).__name__} ({got}) for {p.name} and {q.name}: it must return "
        "one real number, the squared distance"
    )


def _takes_weights(distance: ClassDistance) -> bool:
    """Whether the callable has four positional parameters without a default."""
    try:
        parameters = inspect.signature(distance).parameters.values()
    except ValueError:  # a builtin without a signature
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 4


def _check_signature(distance: ClassDistance, count: int) -> None:
    """Refuse a callable that cannot be called with ``count`` positional arguments."""
    try:
        inspect.signature(distance).bind(*range(count))
    except ValueError:  # a builtin without a signature
        return
    except TypeError as error:
        raise TypeError(
            "the label distance callable must take (points, points), or (points, points, weights, weights), of two "
            f"classes, but has the signature {inspect.signature(distance)}: {error}"
        ) from error


def _refuse_weights(classes: Iterable[ClassSample]) -> None:
    """Refuse what a callable of two parameters would ignore."""
    for sample in classes:
        if float(sample.weights.max() - sample.weights.min()) > 1e-9 * float(sample.weights.max()):
            raise ValueError(
                f"class {sample.name} has unequal weights, which a callable of two parameters would ignore: give one "
                "of four, (points, points, weights, weights)"
            )
