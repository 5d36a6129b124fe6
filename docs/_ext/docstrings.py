"""Sphinx extension: docstrings are written for those who read the code; here they are made fit for the reference.

References. A docstring says ``:class:`TextDataset``` or ``:func:`otdd_flash.sinkhorn.sinkhorn_divergence```, as its
module does, and the reference documents the same object as ``otdd_flash.data.TextDataset`` or
``otdd_flash.sinkhorn_divergence``. What Sphinx does not find is looked up by its last name, and linked where exactly
one object of that kind has it. A field leads to its class; a module without a page of its own is set without a link.

Properties. Napoleon takes what stands before a colon for a type; these docstrings have none. The fields of named tuples
("Alias for field number 0") are left out.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

_KINDS = {
    "class": ("class", "exception"), "exc": ("exception", "class"), "func": ("function",), "meth": ("method",),
    "attr": ("class",),
}  # fmt: skip


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """What ``node`` means, or ``None``."""
    kind, target = node.get("reftype", ""), node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if kind == "mod":
        return content if importlib.util.find_spec(target) else None
    if kind == "attr":
        target = target.rpartition(".")[0]
    last = target.rpartition(".")[2]
    objects = env.domains["py"].objects  # type: ignore[attr-defined]
    found = {
        (entry.docname, entry.node_id)
        for name, entry in objects.items()
        if name.rpartition(".")[2] == last and entry.objtype in _KINDS.get(kind, ())
    }
    if len(found) != 1:
        return None
    ((page, anchor),) = found
    return make_refnode(app.builder, node["refdoc"], page, anchor, content, node["reftarget"])


def shield(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put an empty comment before the docstring of a property: then its first line is no ``type: description``."""
    if what == "property" and lines:
        lines[:0] = ["..", ""]


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples; ``None`` has no opinion."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all three; ``shield`` comes before napoleon."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", shield, priority=100)
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
