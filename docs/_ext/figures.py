"""Sphinx-gallery scraper: a block of an example draws what it leaves in the name ``figure``.

The library's figures are not pyplot's, which is all that sphinx-gallery looks for by itself.
"""

from __future__ import annotations

from typing import Any

from sphinx_gallery.scrapers import figure_rst

from otdd_flash import plots


def scrape(block: tuple[str, str, int], block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the block's figure, and the lines that show it."""
    figure = block_vars["example_globals"].pop("figure", None)
    if figure is None:
        return ""
    path = next(block_vars["image_path_iterator"])
    plots.save(figure, path, dpi=110)
    return figure_rst([path], gallery_conf["src_dir"])
