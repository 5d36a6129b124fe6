"""What an answer is worth: certified and right, certified and wrong, or not certified."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fuzzing.calls import Answer, ask
from fuzzing.families import make
from fuzzing.problems import Cloud, Problem
from fuzzing.truth import Truth, label_table, sinkhorn_table, truth

FAILURES = ("raised", "wrong", "outside", "negative", "posed", "table")
"""Raised; certified but off by more than 1e-3 (or tol) of the scale; certified but outside the stated error; below zero
by more than the stated error; mean cost or epsilon are not what was asked for; right for the table of class-to-class
divergences that was reported, while that table, certified, is wrong, or the value is outside the stated error of what
the true table gives."""
OUTCOMES = ("certified", "uncertified", "unresolved", *FAILURES)
MOMENT_METHODS = ("means", "gaussian_diag", "gaussian")
WRONG = 1e-3  # of the scale max(|value|, 0.01 mean cost)
UNRESOLVED = 1e-7  # of the same scale: the reference's interval must be narrower
POSED = 2e-5  # relative difference of what the library says of the problem itself: float32 clouds are summed in float64


@dataclass(frozen=True)
class Verdict:
    """One pair of one problem, JSON-safe; ``outcome`` is one of :data:`OUTCOMES`."""

    family: str
    seed: int
    index: int
    pair: int
    outcome: str
    way: str
    note: str
    detail: str = ""
    value: float | None = None
    error: float | None = None
    lower: float | None = None
    upper: float | None = None
    scale: float | None = None
    converged: bool | None = None
    passes: int | None = None
    tol: float | None = None
    seconds_library: float = 0.0
    seconds_reference: float = 0.0

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES

    @property
    def command(self) -> str:
        """Runs this problem again."""
        return f"python scripts/fuzz.py --family {self.family} --seed {self.seed} --index {self.index}"

    def record(self) -> dict:
        """For a line of JSON; numbers that JSON lacks are left out."""
        return {k: v for k, v in asdict(self).items() if not (isinstance(v, float) and not math.isfinite(v))}


def judge(family: str, seed: int, index: int) -> list[Verdict]:
    """Make the problem, ask the library, and hold each answer against the truth."""
    problem = make(family, seed, index)
    base: dict[str, Any] = {
        "family": family, "seed": seed, "index": index, "way": problem.settings.way, "note": problem.note,
        "tol": problem.settings.tol,
    }  # fmt: skip
    start = time.perf_counter()
    try:
        answers = ask(problem)
    except Exception as error:  # whatever it is, it is what a user would see
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        return [Verdict(**base, pair=0, outcome="raised", detail=detail, seconds_library=time.perf_counter() - start)]
    spent = (time.perf_counter() - start) / len(answers)
    return [_verdict(problem, k, answer, spent, base) for k, answer in enumerate(answers)]


def _verdict(problem: Problem, k: int, answer: Answer, spent: float, base: dict[str, Any]) -> Verdict:
    x, y = (problem.clouds[i] for i in problem.pairs[k])
    settings, table = problem.settings, answer.table
    start = time.perf_counter()
    if settings.method in MOMENT_METHODS:
        table = label_table(x, y, settings.method)
    true = truth(x, y, settings, answer.epsilon, table)
    took = time.perf_counter() - start
    outcome, detail = outcome_of(problem, answer, true)
    if settings.method == "sinkhorn" and answer.converged and outcome == "certified":
        outcome, detail = table_outcome(x, y, problem, answer) or (outcome, detail)
    return Verdict(
        **base, pair=k, outcome=outcome, detail=detail, value=answer.value, error=answer.error,
        lower=float(true.value.lower), upper=float(true.value.upper), scale=true.scale, converged=answer.converged,
        passes=answer.passes, seconds_library=spent, seconds_reference=took,
    )  # fmt: skip


def outcome_of(problem: Problem, answer: Answer, true: Truth) -> tuple[str, str]:
    """One of :data:`OUTCOMES`, the gravest that holds, and what was seen."""
    error = math.inf if answer.error is None else answer.error
    off = true.value.distance(answer.value) if math.isfinite(answer.value) else math.inf
    allowed = max(WRONG, problem.settings.tol) * true.scale + 1e-12 * answer.epsilon
    seen = f"value {answer.value:.9g}, error {error:.2g}, truth {true.value.middle:.9g}, off by {off:.2g}"
    if true.value.width > UNRESOLVED * true.scale + 1e-13 * answer.epsilon:
        return "unresolved", f"the reference's interval is {true.value.width:.2g} wide"
    if answer.converged and off > allowed:
        return "wrong", f"{seen}, allowed {allowed:.2g}"
    if answer.converged and off > error:
        return "outside", seen
    if answer.value < -error or (answer.error is None and answer.converged and answer.value < -allowed):
        return "negative", seen
    posed = _posed(problem, answer, true)
    if posed:
        return "posed", posed
    return ("certified" if answer.converged else "uncertified"), seen


def table_outcome(x: Cloud, y: Cloud, problem: Problem, answer: Answer) -> tuple[str, str] | None:
    """Whether a certified table of class-to-class divergences, and the value with it, is as right as is said."""
    settings, certificate = problem.settings, answer.table_certificate
    if answer.table is None or not certificate["epsilon"] > 0:
        return None
    lower, upper = sinkhorn_table(x, y, certificate["epsilon"], debiased=settings.debiased)
    off = float(np.maximum(lower - answer.table, answer.table - upper).max())
    scale = max(float(upper.max()), 0.01 * certificate["mean_cost"])
    stated = certificate.get("error", certificate.get("gap", 0.0)) + 1e-12 * certificate["mean_cost"]
    if off > stated or off > max(WRONG, settings.tol) * scale:
        return "table", f"class table off by {off:.2g}, stated {stated:.2g}, largest entry {upper.max():.3g}"
    true = truth(x, y, settings, answer.epsilon, (lower + upper) / 2).value
    if answer.error is not None and true.distance(answer.value) > answer.error:
        return "table", (
            f"value {answer.value:.9g}, error {answer.error:.2g}, off by {true.distance(answer.value):.2g} from what "
            "the true class table gives"
        )
    return None


def _posed(problem: Problem, answer: Answer, true: Truth) -> str:
    """What the library says of the problem and is not so: mean cost, epsilon."""
    settings = problem.settings
    if answer.mean_cost is not None and abs(answer.mean_cost - true.mean_cost) > POSED * true.mean_cost:
        return f"mean cost {answer.mean_cost:.9g}, truth {true.mean_cost:.9g}"
    if settings.way != "distance" or not true.mean_cost > 0:
        return ""
    asked = settings.relative_epsilon * true.mean_cost if settings.epsilon is None else settings.epsilon
    if abs(answer.epsilon - asked) > POSED * asked:
        return f"epsilon {answer.epsilon:.9g}, asked for {asked:.9g}"
    return ""
