"""The caller's torch mode stays outside: a result is the same in whatever mode it is asked for.

Autocast would round every product, a default device would place what is meant for the host, and tensors made in
inference mode can never be part of a graph. Public functions and the methods of public classes therefore run in plain
torch. Whether a graph is wanted stays the caller's decision: ``no_grad`` holds for what is returned.

The default dtype is not a mode of a thread but one for all: while any thread is inside, all of them see float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from threading import Lock, local
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_DEVICES = ("cpu", "cuda")  # that this library computes on
_OPERATORS = ("__call__", "__matmul__")


class _DefaultDtype:
    """Float32 as the default dtype of the process: the first to enter sets it, the last to leave restores."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._callers = torch.float32

    @contextmanager
    def plain(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._callers = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside and self._callers != torch.float32:
                    torch.set_default_dtype(self._callers)


class _Thread(local):
    """Whether a thread is within a guarded function."""

    inside = False


_default_dtype = _DefaultDtype()
_thread = _Thread()


def plain_torch(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` without autocast, inference mode, default device and default dtype of the caller.

    Arguments that were made in inference mode, within data sets and lists too, are replaced by copies that autograd
    takes.
    """

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        if _thread.inside and not _is_computing_otherwise():  # called by the library itself
            return function(*args, **kwargs)
        outer, _thread.inside = _thread.inside, True
        try:
            with _default_dtype.plain(), _plain_mode() if _is_foreign() else nullcontext():
                named = {name: _ordinary(value) for name, value in kwargs.items()}
                return function(*map(_ordinary, args), **named)  # type: ignore[arg-type]
        finally:
            _thread.inside = outer

    return inside


def plain_torch_methods(cls: C) -> C:
    """Apply :func:`plain_torch` to the public methods and properties that a class itself defines.

    Its own ``__init__`` is one of them, that of a dataclass, which only takes what it is given, is not.
    """
    guarded = _OPERATORS if is_dataclass(cls) else ("__init__", *_OPERATORS)
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in guarded:
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(cls, name, type(member)(plain_torch(member.__func__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, member.getter(plain_torch(member.fget)))
        elif isinstance(member, functools.cached_property):
            member.func = plain_torch(member.func)
        elif callable(member) and not isinstance(member, type):
            setattr(cls, name, plain_torch(member))
    return cls


def _is_foreign() -> bool:
    """Whether the thread's present mode is another than plain torch."""
    return _is_computing_otherwise() or torch.empty(0).device.type != "cpu"


def _is_computing_otherwise() -> bool:
    """Whether inference mode or autocast is on."""
    return torch.is_inference_mode_enabled() or any(map(torch.is_autocast_enabled, _DEVICES))


@contextmanager
def _plain_mode() -> Iterator[None]:
    wants_graph = torch.is_grad_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(wants_graph))  # which the line above switched on
        for device in filter(torch.is_autocast_enabled, _DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def _ordinary(value: Any) -> Any:
    """``value`` itself, or a copy without tensors of inference mode where it holds any."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        copies = [_ordinary(entry) for entry in value]
        return type(value)(copies) if any(a is not b for a, b in zip(copies, value, strict=True)) else value
    if isinstance(value, Mapping) and type(value) is dict:
        named = {key: _ordinary(entry) for key, entry in value.items()}
        return named if any(named[key] is not entry for key, entry in value.items()) else value
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name, None) for field in fields(value) if field.init}
        made = {name: t.clone() for name, t in held.items() if isinstance(t, Tensor) and t.is_inference()}
        return replace(value, **made) if made else value
    return value
