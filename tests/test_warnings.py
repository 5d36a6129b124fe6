"""Warnings point at the line of the caller, however deep they arise."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.selection.select import SearchOptions

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(20, 3, generator=generator), torch.randn(24, 3, generator=generator)
A, B = otdd.from_arrays(X, torch.arange(20) % 2, name="a"), otdd.from_arrays(Y, torch.arange(24) % 2, name="b")
CUT = {"tol": 1e-9, "max_iterations": 1}

CALLS: dict[str, Callable[[], object]] = {
    "dataset_distance": lambda: otdd.dataset_distance(A, B, **CUT),
    "class problems": lambda: otdd.dataset_distance(A, B, label_distance="sinkhorn", **CUT),
    "sinkhorn_divergence": lambda: otdd.sinkhorn_divergence(X, Y, epsilon=0.1, options=otdd_solver()),
    "sinkhorn_batch": lambda: otdd.sinkhorn_batch([(X, Y)], epsilon=0.1, options=otdd_solver()),
    "pairwise": lambda: otdd.pairwise([A, B], **CUT),
    "rank": lambda: otdd.rank([A], B, bootstrap=0, **CUT),
    "values": lambda: otdd.values(A, B, **CUT),
    "select": lambda: otdd.select(A, B, 5, search=SearchOptions(steps=1, exchanges=0), **CUT),
    "check": lambda: otdd.check(A, B, permutations=19, **CUT),
    "DriftCallback": lambda: otdd.DriftCallback(otdd.DriftCheck(A, permutations=99), every=1)(Y + 9, B.y),
    "SamplesLoss with labels": lambda: otdd.SamplesLoss(blur=0.5)(A.y, A.normalised_weights, X, B.y, b_weights(), Y),
    "from_arrays": lambda: otdd.from_arrays(X, [-1, 1] * 10),
    "min_class_size": lambda: otdd.from_arrays(X, [0] * 19 + [1], min_class_size=2),
}


def otdd_solver() -> object:
    from otdd_flash.sinkhorn import SolverOptions

    return SolverOptions(**CUT)


def b_weights() -> torch.Tensor:
    return B.normalised_weights


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "inference_mode"])
@pytest.mark.parametrize("name", CALLS)
def test_the_line_is_the_callers(name: str, guarded: bool) -> None:
    with pytest.warns(UserWarning, match=r"\w") as caught, torch.inference_mode(guarded):
        CALLS[name]()
    code = inspect.unwrap(CALLS[name]).__code__
    assert {warning.filename for warning in caught} == {__file__}
    assert {warning.lineno for warning in caught} == {code.co_firstlineno}


def test_there_is_one_home_of_warnings() -> None:
    """So that none has a count of frames of its own, which goes wrong with the next decorator."""
    package = Path(otdd.__file__).parent
    calls = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "warn" and getattr(node.value, "id", None) == "warnings"
    }
    assert calls == {"errors.py"}
