"""What a browser says to the page; runs where Chromium is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import otdd_flash as otdd
from otdd_flash.reporting import report
from tests.reporting.pages import Results, blobs

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium found")


def visit(page: Path, folder: Path, *options: str) -> tuple[str, list[str]]:
    """The page's elements after loading, and what the console said."""
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", *options, page.as_uri(),
    ]  # fmt: skip
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout, [line for line in process.stderr.splitlines() if ":CONSOLE" in line]


def test_the_console_is_silent(results: Results, tmp_path: Path) -> None:
    page = report(results.listed(), tmp_path / "page.html")
    text, said = visit(page, tmp_path, "--dump-dom")
    assert said == []
    assert text.count("<section") == 7
    spoiled = tmp_path / "spoiled.html"
    spoiled.write_text(page.read_text().replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'))
    assert any("Content Security Policy" in line for line in visit(spoiled, tmp_path, "--dump-dom")[1])


def test_a_phone_needs_no_sideways_scrolling(tmp_path: Path) -> None:
    """Of a page that is too wide something is seen at the window's right edge."""
    images = pytest.importorskip("PIL.Image")
    sets = [blobs([f"a class of number {i}" for i in range(20)], 40, seed, name="x" * 80) for seed in (1, 2)]
    page = report(otdd.dataset_distance(*sets, relative_epsilon=0.2), tmp_path / "page.html")
    picture = tmp_path / "phone.png"
    visit(page, tmp_path, f"--screenshot={picture}", "--window-size=500,3000", "--hide-scrollbars")
    pixels = images.open(picture).convert("RGB")
    edge = {pixels.getpixel((pixels.width - 2, y)) for y in range(pixels.height)}
    assert len(edge) == 1
    middle = {pixels.getpixel((pixels.width // 2, y)) for y in range(pixels.height)}
    assert len(middle) > 5
