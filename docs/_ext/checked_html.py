"""Sphinx extension: the built pages are complete in themselves.

After an HTML build every page is read again. A warning (an error under ``--fail-on-warning``) is given for whatever a
browser would fetch from elsewhere, and for every link to a file or an anchor of the site that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_REMOTE = ("http:", "https:", "//")
_FETCHED = {
    ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
    ("link", "href"), ("image", "href"), ("object", "data"),
}  # fmt: skip


class Page(HTMLParser):
    """What one page links to, fetches and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of one tag."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.fetched += [given[name] for name in given if (tag, name) in _FETCHED]


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the site in ``folder``: one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name} fetches {url}" for url in page.fetched if _is_remote(url))
        for link in (*page.links, *page.fetched):
            fault = None if _is_remote(link) else _fault(link, path, pages)
            if fault:
                yield f"{name} links to {link}: {fault}"
    for path in sorted(folder.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if any(f"{start}{scheme}" in text for start in ("url(", "url('", 'url("', "@import ") for scheme in _REMOTE):
            yield f"{path.relative_to(folder)} fetches from elsewhere"


def _is_remote(url: str) -> bool:
    return url.startswith(_REMOTE)


def _fault(link: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Why a local link leads nowhere, or ``None``."""
    parts = urlsplit(link)
    if parts.scheme:  # data:, mailto:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "no such anchor"
    return None


def _check(app: Sphinx, error: Exception | None) -> None:
    """Warn of every problem; Sphinx is imported here, so that tests of the rest do without it."""
    from sphinx.util import logging

    log = logging.getLogger(__name__)
    if error is None and app.builder.format == "html":
        for problem in problems(Path(app.outdir).resolve()):
            log.warning("%s", problem, type="html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the check."""
    app.connect("build-finished", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
