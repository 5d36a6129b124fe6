"""What functions ask of the data sets and the options that they are given."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor

from otdd_flash.checks import check_type, shown
from otdd_flash.types import LabeledDataset

Options = TypeVar("Options")

_HOW_TO_LOAD = (
    "use otdd_flash.from_arrays(X, y), otdd_flash.from_torch, otdd_flash.from_huggingface or otdd_flash.load; texts "
    "need an embedder first (otdd_flash.data.features.Features)"
)


def check_sides(**sides: Any) -> None:
    """Refuse what is no labelled data set, by the name of its argument.

    Raises:
        TypeError: another type; the message says how to make one.
    """
    for name, value in sides.items():
        if not isinstance(value, LabeledDataset):
            raise TypeError(f"{name} must be a LabeledDataset, got {shown(value)}: {_HOW_TO_LOAD}")


def check_datasets(name: str, value: Any) -> list[LabeledDataset]:
    """The non-empty sequence of data sets that ``value`` is.

    Raises:
        TypeError: no sequence, or an entry of another type.
        ValueError: none at all.
    """
    if isinstance(value, LabeledDataset | str | bytes | Mapping | Tensor) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of LabeledDataset, got {shown(value)}")
    if not value:
        raise ValueError(f"{name} must hold at least one data set, got none")
    for i, entry in enumerate(value):
        check_sides(**{f"{name}[{i}]": entry})
    return list(value)


def settled(
    function: str, options: Any, overrides: Mapping[str, Any], default: Options, *, name: str = "options"
) -> Options:
    """``options`` with single fields over them; ``default`` where there are none.

    Args:
        function: named in messages.
        options: an instance of the default's class, or ``None``.
        overrides: fields by name.
        default: in place of ``None``.
        name: of the argument ``options``.

    Raises:
        TypeError: options of another type, or a field that the class does not have; near names are suggested.
    """
    kind = type(default)
    check_type(name, options, kind, f"give {kind.__name__}(...), or its fields as arguments", optional=True)
    check_known(function, overrides, [field.name for field in fields(default)])  # type: ignore[arg-type]
    return replace(default if options is None else options, **overrides)  # type: ignore[type-var]


def check_known(function: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse arguments that a function does not have.

    Raises:
        TypeError: the first such; a near name is suggested.
    """
    for unknown in given:
        if unknown not in known:
            near = difflib.get_close_matches(unknown, known, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise TypeError(f"{function} has no argument {unknown}{meant}; besides its own it takes {', '.join(known)}")
