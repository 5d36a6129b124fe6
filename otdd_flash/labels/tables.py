"""The result of a label-distance computation: three tables, how they came about, and their file form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_path, check_tensor, check_text, shown
from otdd_flash.tensor_files import read_tensors, save_tensors
from otdd_flash.torch_mode import plain_torch_methods

FORMAT = "otdd-flash label distances 1"
_TABLES = ("source_source", "source_target", "target_target")
_RELATIVE_TOLERANCE = 1e-6  # of the largest entry: what float32 tables from elsewhere may be off by


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class LabelDistances:
    """Squared class-to-class Wasserstein distances, float64 on the host, in units of the squared feature distance.

    The debiased divergence needs all three tables. Self tables are symmetric with a zero diagonal.

    Args:
        source_source: ``(c, c)``.
        source_target: ``(c, c')``.
        target_target: ``(c', c')``.
        source_names: ``c`` class names.
        target_names: ``c'`` class names.
        method: how the tables were computed.
        parameters: what the method was given, JSON-safe.
        certificate: how far the entries can be trusted, JSON-safe.
    """

    source_source: Tensor
    source_target: Tensor
    target_target: Tensor
    source_names: tuple[str, ...]
    target_names: tuple[str, ...]
    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c, k = len(self.source_names), len(self.target_names)
        for name, shape in zip(_TABLES, ((c, c), (c, k), (k, k)), strict=True):
            table = getattr(self, name)
            if tuple(table.shape) != shape:
                raise ValueError(f"{name} must be {shape} for {c} source and {k} target classes, got {table.shape}")
            if table.dtype != torch.float64:
                raise ValueError(f"{name} must be float64, got {table.dtype}")

    @property
    def converged(self) -> bool:
        """Whether every class-to-class transport problem behind an entry met its tolerance."""
        return bool(self.certificate.get("converged", True))

    @property
    def error(self) -> float:
        """Stated absolute error of the entries; zero where the tables were given."""
        return float(self.certificate.get("error", 0.0))

    @classmethod
    def from_joint(
        cls, joint: Tensor, source_names: Sequence[str], target_names: Sequence[str], method: str, **record: Any
    ) -> LabelDistances:
        """From one table over the stacked classes of source and target; ``record``: parameters, certificate."""
        source_names, target_names = _names(source_names, "source_names"), _names(target_names, "target_names")
        check_text("method", method)
        c = len(source_names)
        size = c + len(target_names)
        check_tensor("joint", joint, shapes=[(size, size)])
        joint = joint.to("cpu", torch.float64)
        parts = joint[:c, :c].clone(), joint[:c, c:].clone(), joint[c:, c:].clone()
        return cls(*parts, tuple(source_names), tuple(target_names), method, **record)

    @classmethod
    def from_tables(
        cls, tables: Any, source_names: Sequence[str], target_names: Sequence[str], method: str = "precomputed"
    ) -> LabelDistances:
        """From given tables, checked.

        Args:
            tables: the joint ``(c + c', c + c')`` table, or the triple (source-source, source-target, target-target);
                squared distances.
            source_names: ``c`` class names.
            target_names: ``c'`` class names.
            method: name for the record.

        Raises:
            ValueError: wrong shape, NaN or infinite, negative or asymmetric entries, a self table whose diagonal is
                not zero; the message names table and classes.
        """
        c, k = len(source_names), len(target_names)
        if isinstance(tables, tuple | list) and len(tables) == 3 and all(torch.as_tensor(t).ndim == 2 for t in tables):
            ss, st, tt = (torch.as_tensor(t).detach().to("cpu", torch.float64) for t in tables)
            cls(ss, st, tt, tuple(source_names), tuple(target_names), method)  # shapes first: they must fit to stack
            joint = torch.cat([torch.cat([ss, st], 1), torch.cat([st.T, tt], 1)])
        else:
            joint = torch.as_tensor(tables).detach().to("cpu", torch.float64)
            if joint.shape != (c + k, c + k):
                raise ValueError(
                    f"the joint label table must be {(c + k, c + k)} for {c} source and {k} target classes, got "
                    f"{tuple(joint.shape)}; or give the triple (source-source, source-target, target-target)"
                )
        names = [*(f"source {n!r}" for n in source_names), *(f"target {n!r}" for n in target_names)]
        return cls.from_joint(_checked(joint, names), source_names, target_names, method)

    def joint(self) -> Tensor:
        """``(c + c', c + c')`` symmetric table over the stacked classes of source and target."""
        upper = torch.cat([self.source_source, self.source_target], 1)
        return torch.cat([upper, torch.cat([self.source_target.T, self.target_target], 1)])

    def to_safetensors(self, path: str | os.PathLike[str]) -> Path:
        """Write the tables and their record; the file appears whole or not at all."""
        check_path("path", path)
        record = {
            "source_names": self.source_names,
            "target_names": self.target_names,
            "method": self.method,
            "parameters": self.parameters,
            "certificate": self.certificate,
        }
        return save_tensors({name: getattr(self, name) for name in _TABLES}, path, kind=FORMAT, record=record)

    @classmethod
    def from_safetensors(cls, path: str | os.PathLike[str]) -> LabelDistances:
        """Read what :meth:`to_safetensors` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged or of another kind.
        """
        check_path("path", path)
        record, tensors = read_tensors(path, kind=FORMAT)
        try:
            source_names, target_names = (tuple(record.pop(f"{side}_names")) for side in ("source", "target"))
            ss, st, tt = (tensors[name] for name in _TABLES)
            return cls(ss, st, tt, source_names, target_names, **record)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a readable label-distance file: {error}") from error


def _checked(joint: Tensor, names: list[str]) -> Tensor:
    """The joint table, symmetrised within float32 rounding, or an error that names the offending classes."""
    if not bool(torch.isfinite(joint).all()):
        i, j = (~torch.isfinite(joint)).nonzero()[0].tolist()
        raise ValueError(f"label distance of {names[i]} and {names[j]} is {float(joint[i, j])}, must be finite")
    tolerance = _RELATIVE_TOLERANCE * float(joint.abs().max()) if joint.numel() else 0.0
    if float(joint.min()) < -tolerance:
        i, j = divmod(int(joint.argmin()), len(joint))
        raise ValueError(
            f"label distance of {names[i]} and {names[j]} is {float(joint[i, j]):g}; squared distances are >= 0"
        )
    skew = (joint - joint.T).abs()
    if float(skew.max()) > tolerance:
        i, j = divmod(int(skew.argmax()), len(joint))
        raise ValueError(
            f"label distances must be symmetric: {names[i]} to {names[j]} is {float(joint[i, j]):g} but "
            f"{float(joint[j, i]):g} the other way"
        )
    diagonal = joint.diagonal()
    if float(diagonal.max()) > tolerance:
        i = int(diagonal.argmax())
        raise ValueError(f"the distance of {names[i]} to itself is {float(diagonal[i]):g}, must be 0")
    return ((joint + joint.T) / 2).fill_diagonal_(0.0)


def _names(names: Sequence[str], argument: str) -> tuple[str, ...]:
    """Names of classes as a tuple; one string is not a list of its letters."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a list of strings, got {shown(names)}")
    return tuple(names)
