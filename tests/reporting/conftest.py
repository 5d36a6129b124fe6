from __future__ import annotations

import pytest

from tests.reporting.pages import Results, make_results


@pytest.fixture(scope="session")
def results() -> Results:
    """Of sets with plain names and pictures as samples."""
    return make_results(("cat", "dog", "emu"), ("wild", "tame", "zoo", "farm"))
