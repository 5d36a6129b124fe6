"""Work items over processes: one process a worker, one device a worker, threads capped, deaths survived.

Each worker is an executor of its own with a single process, so that it keeps its device and its loaded sets, and so
that one that dies (out of memory, a crash in a library) takes along its own item only.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from otdd_flash.checks import check_count
from otdd_flash.errors import optional_import
from otdd_flash.matrix.worker import Result, Worker

_Answer = tuple[Any, tuple[str, str, str] | None]  # the value of an item, or type, message and trace of its error
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Item:
    """One piece of work; ``names`` are the sets that it is about."""

    names: tuple[str, ...]
    argument: Any


@dataclass(frozen=True)
class Batch:
    """One call of a worker's method, for one item or for some that are better done together.

    Args:
        method: takes ``shared`` and the arguments of all items, and returns a :class:`Result` for each.
        shared: what all batches have in common.
        items: at least one.
    """

    method: str
    shared: Any
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of an item: a value, or an error as ``(type, message, traceback)``."""

    item: Item
    value: Any = None
    error: tuple[str, str, str] | None = None


def resolve_devices(device: str | torch.device | None, workers: int | None) -> list[str | None]:
    """One device for each worker.

    ``cuda`` means all visible GPUs, taken in turns; ``cuda:1`` that one for every worker; ``None`` leaves data where it
    is. ``workers=None`` is one worker for each GPU under ``cuda``, else one.

    Raises:
        ValueError: a number of workers under one, or a GPU that is not there; the message names what is visible.
    """
    workers = check_count("workers", workers, optional=True)
    if device is None:
        return [None] * (workers or 1)
    chosen = torch.device(device)
    if chosen.type != "cuda":
        return [str(chosen)] * (workers or 1)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 or (chosen.index is not None and chosen.index >= count):
        names = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count)]
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ValueError(
            f"device={str(device)!r} was asked for, but torch sees {', '.join(names) or 'no CUDA device'} "
            f"(CUDA_VISIBLE_DEVICES={'unset' if variable is None else repr(variable)})"
        )
    if chosen.index is not None:
        return [str(chosen)] * (workers or 1)
    return [f"cuda:{i % count}" for i in range(workers or count)]


def threads_per_worker(workers: int) -> int:
    """An equal share of the cores that this process may use, at least one."""
    cores = optional_import("joblib", needed_for="several workers", extra="dist").cpu_count()
    return max(1, cores // workers)


class InProcess:
    """All items here, one after another."""

    count, share = 1, 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, batches: Iterable[Batch]) -> Iterator[Outcome]:
        """Outcomes in order."""
        for batch in batches:
            yield from _outcomes(batch, _call(self._worker, batch))

    def close(self) -> None:
        """Nothing to end."""


class Processes:
    """A process for each worker; batches go to whichever is free.

    Args:
        build: makes worker ``i``; sent to its process once.
        count: workers.
        threads: of torch and its libraries in each.
        share: the most workers that share a device.
    """

    def __init__(self, build: Callable[[int], Worker], count: int, threads: int, *, share: int = 1) -> None:
        self._build, self._threads, self.count, self.share = build, threads, count, share
        self._executors: list[Any] = [None] * count

    def run(self, batches: Iterable[Batch]) -> Iterator[Outcome]:
        """Outcomes as they come; the items of a batch whose process died are tried again one by one."""
        waiting, again = iter(batches), deque[Batch]()
        running: dict[Future, tuple[int, Batch]] = {}

        def submit(slot: int) -> None:
            batch = again.popleft() if again else next(waiting, None)
            if batch is None:
                return
            if self._executors[slot] is None:
                self._executors[slot] = self._start(slot)
            running[self._executors[slot].submit(_call_here, batch)] = (slot, batch)

        for slot in range(len(self._executors)):
            submit(slot)
        while running:
            # short waits leave the main thread open to signals on every platform
            done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                slot, batch = running.pop(future)
                results = self._results(future, slot, batch)
                if results is None:
                    again.extend(replace(batch, items=(item,)) for item in batch.items)
                submit(slot)
                yield from _outcomes(batch, results or [])

    def close(self) -> None:
        """End all processes, at once: finished items are in the store."""
        executors, self._executors = self._executors, [None] * len(self._executors)
        for executor in executors:
            if executor is not None:
                executor.shutdown(wait=True, kill_workers=True)

    def _start(self, slot: int) -> Any:
        loky = optional_import("joblib.externals.loky", needed_for="several workers", extra="dist")
        return loky.ProcessPoolExecutor(
            max_workers=1, initializer=_initialise, initargs=(self._build, slot, self._threads, os.getpid()),
            env=dict.fromkeys(_THREAD_VARIABLES, str(self._threads)),
        )  # fmt: skip

    def _results(self, future: Future, slot: int, batch: Batch) -> list[_Answer] | None:
        """The answers of a batch; ``None`` where its process died and there is more than one item to tell apart."""
        error = future.exception()
        if error is None:
            return future.result()
        executor, self._executors[slot] = self._executors[slot], None
        executor.shutdown(wait=False, kill_workers=True)
        if len(batch.items) > 1:
            return None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return [(None, (type(error).__name__, f"the worker process died: {first}", ""))]


def _outcomes(batch: Batch, answers: Iterable[_Answer]) -> Iterator[Outcome]:
    """The answers of a batch with their items."""
    return (Outcome(item, *answer) for item, answer in zip(batch.items, answers, strict=False))


_HERE: list[Worker] = []


def _initialise(build: Callable[[int], Worker], slot: int, threads: int, parent: int) -> None:
    """Once in each worker process: cap the threads, watch the parent, make the worker."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _HERE[:] = [build(slot)]


def _end_with(parent: int) -> None:
    """Leave when the parent is gone, however it went: nobody would collect the results."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _call_here(batch: Batch) -> list[_Answer]:
    return _call(_HERE[0], batch)


def _call(worker: Worker, batch: Batch) -> list[_Answer]:
    """The value of each item, or its error in words: one that fails does not end the run."""
    try:
        with _current(worker.device):
            results = getattr(worker, batch.method)(batch.shared, [item.argument for item in batch.items])
    except Exception as error:
        results = [Result(error=error)] * len(batch.items)
    return [(result.value, None if result.error is None else _in_words(result.error)) for result in results]


def _in_words(error: Exception) -> tuple[str, str, str]:
    return type(error).__name__, str(error), "".join(traceback.format_exception(error))


def _current(device: str | None) -> AbstractContextManager[Any]:
    """Make ``device`` the current GPU: kernels are launched there, and ``cuda`` in a loader means it."""
    return torch.cuda.device(device) if (device or "").startswith("cuda:") else nullcontext()


def tiled(pairs: Sequence[tuple[int, int]], size: int = 8) -> list[tuple[int, int]]:
    """Pairs in an order that stays within few sets at a time, so that workers load each set seldom."""
    return sorted(pairs, key=lambda pair: (pair[0] // size, pair[1] // size, pair))
