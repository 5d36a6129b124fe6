"""A flow's whole state in one safetensors file, and back, bit by bit."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_path
from otdd_flash.errors import warn
from otdd_flash.flows.state import Evaluation, FlowState
from otdd_flash.tensor_files import read_tensors, replacing, save_tensors
from otdd_flash.types import LabeledDataset

FORMAT = "otdd-flash flow checkpoint 1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state read from, or on its way to, a file.

    Args:
        tree: the state as nested dictionaries of tensors and plain values.
        source: fingerprint of the set that the flow started from.
    """

    tree: dict[str, Any]
    source: str

    @classmethod
    def of(cls, state: FlowState, source: str) -> Checkpoint:
        """The checkpoint of a state."""
        at = state.at
        tree = {
            "y": state.data.y, "class_names": list(state.data.class_names), "variables": state.variables,
            "step": state.step, "rate": state.rate, "carried": state.carried, "event": state.event,
            "generator": state.generator,
            "at": {
                "value": at.value, "velocity": at.velocity, "speed": at.speed, "memory": at.memory,
                "record": at.record,
            },
        }  # fmt: skip
        return cls(tree, source)

    def state(self, data: LabeledDataset) -> FlowState:
        """The state, with weights and all that does not change taken from ``data``."""
        tree = _to_device(self.tree, data.x.device)
        tree["generator"] = self.tree["generator"].cpu()
        data = replace(data, y=tree["y"], class_names=tuple(tree["class_names"]))
        taken = tree["at"]
        at = Evaluation(taken["value"], taken["memory"], taken["record"], known=(taken["velocity"], taken["speed"]))
        fields = {name: tree[name] for name in ("variables", "generator", "step", "rate", "carried", "event")}
        return FlowState(data=data, at=at, **fields)

    def check_source(self, source: LabeledDataset) -> None:
        """Refuse to continue from another set.

        Raises:
            ValueError: the fingerprints differ.
        """
        if source.fingerprint != self.source:
            raise ValueError(
                f"the checkpoint is of a flow from other data (fingerprint {self.source}, but {source.name!r} has "
                f"{source.fingerprint}): resume with the source, max_samples and seed of the first run"
            )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to ``path``; the file appears whole or not at all."""
        tensors: dict[str, Tensor] = {}
        record = {"tree": _flatten(self.tree, tensors), "source": self.source}
        return save_tensors(tensors, path, kind=FORMAT, record=record)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Read what :meth:`save` wrote; where it is damaged, the checkpoint before it, with a warning.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged or of another kind, and there is no earlier one.
        """
        check_path("path", path)
        try:
            return cls._read(path)
        except ValueError as error:
            try:
                earlier = cls._read(previous_path(path))
            except (ValueError, OSError):
                raise error from None
            warn(f"{error}; {previous_path(path)}, the checkpoint before it, is taken instead")
            return earlier

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> Checkpoint:
        record, tensors = read_tensors(path, kind=FORMAT)
        try:
            return cls(_restore(record["tree"], tensors), record["source"])
        except KeyError as error:
            raise ValueError(f"{path} is not a readable checkpoint: {error} is not there") from error


def previous_path(path: str | os.PathLike[str]) -> Path:
    """Where the checkpoint before the one at ``path`` is kept."""
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def keep_previous(path: str | os.PathLike[str]) -> None:
    """Keep the checkpoint at ``path``, which is about to be replaced, as the previous one, if it is there."""
    if not Path(path).exists():
        return
    with replacing(previous_path(path)) as unfinished:
        try:
            os.link(path, unfinished)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, unfinished)


def _flatten(node: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The tree with its tensors moved to ``tensors`` and keys spelled so that integers come back as such."""
    if isinstance(node, Tensor):
        # a copy each: the format refuses tensors that share memory
        tensors[path] = node.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(node, dict):
        return {"dict": [[key, _flatten(value, tensors, f"{path}/{key}")] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        return {"list": [_flatten(value, tensors, f"{path}/{i}") for i, value in enumerate(node)]}
    if node is None or isinstance(node, (str, int, float, bool)):
        return node
    raise TypeError(f"a checkpoint cannot hold {path}, a {type(node).__name__}")


def _restore(node: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that :func:`_flatten` was given; tuples come back as lists."""
    if isinstance(node, dict) and "tensor" in node:
        return tensors[node["tensor"]]
    if isinstance(node, dict) and "dict" in node:
        return {key: _restore(value, tensors) for key, value in node["dict"]}
    if isinstance(node, dict):
        return [_restore(value, tensors) for value in node["list"]]
    return node


def _to_device(node: Any, device: torch.device) -> Any:
    """Tensors on ``device``; single numbers stay on the host, where solvers and optimisers read them."""
    if isinstance(node, Tensor):
        return node if node.dim() == 0 else node.to(device)
    if isinstance(node, dict):
        return {key: _to_device(value, device) for key, value in node.items()}
    return [_to_device(value, device) for value in node] if isinstance(node, list) else node
