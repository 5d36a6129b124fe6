"""Results as one self-contained HTML page: :func:`report` writes it, :func:`render` gives its text."""

from otdd_flash.reporting.page import render, report

__all__ = ["render", "report"]
