"""These tests run where TRITON_INTERPRET=1 is set before Triton is imported, as test_interpreted.py does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _language_patched_once() -> Iterator[None]:
    """The interpreter patches ``triton.language`` at every launch and call, half of its time; here once a module."""
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    if not INTERPRETED or patch is None:
        yield
        return
    scopes: dict[str, Any] = {}

    def once(function: Any) -> SimpleNamespace:
        module = function.__globals__["__name__"]
        if module not in scopes:
            scopes[module] = patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = once
    yield
    interpreter._patch_lang = patch
    for scope in reversed(scopes.values()):
        getattr(scope, "restore", lambda: None)()
