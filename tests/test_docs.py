"""The pages of ``docs/`` cannot rot: their Python runs, their commands are understood, the reference is complete.

What is run is written in CONTRIBUTING.md under "The site". The migration pages and the README have tests of their own.
"""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import otdd_flash
import otdd_flash.data

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.glob("*.md"))
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
DOCUMENTED = (
    "otdd_flash", "otdd_flash.data", "otdd_flash.data.features", "otdd_flash.labels", "otdd_flash.sinkhorn",
    "otdd_flash.matrix", "otdd_flash.screening", "otdd_flash.flows", "otdd_flash.reporting", "otdd_flash.ops",
)  # fmt: skip


def blocks(page: Path, *languages: str) -> Iterator[re.Match[str]]:
    """Fenced blocks of these languages, in order."""
    return (found for found in FENCE.finditer(page.read_text(encoding="utf-8")) if found["language"] in languages)


def pages_with_python() -> list[Path]:
    """All but the migration pages."""
    return [page for page in PAGES if not page.stem.startswith("migration-") and any(blocks(page, "python", "pycon"))]


def commands() -> list[tuple[str, list[str]]]:
    """Every line that calls ``otdd``, as a shell would split it, with the page that it stands on."""
    found = []
    for page in PAGES:
        for block in blocks(page, "", "sh", "bash", "shell", "console"):
            for line in block["text"].replace("\\\n", " ").splitlines():
                words = words_of(line)
                if words:
                    found.append((page.stem, words))
    return found


def words_of(line: str) -> list[str]:
    """Arguments of the first ``otdd`` of a line, up to a pipe, a redirection or the like."""
    start = re.match(r"(?:\$ )?(?:\w+=\S* )*otdd ", line)
    if start is None:
        return []
    lexer = shlex.shlex(line[start.end() :], posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            return words[:-1] if word.startswith(">") and words and words[-1].isdigit() else words
        words.append(word)
    return words


@pytest.mark.parametrize("page", pages_with_python(), ids=lambda page: page.stem)
def test_python_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__page__"}
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    if page.stem == "report":
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")
    for block in blocks(page, "python", "pycon"):
        if block["reason"] is not None:
            assert block["language"] == "python", "a block that is not run shows no output"
            compile(block["text"], page.name, "exec")
        elif block["language"] == "python":
            exec(compile(block["text"], page.name, "exec"), names)
        else:
            case = doctest.DocTestParser().get_doctest(block["text"], names, page.name, str(page), 0)
            assert case.examples, block["text"]
            case.globs = names  # a doctest works on a copy; a page is one program
            runner.run(case, out=report.append, clear_globs=False)
    assert not report, "".join(report)


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_command_is_understood(page: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra")
    import yaml

    from otdd_flash.cli.main import main

    if "--help" in command or "--version" in command:
        assert main(command) == 0
        return
    if "--multirun" in command:  # the first job of the sweep
        command = [re.sub(r"^([^\[{]*?),.*", r"\1", word) for word in command if word != "--multirun"]
    assert main([*command, "--cfg", "job"]) == 0, f"{page}: otdd {shlex.join(command)}"
    config = yaml.safe_load(capsys.readouterr().out)
    for name in names_of(config):
        assert kind_of(name) in {kind_of(known) for known in otdd_flash.data.sources()}, f"{page}: {name}"


def names_of(config: dict) -> Iterator[str]:
    """Names of all data sets in a composed config."""
    from otdd_flash.cli.sets import Common, entry

    yield from (config[side]["name"] for side in ("source", "target") if side in config)
    for given in (*config.get("datasets", ()), *config.get("candidates", ()), *config.get("more", ())):
        yield entry(given, Common(None, None, None, None, 0))[1].name


def kind_of(name: str) -> str:
    return name.partition(":")[0].lower().replace("-", "").replace("_", "")


def test_words_of_a_line() -> None:
    assert words_of("otdd check 'resize=[28,28]' a=b || echo \"exit code $?\"") == ["check", "resize=[28,28]", "a=b"]
    assert words_of("$ OTDD_DATA=DIR otdd info output=json 2> log") == ["info", "output=json"]
    assert words_of("otdd rank 'candidates=[{name: iris, as: all}]'  # comment") == [
        "rank",
        "candidates=[{name: iris, as: all}]",
    ]
    assert words_of("make demo") == []


def test_reference_is_complete() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst"))
    module, documented = "", set()
    for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", pages, flags=re.MULTILINE):
        if kind == "currentmodule":
            module = name
        else:
            documented.add(id(getattr(importlib.import_module(module), name)))
    for package in DOCUMENTED:
        found = importlib.import_module(package)
        public = [name for name in found.__all__ if name != "__version__"]
        missing = [name for name in public if id(getattr(found, name)) not in documented]
        assert not missing, f"{package}: add {missing} to docs/api"


def test_pages_are_in_the_navigation() -> None:
    for folder in (DOCS, DOCS / "api"):
        index = (folder / "index.md").read_text(encoding="utf-8")
        trees = re.findall(r"^```\{toctree\}\n(.*?)^```", index, flags=re.MULTILINE | re.DOTALL)
        listed = {re.sub(r"^.* <(.*)>$", r"\1", line) for tree in trees for line in tree.splitlines()}
        pages = {page.stem for page in (*folder.glob("*.md"), *folder.glob("*.rst"))} - {"index"}
        assert pages <= listed, f"add {sorted(pages - listed)} to a toctree of {folder.name}/index.md"


def test_a_built_page_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    monkeypatch.delitem(sys.modules, "checked_html", raising=False)
    from checked_html import problems

    (tmp_path / "style.css").write_text("@import url(https://fonts.example/a.css);")
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/x.js"></script><link href="style.css" rel="stylesheet">'
        '<a href="https://elsewhere.example/">a link may lead out</a><img src="data:image/png;base64,AA==">'
        '<a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a>'
    )
    assert sorted(problems(tmp_path)) == [
        "a.html fetches https://cdn.example/x.js",
        "a.html links to b.html#gone: no such anchor",
        "a.html links to c.html: no such file",
        "style.css fetches from elsewhere",
    ]
