"""The documentation site: Sphinx over Markdown pages, docstrings and a gallery; see "The site" in CONTRIBUTING.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the gallery's matrices are small: see tests/conftest.py

import otdd_flash

project = "otdd-flash"
author = "the otdd-flash authors"
copyright = author
version = release = otdd_flash.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "checked_html",
]
exclude_patterns = ["examples"]

# --- pages
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 3
highlight_language = "none"  # a block without a language is output or a formula
myst_enable_extensions = ["colon_fence", "deflist"]

# --- docstrings
default_role = None
napoleon_numpy_docstring = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(collections|torch|typing|numpy)\..*")]  # no inventory of them is at hand offline

# --- gallery
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "image_scrapers": ("figures.scrape",),
    "reset_modules": (),
    "capture_repr": (),
    "gallery_dirs": "gallery",
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
    "matplotlib_animations": False,
}

# --- HTML: all of it opens from disk, without a server and without the network
html_theme = "furo"
html_title = f"otdd-flash {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # summaries are fetched, which pages on disk may not do
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
