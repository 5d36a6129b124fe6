"""Which keys and groups a task takes, read from its dataclass and its file in ``conf``: for help and for messages."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import resources
from typing import Any, get_args, get_type_hints

from otdd_flash.cli.tasks import Task


@dataclass(frozen=True)
class Key:
    """One key of a task.

    Args:
        name: with its dots.
        about: one line: what it does and which values it takes.
        kinds: types that it takes; ``object`` stands for any.
    """

    name: str
    about: str
    kinds: tuple[Any, ...]

    @property
    def is_text(self) -> bool:
        """Whether its value is text and nothing else."""
        return str in self.kinds and not {int, float, object} & set(self.kinds)

    @property
    def is_mapping(self) -> bool:
        """Whether it holds keys of the user's own."""
        return any(getattr(kind, "__origin__", kind) is dict for kind in self.kinds)

    @property
    def may_be_text(self) -> bool:
        """Whether text is among its values."""
        return bool({str, object} & set(self.kinds))


@cache
def keys_of(task: Task) -> dict[str, Key]:
    """Every key that can be set, by its name, in the order of the dataclass; nodes such as ``solver`` are left out."""
    return {key.name: key for key in _walk(task.load_schema(), "")}


@cache
def groups_of(task: Task) -> dict[str, tuple[str, ...]]:
    """The choices of every group of the task by the group's name on the command line, ``dataset@source`` included."""
    named = [next(iter(item)) for item in _stated(task)["defaults"] if isinstance(item, dict)]
    return {name: _choices(name.partition("@")[0]) for name in named if not name.startswith("override ")}


def sides_of(task: Task) -> tuple[str, ...]:
    """The keys that hold one data set each: ``source`` and ``target``, where the task has them."""
    return tuple(name.partition("@")[2] for name in groups_of(task) if "@" in name)


def keeps_files(task: Task) -> bool:
    """Whether the task leaves a folder behind unless told otherwise."""
    from otdd_flash.cli.config import OutputConfig

    return _stated(task).get("output", {}).get("files", OutputConfig().files)


def documentation(schema: type) -> dict[str, str]:
    """The text under every field of a dataclass and of those that it extends, each as one line."""
    found: dict[str, str] = {}
    for part in reversed([part for part in schema.__mro__ if is_dataclass(part)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(tree, ast.ClassDef)
        for line, below in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                stated = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                text = below.value.value if stated else ""  # type: ignore[union-attr]
                found[line.target.id] = " ".join(str(text).split())
    return found


@cache
def _stated(task: Task) -> dict[str, Any]:
    """The task's file in ``conf``, as it stands."""
    from omegaconf import OmegaConf

    text = resources.files("otdd_flash.conf").joinpath(f"{task.name}.yaml").read_text(encoding="utf-8")
    return OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[return-value]


def _walk(schema: type, prefix: str) -> Iterator[Key]:
    """The leaves of a dataclass of dataclasses."""
    about, types = documentation(schema), get_type_hints(schema)
    for item in fields(schema):
        kind = types[item.name]
        if is_dataclass(kind):
            yield from _walk(kind, f"{prefix}{item.name}.")  # type: ignore[arg-type]
        else:
            kinds = get_args(kind) if type(None) in get_args(kind) else (object if kind is Any else kind,)
            yield Key(prefix + item.name, about[item.name], kinds)


def _choices(group: str) -> tuple[str, ...]:
    """Files of a group."""
    folder = resources.files("otdd_flash.conf").joinpath(group)
    return tuple(sorted(entry.name[: -len(".yaml")] for entry in folder.iterdir() if entry.name.endswith(".yaml")))
