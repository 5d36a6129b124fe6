"""Checks of arguments, one home for all functions; each names the argument, what was got and what would do."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from numbers import Integral, Number, Rational, Real
from typing import Any

import torch
from torch import Tensor

_MOST = 2**63 - 1  # what torch, numpy and random all take as a count or a seed
_SHOWN = 80  # letters of a value in a message
_PLAIN = (str, bytes, Number, list, tuple, dict, set, type(None), torch.device, torch.dtype, torch.Tensor)


def check_number(
    name: str, value: Any, *, low: float = 0.0, high: float = math.inf, optional: bool = False, closed: bool = False
) -> Any:
    """``value`` as a plain float; refuses what is not a number in ``(low, high)``, or in ``[low, high)`` if ``closed``.

    Raises:
        TypeError: not a real number (a bool is none).
        ValueError: out of the range, or not finite.
    """
    if value is None and optional:
        return None
    if not _is_real(value):
        raise TypeError(f"{name} must be a number{' or None' if optional else ''}, got {shown(value)}")
    number = _float(value)
    if not (math.isfinite(number) and number < high and (low < number or (closed and number == low))):
        raise ValueError(f"{name} must be finite and {_range(low, high, closed)}, got {shown(value)}")
    return number


def check_count(name: str, value: Any, *, optional: bool = False, least: int = 1, most: int = _MOST) -> Any:
    """``value`` as a plain int; refuses what is not a whole number from ``least`` to ``most``.

    Raises:
        TypeError: not an integer.
        ValueError: too small or too large.
    """
    if value is None and optional:
        return None
    if not _is_integer(value):
        raise TypeError(f"{name} must be an integer{' or None' if optional else ''}, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value!r}")
    return int(value)


def check_fields(options: Any, check: Callable[..., Any], *names: str, of: str = "", **limits: Any) -> None:
    """Put fields of a dataclass, frozen or not, through a check that gives plain numbers; ``of`` leads their names."""
    for name in names:
        object.__setattr__(options, name, check(of + name, getattr(options, name), **limits))


def check_share(name: str, value: Any) -> Any:
    """``value`` as a plain number; refuses what is neither a positive count nor a fraction in ``(0, 1)``.

    Raises:
        TypeError: not a number.
        ValueError: another number.
    """
    if not _is_real(value):
        raise TypeError(f"{name} must be a positive count or a fraction in (0, 1), got {shown(value)}")
    if not (0 < value < 1 or (_is_integer(value) and 1 <= value <= _MOST)):
        raise ValueError(f"{name} must be a positive count or a fraction in (0, 1), got {shown(value)}")
    return int(value) if value >= 1 else float(value)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is not a bool: the string ``"False"`` counts as true everywhere else.

    Raises:
        TypeError: not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse what is none of the ``known`` words.

    Raises:
        ValueError: another value.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(value)}")


def check_text(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse what is not a string.

    Raises:
        TypeError: another type.
    """
    if not (isinstance(value, str) or (value is None and optional)):
        raise TypeError(f"{name} must be a string{' or None' if optional else ''}, got {shown(value)}")


def check_path(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse what names no file or folder.

    Raises:
        TypeError: neither a string nor a path.
        ValueError: a path that is empty or holds a zero byte.
    """
    if value is None and optional:
        return
    place = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(place, str):
        raise TypeError(
            f"{name} must be a string or a pathlib.Path{' or None' if optional else ''}, got {shown(value)}"
        )
    if not place or "\0" in place:
        raise ValueError(f"{name} must name a file or folder, got {shown(value)}")


def check_size(name: str, value: Any) -> None:
    """Refuse what is not the ``(height, width)`` of a picture; ``None`` is allowed.

    Raises:
        TypeError: not two integers.
        ValueError: not positive.
    """
    if value is None:
        return
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be (height, width) or None, got {shown(value)}")
    for length in value:
        check_count(name, length)


def check_list(name: str, value: Any) -> Any:
    """``value`` itself; refuses what is no list or tuple.

    Raises:
        TypeError: another thing, one string among them.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be a list, got {shown(value)}")
    return value


def check_callable(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: another thing.
    """
    if not (callable(value) or (value is None and optional)):
        raise TypeError(f"{name} must be a function{' or None' if optional else ''}, got {shown(value)}")


def check_type(name: str, value: Any, kind: type | tuple[type, ...], hint: str = "", *, optional: bool = False) -> None:
    """Refuse what is no instance of ``kind``; ``hint`` says what to do.

    Raises:
        TypeError: another type.
    """
    if isinstance(value, kind) or (value is None and optional):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = " or ".join([f"{_article(k.__name__)} {k.__name__}" for k in kinds] + ["None"] * optional)
    raise TypeError(f"{name} must be {wanted}, got {shown(value)}{': ' if hint else ''}{hint}")


def check_tensor(name: str, value: Any, *, shapes: Sequence[tuple[int | None, ...]] = ()) -> None:
    """Refuse what is no dense tensor of real numbers; ``None`` in one of the ``shapes`` allowed is any length.

    Raises:
        TypeError: no tensor, or complex, sparse or quantised.
        ValueError: another shape, or a tensor without data.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {shown(value)}: give torch.as_tensor(...)")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {value.layout}: call to_dense() on it")
    if value.is_quantized:
        raise TypeError(f"{name} must be a tensor of plain numbers, got {value.dtype}: call dequantize() on it")
    if value.is_complex():
        raise TypeError(f"{name} must be a real torch tensor, got {value.dtype}: give its .real and .imag apart")
    if value.is_meta:
        raise ValueError(f"{name} is on the device meta and holds no numbers: make it on the CPU or a GPU")
    if shapes and not any(_fits(tuple(value.shape), shape) for shape in shapes):
        wanted = " or ".join(_worded(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(value.shape)}")


def check_device(name: str, value: Any) -> None:
    """Refuse what names no kind of device; ``None`` is allowed. Whether it is there, :func:`check_visible` tells.

    Raises:
        TypeError: neither a string nor a ``torch.device``.
        ValueError: no such kind of device.
    """
    if value is None:
        return
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a string such as 'cpu', 'cuda' or 'cuda:1', or None, got {shown(value)}")
    try:
        kind = torch.device(value).type
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{name} must be cpu, cuda, cuda:1, ... or None, got {value!r}") from error
    if kind == "meta":
        raise ValueError(f"{name} must be one that holds numbers, as cpu or cuda, got {str(value)!r}")


def check_visible(name: str, value: str | torch.device | None) -> None:
    """Refuse a CUDA device that torch does not see.

    Raises:
        ValueError: no CUDA device at all, or none of that number.
    """
    device = torch.device("cpu" if value is None else value)
    if device.type != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        seen = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        raise ValueError(f"{name}={str(value)!r} was asked for, but torch sees {seen}; leave it out, or give 'cpu'")


def shown(value: Any) -> str:
    """A value in a message: as it is written where that is short, else its type, with the shape of an array."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    written = repr(value) if isinstance(value, _PLAIN) else ""
    return written if 0 < len(written) <= _SHOWN else type(value).__name__


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    """Python's and numpy's integers and floats; exact fractions and decimals do not mix with tensors."""
    return _is_integer(value) or (isinstance(value, Real) and not isinstance(value, Rational))


def _float(value: Any) -> float:
    """As a float, infinite where it is none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _range(low: float, high: float, closed: bool) -> str:
    """The range of a number in words."""
    if closed:
        return f"at least {low:g}" + (f" and less than {high:g}" if high < math.inf else "")
    return f"greater than {low:g}" if high == math.inf else f"between {low:g} and {high:g}"


def _fits(shape: tuple[int, ...], pattern: tuple[int | None, ...]) -> bool:
    return len(shape) == len(pattern) and all(p in (None, s) for s, p in zip(shape, pattern, strict=True))


def _worded(pattern: tuple[int | None, ...]) -> str:
    """A shape with letters where any length does."""
    letters = iter("nmk") if len(pattern) > 1 else iter("n")
    inside = ", ".join(str(p) if p is not None else next(letters) for p in pattern)
    return f"({inside},)" if len(pattern) == 1 else f"({inside})"


def _article(word: str) -> str:
    return "an" if word[:1].upper() in "AEIOU" else "a"
