"""Call every public function with one argument mutated, and show what is no good answer to that.

A good answer is a result without NaN and infinity, or an error of a documented kind that names the argument. A raw
internal error, a message about something else, a result that is not finite, a wrong type that is taken and a call that
does not end are failures; each is printed with the line that makes it again.

    python scripts/mutate_calls.py --count 6000 --seed 0
    python scripts/mutate_calls.py --only "gradient_flow/steps/nan"
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", MPLBACKEND="Agg", TQDM_DISABLE="1")

import numpy as np
import torch
from mutations.calls import WORDS, Call, all_calls
from mutations.values import mutated, names_for

from otdd_flash import errors
from otdd_flash.flows import StepRefusedError

EXPECTED = (
    TypeError, ValueError, MemoryError, errors.NotConvergedError, errors.MissingDependencyError,
    errors.BackendUnavailableError, StepRefusedError,
)  # fmt: skip
# what follows on a name of one letter, which may be a word of the message as well
SAYS = r"(?:\[\d+\])?(?: of .*?)?(?:=| must| has| holds| lies?| is| are| and| needs| requires)"
SKIPPED = ("state", "history", "curvature")  # of a result: what is not known at every step
Case = tuple[Call, str, str]


class TooLongError(BaseException):
    """The call did not end within its time."""


def main() -> int:
    """Run the cases; the exit status says whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6000, help="calls to make; 0 for every case")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of cases")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of processor time for a call")
    parser.add_argument("--only", default="", help="cases whose name 'function/argument/mutation' begins so")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    cases = chosen(given.count, given.seed, given.only)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OTDD_CACHE"] = folder
        outcomes = [(case, outcome(*case, limit=given.limit)) for case in cases]
    failures = [(case, said) for case, said in outcomes if said not in ("works", "refused")]
    for (call, argument, name), said in failures:
        print(f'--only "{call.name}/{argument}/{name}"  # {said}')
    counts = Counter(said if said in ("works", "refused") else "failed" for _, said in outcomes)
    print(f"{len(cases)} calls of {len({case[0].name for case in cases})} functions: {dict(counts)}; "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    return 1 if failures else 0


def chosen(count: int, seed: int, only: str) -> list[Case]:
    """The cases to run, drawn from all of them."""
    every = [
        (call, argument, name)
        for call in all_calls()
        for argument in call.kinds
        for name in names_for(call.arguments().get(argument))
    ]
    every = [case for case in every if f"{case[0].name}/{case[1]}/{case[2]}".startswith(only)]
    random.Random(seed).shuffle(every)
    return every[:count] if count else every


def outcome(call: Call, argument: str, name: str, *, limit: float) -> str:
    """``works``, ``refused`` with a good message, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:  # what one call writes is not there for the next
        os.chdir(folder)
        try:
            return _outcome(call, argument, name, limit)
        finally:
            os.chdir("/")


def _outcome(call: Call, argument: str, name: str, limit: float) -> str:
    arguments = call.arguments()
    value = arguments[argument] = mutated(name, arguments.get(argument))
    try:
        with warnings.catch_warnings(), within(limit):
            warnings.simplefilter("ignore")
            result = call.function(**arguments)
            if hasattr(result, "__next__"):
                result = list(result)
    except TooLongError:
        return f"no end within {limit:g} s"
    except call.raises:
        return "refused"
    except EXPECTED as error:
        names = [argument, *WORDS.get(argument, ()), *call.words.get(argument, ())]
        return "refused" if named(str(error), names) else told(error)
    except Exception as error:
        return told(error)
    if not taken(call.kinds[argument], value):
        return f"takes {type(value).__name__} for {call.kinds[argument]}"
    return "works" if finite(result) else "the result is not finite"


def named(message: str, names: list[str]) -> bool:
    """Whether a message is about one of these arguments."""
    patterns = (rf"(?<!\w){re.escape(name)}{SAYS if len(name) == 1 else chr(92) + 'b'}" for name in names)
    return any(re.search(pattern, message) for pattern in patterns)


def told(error: Exception) -> str:
    """An error with the place that it came from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first[:160]} ({os.path.basename(last.filename)}:{last.lineno})"


def taken(kind: str, value: Any) -> bool:
    """Whether an argument annotated ``kind`` may be ``value``; only plain annotations are judged."""
    plain = {
        "bool": bool, "int": (int, np.integer), "float": (int, float, np.number), "str": str,
    }  # fmt: skip
    words = [word.strip() for word in kind.split("|")]
    if not all(word in plain or word == "None" for word in words):
        return True
    if value is None:
        return "None" in words
    if isinstance(value, bool) and "bool" not in words:
        return False
    return any(isinstance(value, plain[word]) for word in words if word != "None")


def finite(result: Any, depth: int = 0) -> bool:
    """Whether the numbers of a result are: itself, its fields ``value`` and ``values``, tensors and arrays in it."""
    if getattr(result, "failures", ()):
        return True  # what has failed is listed with its reason
    if isinstance(result, float):
        return math.isfinite(result)
    if isinstance(result, torch.Tensor):
        if result.is_sparse or result.is_quantized or result.is_meta or result.is_complex():
            return False
        return not result.is_floating_point() or bool(torch.isfinite(result).all())
    if isinstance(result, np.ndarray):
        return result.dtype.kind != "f" or bool(np.isfinite(result).all())
    if isinstance(result, Mapping):
        return all(finite(value, depth) for value in result.values())
    if isinstance(result, tuple | list):
        return all(finite(value, depth) for value in result)
    if is_dataclass(result) and not isinstance(result, type) and depth < 1 and not hasattr(result, "__post_init__"):
        return all(finite(getattr(result, item.name), depth + 1) for item in fields(result) if item.name not in SKIPPED)
    return True


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what takes more processor time than ``seconds``, or six times as long on the clock."""

    def stop(*_: Any) -> None:
        raise TooLongError

    for number, timer, time_left in (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 6 * seconds),
    ):  # fmt: skip
        signal.signal(number, stop)
        signal.setitimer(timer, time_left)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


if __name__ == "__main__":
    sys.exit(main())
