"""Pictures inside a page: PNG as ``data:`` addresses, and figures of matplotlib as SVG in the page's own colours."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.canvas import load_matplotlib
from otdd_flash.errors import optional_import
from otdd_flash.palette import COLOURS

_LARGEST = 96  # pixels a side of a thumbnail
_PIXELS_A_POINT = 96 / 72


def thumbnails(x: Tensor, shape: tuple[int, ...]) -> list[str]:
    """Flattened pictures as ``data:`` addresses, small enough for a page.

    Features in [0, 1] are grey values as they are; others are spread over the range of all of ``x``.

    Args:
        x: ``(n, d)`` features.
        shape: ``(h, w)`` or ``(c, h, w)``; with other than 1 or 3 channels the mean of them is shown.
    """
    if not len(x):
        return []
    pixels = x.detach().double().cpu().reshape(len(x), -1, *shape[-2:])
    if pixels.shape[1] not in (1, 3):
        pixels = pixels.mean(1, keepdim=True)
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        pixels = (pixels - low) / (high - low if high > low else 1.0)
    height, width = pixels.shape[-2:]
    if max(height, width) > _LARGEST:
        factor = _LARGEST / max(height, width)
        small = (max(1, round(height * factor)), max(1, round(width * factor)))
        pixels = torch.nn.functional.interpolate(pixels, small, mode="area")
    grey = (pixels * 255).round().to(torch.uint8)
    return [_png(picture[0] if len(picture) == 1 else picture.permute(1, 2, 0)) for picture in grey]


def palette_picture(index: Tensor, colours: Sequence[str]) -> str:
    """``(h, w)`` positions in ``colours`` as the ``data:`` address of a picture."""
    images = optional_import("PIL.Image", needed_for="heat maps of many classes", extra="report")
    image = images.fromarray(index.to(torch.uint8).contiguous().numpy())
    image.putpalette([int(colour[i : i + 2], 16) for colour in colours for i in (1, 3, 5)])
    return _address(image)


def inline_svg(figure: Any) -> tuple[str, int]:
    """A figure of :mod:`otdd_flash.plots`, drawn light, as SVG for a page, and its width in pixels.

    Colours become the page's variables, so that one figure serves both themes; text stays text in the page's font; what
    an SVG file needs and a page does not (prologue, metadata, name spaces) is left out.
    """
    matplotlib = load_matplotlib(needed_for="figures of a report", extra="report")
    target = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "otdd-flash"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws them
        figure.savefig(
            target, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None, "Creator": None}
        )
    text = target.getvalue()
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
    for name, colour in COLOURS["light"].items():
        text = text.replace(f": {colour}", f": var(--{name})")
    head, rest = text.split(">", 1)
    width = re.search(r'width="([\d.]+)pt"', head)
    box = re.search(r'viewBox="([\d. ]+)"', head)
    assert width is not None
    assert box is not None
    return f'<svg viewBox="{box[1]}" role="presentation">{_own_ids(rest)}', round(float(width[1]) * _PIXELS_A_POINT)


def _own_ids(text: str) -> str:
    """Only ids that something refers to; matplotlib derives those from contents, so that equal ids are equal things."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    return re.sub(r'\sid="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)


def _png(pixels: Tensor) -> str:
    """``(h, w)`` or ``(h, w, 3)`` bytes as the ``data:`` address of a picture."""
    images = optional_import("PIL.Image", needed_for="pictures of samples", extra="report")
    return _address(images.fromarray(pixels.contiguous().numpy()))


def _address(image: Any) -> str:
    target = io.BytesIO()
    image.save(target, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode("ascii")
