"""Iterations recorded as CUDA graphs: one launch instead of a hundred where the points are few and the host is slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

import torch

from otdd_flash.ops import PlanOperator

_LARGEST = 1 << 19  # potentials of all problems together; beyond, passes take longer than their launches


class Recorder:
    """Runs a step that reads and writes fixed tensors; from its second use on, as a CUDA graph.

    The first use of a key runs eagerly: it compiles kernels and fills caches, which must not happen while recording.

    Args:
        operator: recording needs a GPU, and a backend that never asks the host in a pass.
    """

    def __init__(self, operator: PlanOperator) -> None:
        small = operator.a.numel() + operator.b.numel() <= _LARGEST
        self.enabled = operator.a.device.type == "cuda" and operator.info.backend == "triton" and small
        self.used: set[Hashable] = set()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Do ``step``, whose work must depend on ``key`` and on device memory alone."""
        if not self.enabled or key not in self.used:
            step()
            self.used.add(key)
            return
        if key not in self.graphs:
            self.graphs[key] = _record(step)
        self.graphs[key].replay()


@lru_cache
def _stream(device: int) -> torch.cuda.Stream:
    """One stream a device to record on: the matrix library keeps a workspace of 32 MiB for each it has seen."""
    return torch.cuda.Stream(device)


def _record(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        step()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
