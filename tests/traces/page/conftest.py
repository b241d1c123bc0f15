"""A browser for the tests of the page, and pages opened in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bfpp.traces.figures.panel import Panel
from bfpp.traces.page.html import write_html
from tests.helpers.browser import Page, chromium, is_installed


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not is_installed():
        pytest.skip("needs chromium and chromedriver on the path")
    with chromium() as started:
        yield started


@pytest.fixture
def opened(driver: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    pages = []

    def open_page(*panels: Panel, title: str = "A step", fragment: str = "") -> Page:
        write_html(panels, tmp_path / "page.html", title, "A sentence.")
        pages.append(Page(driver, (tmp_path / "page.html").as_uri() + fragment))
        return pages[-1]

    yield open_page
    assert [complaint for page in pages for complaint in page.complaints()] == []
