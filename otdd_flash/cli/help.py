"""The text of ``otdd TASK --help``: one line a key, with its value and what it does, and the groups of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otdd_flash.cli.keys import groups_of, keys_of
from otdd_flash.cli.tasks import Task

_WIDEST = 38  # of the column of keys; a longer one pushes its text to the right


def task_help(task: Task, config: Mapping[str, Any]) -> str:
    """Keys and groups of ``task``.

    Args:
        task: any.
        config: the composed settings, whose values are shown.
    """
    lines = [(f"{name}={_shown(_value(config, name))}", key.about) for name, key in keys_of(task).items()]
    width = min(_WIDEST, max(len(left) for left, _ in lines))
    keys = "\n".join(f"  {left:<{width}}  {about}" for left, about in lines)
    groups = "\n".join(f"  {name.partition('@')[2] or name}: {', '.join(found)}" for name, found in _merged(task))
    return f"Keys, with their values:\n\n{keys}\n\nGroups, as GROUP=CHOICE:\n\n{groups or '  none'}"


def _merged(task: Task) -> list[tuple[str, tuple[str, ...]]]:
    """The groups; source and target, which have the same choices, on one line."""
    groups = groups_of(task)
    sides = [name.partition("@")[2] for name in groups if "@" in name]
    shared = next((found for name, found in groups.items() if "@" in name), ())
    first = [("dataset@" + ", ".join(sides), (*shared, "or kind:path, or {name: ..., as: ...}"))] if sides else []
    return first + [(name, found) for name, found in groups.items() if "@" not in name]


def _value(config: Mapping[str, Any], name: str) -> Any:
    """The value behind a dotted key."""
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _shown(value: Any) -> str:
    """A value as it is typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(map(_shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_shown(item)}" for key, item in value.items()) + "}"
    return "" if value == "???" else str(value)
