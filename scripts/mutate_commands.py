"""Run command lines of every task with one thing wrong, and show what is no good answer to that.

A good answer is a result, or one line on stderr that names the argument (or what was typed for it), and exit code 1 to
4. A traceback, an error in the words of Python's own classes, a message about something else and a command that does
not end are failures; each is printed as a line for a shell, to be run in a folder with the files that ``write_files``
makes.

    python scripts/mutate_commands.py --count 800 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import numpy as np
import torch

from otdd_flash.cli.keys import keys_of
from otdd_flash.cli.main import main as otdd
from otdd_flash.cli.tasks import TASKS

PAIR = ("source=iris", "target=npz", "target.path=mine.npz", "labels=means", "solver.relative_epsilon=0.3")
SMALL = ("max_samples=30", "device=cpu", "seed=1", "output.files=false")
COMMANDS = {
    "distance": (*PAIR, "target.classes=[0,1]", "solver.tol=0.01", "features=standardize", "source.as=flowers", *SMALL),
    "values": (*PAIR, "top=3", "parts=false", *SMALL),
    "select": (*PAIR, "n_to_select=5", "balance=classes", "search.steps=5", "more=[{name:iris,classes:[2]}]", *SMALL),
    "check": (*PAIR[:3], "gate.permutations=19", "gate.alpha=0.1", *SMALL),
    "rank": ("target=iris", "candidates=[npz:mine.npz,{name:iris,classes:[0,1],as:two}]", "bootstrap=0", "labels=means",
             "solver.relative_epsilon=0.3", "screen.keep=1", *SMALL),
    "matrix": ("datasets=[iris,npz:mine.npz]", "labels=means", "solver.relative_epsilon=0.3", "workers=1", *SMALL),
    "flow": (*PAIR, "steps=1", "stepper=euler", "stepper.rate=0.1", "pictures.every=0", "dynamics=features", *SMALL),
    "report": (*PAIR, "report.bootstrap=0", "report.values=false", "report.file=page.html", *SMALL),
    "bench": ("n=20", "m=30", "d=3", "repeats=1", "solver.tol=0.1", "device=cpu"),
    "info": ("output=json", "data_root=."),
}  # fmt: skip
VALUES = (
    "", "null", "abc", "-1", "0", "1.5", "nan", "inf", "-inf", "true", "[", "[1", "[]", "[a,b]", "[1,2,3]", "{a:1}",
    "{", "a,b", "'x", '"', "größe", "日本", "a b", "${nosuch}", "${now:}", "a=b", "#", "none.npz", "npz:none.npz",
    "csv:mine.npz", "/", "cuda:99", "\udce9", "~", "1e-400", "\\", "a'b", "choice(1,2)", "range(3)",
)  # fmt: skip
WORDS = {
    "source": ("mnist",), "target": ("mnist", "fashion_mnist", "usps"), "labels.distance": ("label_distance", "labels"),
    "labels.epsilon": ("label_epsilon",), "labels.weight": ("label_weight",), "features.weight": ("feature_weight",),
    "features.batch_size": ("batch size", "size"), "output.format": ("output",),
    "candidates": ("data sets", "candidate"), "datasets": ("data set",), "more": ("data set",), "sets": ("data set",),
}  # fmt: skip
_RAW = re.compile(r"error: (\w*(Error|Exception)): |Traceback|object has no attribute|NoneType")


@dataclass(frozen=True)
class Case:
    """A mutated command line.

    Args:
        arguments: of ``otdd``.
        key: what was mutated.
        typed: what stands there now.
    """

    arguments: tuple[str, ...]
    key: str
    typed: str


class TooLongError(BaseException):
    """The command did not end within its time."""


def main() -> int:
    """Run the cases; the exit status says whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=800, help="command lines to run")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for a command line")
    parser.add_argument("--task", choices=COMMANDS, help="of this task alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    cases = mutated(given.count, given.seed, given.task)
    outcomes = [(case, outcome(case, limit=given.limit)) for case in cases]
    failures = [(case, said) for case, said in outcomes if said not in ("works", "refused")]
    for case, said in failures:
        print(f"otdd {shlex.join(case.arguments)}  # {case.key}: {said}".encode(errors="replace").decode())
    counts = Counter(said if said in ("works", "refused") else "failed" for _, said in outcomes)
    print(f"{len(cases)} command lines: {dict(counts)}; {time.perf_counter() - start:.0f} s")
    return 1 if failures else 0


def mutated(count: int, seed: int, task: str | None = None) -> list[Case]:
    """``count`` command lines, each with one mutation, the tasks in turn."""
    rng = random.Random(seed)
    tasks = [task] if task else list(COMMANDS)
    return [rng.choice(MUTATIONS)(tasks[i % len(tasks)], rng) for i in range(count)]


def _dropped(task: str, rng: random.Random) -> Case:
    return _replaced(task, rng, lambda key, value: [])


def _misspelled(task: str, rng: random.Random) -> Case:
    """A letter of the key lost, doubled or exchanged for its neighbor."""

    def change(key: str, value: str) -> list[str]:
        at = rng.randrange(len(key))
        wrong = rng.choice([key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], _exchanged(key, at)])
        return [f"{wrong}={value}"]

    return _replaced(task, rng, change)


def _wrong_value(task: str, rng: random.Random) -> Case:
    return _replaced(task, rng, lambda key, value: [f"{key}={rng.choice(VALUES)}"])


def _near_value(task: str, rng: random.Random) -> Case:
    """A letter of the value lost or exchanged."""

    def change(key: str, value: str) -> list[str]:
        at = rng.randrange(len(value))
        return [f"{key}={rng.choice([value[:at] + value[at + 1 :], _exchanged(value, at)])}"]

    return _replaced(task, rng, change)


def _added(task: str, rng: random.Random) -> Case:
    """Any key of the task with a wrong value."""
    key = rng.choice(list(keys_of(TASKS[task])))
    argument = f"{rng.choice(['', '', '+', '++'])}{key}={rng.choice(VALUES)}"
    return Case((task, *COMMANDS[task], argument), key, argument)


def _stray(task: str, rng: random.Random) -> Case:
    """A word that is no override, or a flag that does not exist."""
    word = rng.choice(
        ["word", "--nosuch", "-q", "=3", "~seed", "~nosuch", "+", "größe=1", "a.b.c=1", "source.=1", "--cfg=x"]
    )
    return Case((task, *COMMANDS[task], word), word, word)


MUTATIONS: tuple[Callable[[str, random.Random], Case], ...] = (
    _dropped, _misspelled, _wrong_value, _wrong_value, _near_value, _added, _added, _stray,
)  # fmt: skip


def _replaced(task: str, rng: random.Random, change: Callable[[str, str], list[str]]) -> Case:
    """One argument in place of another; none drops it."""
    arguments = list(COMMANDS[task])
    at = rng.randrange(len(arguments))
    key, _, value = arguments[at].partition("=")
    arguments[at : at + 1] = new = change(key, value)
    return Case((task, *arguments), key, new[0] if new else "")


def _exchanged(text: str, at: int) -> str:
    """Two neighboring letters in the other order."""
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]


def outcome(case: Case, *, limit: float) -> str:
    """``works``, ``refused`` with a good message, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder, _offline(folder):
        os.chdir(folder)
        write_files(Path(folder))
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _within(limit):
                code = otdd(case.arguments)
        except TooLongError:
            return f"no end within {limit:g} s"
        except BaseException as error:
            return f"raises {type(error).__name__}: {error}"
        finally:
            os.chdir("/")
    return judged(case, int(code), err.getvalue())


def judged(case: Case, code: int, stderr: str) -> str:
    """What an exit code and stderr are worth."""
    lines = [line for line in stderr.splitlines() if line.startswith(("otdd ", "otdd:"))]
    if code in (0, 3, 4):
        return "works" if "Traceback" not in stderr else "a traceback"
    if code not in (1, 2):
        return f"exit code {code}"
    if len(lines) != 1:
        return f"{len(lines)} lines: {stderr[-300:]!r}"
    if _RAW.search(stderr):
        return f"raw: {lines[0][:200]}"
    return "refused" if any(word in lines[0] for word in _names(case)) else f"does not name it: {lines[0][:200]}"


def _names(case: Case) -> list[str]:
    """What a message about the mutation can name."""
    key = case.key.lstrip("+~-")
    typed_key, _, value = case.typed.lstrip("+~").partition("=")
    value = value if len(value) > 1 or not value.isalnum() else ""
    file = "there is no file" if "path" in key else value.partition(":")[2]
    parts = [file, repr(case.typed)[1:-1], key, key.rpartition(".")[2], typed_key.rpartition(".")[2], value]
    return [word for word in (*parts, *WORDS.get(key, ())) if word]


def write_files(folder: Path) -> None:
    """``mine.npz``: forty points of two classes, as wide as iris."""
    y = np.arange(40) % 2
    np.savez(folder / "mine.npz", x=np.random.default_rng(0).normal(size=(40, 4)) + y[:, None], y=y)


@contextlib.contextmanager
def _offline(folder: str) -> Iterator[None]:
    """No network, and caches of the run's own."""

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError("the network is off")

    kept, environment = socket.getaddrinfo, dict(os.environ)
    os.environ.update(OTDD_CACHE=folder, TORCH_HOME=folder)
    os.environ.pop("OTDD_DATA", None)
    socket.getaddrinfo = refused
    try:
        yield
    finally:
        socket.getaddrinfo = kept
        os.environ.clear()
        os.environ.update(environment)


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """End what takes longer."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main())
