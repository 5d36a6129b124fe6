"""From what was typed to what Hydra takes: data sets by name or path, text as it stands, and errors with a way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from otdd_flash.cli.exit_codes import UsageError
from otdd_flash.cli.keys import groups_of, keeps_files, keys_of, sides_of
from otdd_flash.cli.tasks import TASKS, Task

_FLAGS_WITH_VALUE = (
    "--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--info",
    "-i", "--experimental-rerun",
)  # fmt: skip
_OWN_CONFIGS = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
_MULTIRUN = ("--multirun", "-m")
_KEY = re.compile(r"(\+\+|\+|~)?([\w@/.:-]+)$")


def prepare(task: Task, arguments: Sequence[str]) -> list[str]:
    """The arguments of a task as Hydra takes them: overrides first, then its flags with their values.

    Raises:
        UsageError: an argument that cannot be understood; the message names it and what to write instead.
    """
    overrides, flags = _parted(task, arguments)
    reader = _Reader(task, multirun=any(flag in _MULTIRUN for flag in flags))
    reader.own_configs = any(flag.partition("=")[0] in _OWN_CONFIGS for flag in flags)
    return [*(reader.rewritten(override) for override in overrides), *flags]


def keeps_no_files(task: Task, arguments: Sequence[str]) -> bool:
    """Whether ``output.files`` is false by the arguments, of which the last counts, or else by the task."""
    given = [value for key, _, value in (a.partition("=") for a in arguments) if key.lstrip("+") == "output.files"]
    return given[-1].lower() in ("false", "no", "off", "0") if given else not keeps_files(task)


def _parted(task: Task, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides, and flags with their values.

    Raises:
        UsageError: a word that is neither.
    """
    overrides, flags = [], []
    for argument, before in zip(arguments, [None, *arguments], strict=False):
        if argument.startswith("-") or before in _FLAGS_WITH_VALUE:
            flags.append(argument)
        elif "=" in argument or argument.startswith("~"):
            overrides.append(argument)
        else:
            hint = _nearest(argument, [*keys_of(task), *groups_of(task)])
            raise UsageError(
                f"{argument!r} is no key=value{f' (did you mean {hint}=...?)' if hint else ''}; a value with blanks is "
                "quoted for the shell: 'key=a value'"
            )
    return overrides, flags


class _Reader:
    """Rewrites overrides of one task.

    Args:
        task: whose keys and groups they are.
        multirun: a comma separates the runs of a sweep.
    """

    own_configs = False  # files of the user's own may bring further keys and choices

    def __init__(self, task: Task, *, multirun: bool) -> None:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        self.task, self.multirun = task, multirun
        self.keys, self.groups = keys_of(task), groups_of(task)
        self.parser = OverridesParser.create()

    def rewritten(self, argument: str) -> str:
        """One override as Hydra takes it.

        Raises:
            UsageError: see :func:`prepare`.
        """
        typed, equals, value = argument.partition("=")
        value = _in_any_script(value)
        match = _KEY.match(typed)
        if match is None:
            raise UsageError(f"{argument!r} has no key before its '=' that could be one of {self.task.program}")
        sign, name = match[1] or "", match[2]
        side, _, rest = name.partition(".")
        if side in sides_of(self.task) and rest == "as":
            name = f"{side}.title"
        if name in sides_of(self.task) and equals:
            return self._side(argument, name, value)
        if not name.startswith("hydra"):
            self._check_name(argument, name)
        return sign + name + equals + self._value(argument, name, value) if equals else sign + name

    def _check_name(self, argument: str, name: str) -> None:
        """Refuse a key that the task does not have, with those that may have been meant."""
        known = list(dict.fromkeys([*self.keys, *self.groups]))
        parents = {key.rpartition(".")[0] for key in self.keys}
        inside = any(name.startswith(f"{key.name}.") and key.is_mapping for key in self.keys.values())
        if name in known or name in parents or inside or self.own_configs:
            return
        near = _suggestions(name, known)
        elsewhere = [task.program for task in TASKS.values() if name in (keys_of(task).keys() | groups_of(task).keys())]
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif elsewhere:
            hint = f"it is a key of {', '.join(elsewhere)}"
        else:
            hint = "the keys are listed there"
        raise UsageError(f"{argument!r}: {self.task.program} has no key {name!r}; {hint}")

    def _value(self, argument: str, name: str, value: str) -> str:
        """The value as Hydra's grammar takes it: text that is none of its words is quoted for it."""
        key = self.keys.get(name)
        try:
            parsed = self.parser.parse_override(f"key={value}")
        except Exception as error:
            if key is None or not key.may_be_text or _is_container(value, key):
                raise UsageError(_unreadable(argument, error)) from error
            return ",".join(map(quoted, _parts(value) if self.multirun else [value]))
        if name in self.groups:
            self._check_choices(argument, name, _elements(parsed))
        elif key is not None and key.is_text and not parsed.is_sweep_override():
            found = parsed.value()
            if found is not None and not isinstance(found, str):
                return quoted(value)
        elif parsed.is_sweep_override() and not self.multirun:
            raise UsageError(_several(argument, name, value))
        return value

    def _check_choices(self, argument: str, group: str, chosen: Sequence[Any]) -> None:
        """Refuse a file that a group does not have."""
        for choice in chosen:
            if choice in self.groups[group] or (self.own_configs and choice is not None):
                continue
            choice = "null" if choice is None else choice
            near = _nearest(str(choice), self.groups[group])
            hint = f"did you mean {near}? " if near else ""
            known = ", ".join(self.groups[group])
            raise UsageError(f"{argument!r}: {group} has no {choice!r}; {hint}There are {known}")

    def _side(self, argument: str, side: str, value: str) -> str:
        """``source=NAME`` as a choice of the group; paths, and ``{name: ..., as: ...}``, as keys of the side."""
        parts = _parts(value) if self.multirun else [value]
        elements = [element for part in parts for element in self._element(argument, part)]
        if len(elements) > 1 and not self.multirun:
            raise UsageError(_several(argument, side, value))
        if all(isinstance(element, str) and ":" not in element for element in elements):
            names = [self._known(argument, side, element) for element in elements]
            return f"dataset@{side}={','.join(names)}"
        return f"{side}={','.join(literal(self._entry(argument, side, element)) for element in elements)}"

    def _element(self, argument: str, text: str) -> list[Any]:
        """What one part of a value stands for; itself where it is none of the grammar's words, such as a path.

        Raises:
            UsageError: a list or mapping that cannot be read.
        """
        try:
            return _elements(self.parser.parse_override(f"key={text}"))
        except Exception as error:
            if text.startswith(("[", "{")):
                raise UsageError(_unreadable(argument, error)) from error
            return [text]

    def _entry(self, argument: str, side: str, element: Any) -> dict[str, Any]:
        """One element of a side as its keys."""
        given = dict(element) if isinstance(element, dict) else {"name": element}
        if "as" in given:
            given["title"] = given.pop("as")
        for key in given:
            self._check_name(argument, f"{side}.{key}")
        name = given.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{argument!r}: {side} takes a name, kind:path or {{name: ..., as: ...}}, got {element!r}")
        if ":" not in name:
            given["name"] = self._known(argument, side, name)
        return given

    def _known(self, argument: str, side: str, name: str) -> str:
        """The spelling of a data set's name; case, hyphens and underscores do not matter."""
        choices = self.groups[f"dataset@{side}"]
        spellings = {_bare(choice): choice for choice in choices}
        if name in choices or self.own_configs:
            return name
        if _bare(name) in spellings:
            return spellings[_bare(name)]
        near = difflib.get_close_matches(_bare(name), spellings, n=2)
        hint = f"did you mean {' or '.join(spellings[one] for one in near)}? " if near else ""
        if "/" in name or "." in name:
            hint = f"a file is kind:path, as {side}=csv:{name}; "
        raise UsageError(f"{argument!r}: there is no data set {name!r}; {hint}There are {', '.join(choices)}")


def quoted(text: str) -> str:
    """``text`` as a quoted string of Hydra's grammar."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", text)) + "'"


def literal(value: Any) -> str:
    """A plain value in Hydra's grammar."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(literal, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _elements(parsed: Any) -> list[Any]:
    """The values that an override stands for, one a run."""
    found = parsed.value()
    listed = getattr(found, "list", None)
    return [_plain(element) for element in (listed if listed is not None else [found])]


def _in_any_script(value: str) -> str:
    """A list or mapping whose words of other letters than ASCII's, which Hydra's grammar lacks, are quoted."""
    if value.isascii() or not value.startswith(("[", "{")) or set("'\"") & set(value):
        return value
    opened: list[str] = []
    out = ""
    for piece in re.findall(r"[\[\]{},]|[^\[\]{},]+", value):
        if piece in "[{":
            opened.append(piece)
        elif piece in "]}" and opened:
            opened.pop()
        elif not piece.isascii():
            key, colon, word = piece.partition(":") if opened and opened[-1] == "{" else ("", "", piece)
            piece = key + colon + quoted(word.strip())
        out += piece
    return out


def _parts(value: str) -> list[str]:
    """A value cut at its commas, but for those within brackets."""
    parts, depth = [""], 0
    for letter in value:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _plain(element: Any) -> Any:
    """Hydra's quoted strings as text."""
    if isinstance(element, dict):
        return {_plain(key): _plain(value) for key, value in element.items()}
    if isinstance(element, list):
        return [_plain(part) for part in element]
    return element.text if hasattr(element, "quote") else element


def _suggestions(name: str, known: Iterable[str]) -> list[str]:
    """Keys that end in a ``name`` without dots; else the nearest by spelling, of the whole or of its last part."""
    known = list(known)
    last = name.rpartition(".")[2]
    ending = [key for key in known if key.rpartition(".")[2] == name]
    whole = difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    if ending or whole:
        return list(dict.fromkeys([*_shortened(ending), *whole]))[:4]
    lasts = sorted({key.rpartition(".")[2] for key in known})
    near = difflib.get_close_matches(last, lasts, n=1, cutoff=0.7)
    return _shortened([key for key in known if key.rpartition(".")[2] in near])


def _shortened(keys: list[str]) -> list[str]:
    """The shortest first, and not too many."""
    return sorted(keys, key=lambda key: (key.count("."), keys.index(key)))[:4]


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _is_container(value: str, key: Any) -> bool:
    """Whether a value that cannot be read was meant as a list or mapping."""
    return not key.is_text and value.startswith(("[", "{"))


def _several(argument: str, name: str, value: str) -> str:
    return (
        f"{argument!r} holds several values: add --multirun to run with each, write {name}=[{value}] for a list, or "
        f"quote text that has a comma: {_for_shell(name, value)}"
    )


def _unreadable(argument: str, error: Exception) -> str:
    name, _, value = argument.partition("=")
    words = f"{argument!r} cannot be read ({next(iter(str(error).splitlines()), '')}): "
    if not value.startswith(("[", "{")):
        return f"{words}quote it, as {_for_shell(name, value)}"
    example = "['a name',other]" if value.startswith("[") else "{name:'a name',other:1}"
    return (
        f"{words}close every bracket, and quote text that has other characters than letters and digits within it: "
        f'"{name}={example}"'
    )


def _for_shell(name: str, value: str) -> str:
    """An override with a quoted value, as a shell takes it."""
    return f'''"{name}={quoted(value)}"''' if not set('"$`\\') & set(value) else f"{name}={quoted(value)}"
