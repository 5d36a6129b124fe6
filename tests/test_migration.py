"""Every code line of the migration pages runs and prints what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parent.parent / "docs").glob("migration-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("error::otdd_flash.errors.NotConvergedWarning")
def test_code_of_a_migration_page(page: Path) -> None:
    if "geomloss" in page.stem:
        pytest.importorskip("geomloss")
    if "microsoft" in page.stem:
        pytest.importorskip("sklearn")
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    case = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert len(case.examples) > 5
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(case, out=report.append)
    assert results.failed == 0, "".join(report)


def test_there_is_a_page_for_each() -> None:
    assert [page.stem.removeprefix("migration-from-") for page in PAGES] == [
        "flash-sinkhorn",
        "geomloss",
        "microsoft-otdd",
    ]
