"""The documentation's site: its search, which also works where a page is opened from the disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.browser import chromium, is_installed

SHOWN = (
    "return [...document.querySelectorAll('.md-search-result__item')].map((each) => each.innerText)"
)


@pytest.mark.browser
def test_the_site_is_searched_from_the_disk(tmp_path: Path) -> None:
    """Of the real configuration, without what is generated and takes minutes."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    if not is_installed():
        pytest.skip("needs chromium and chromedriver on the path")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from selenium.webdriver.support.wait import WebDriverWait

    pages = tmp_path / "pages"
    (pages / "assets").mkdir(parents=True)
    for name in ("glossary.md", "how-to/out-of-memory.md", "assets/site.css"):
        (pages / name).parent.mkdir(exist_ok=True)
        (pages / name).write_bytes((ROOT / "docs" / name).read_bytes())
    for asset in (ROOT / "docs" / "assets").iterdir():
        (pages / "assets" / asset.name).write_bytes(asset.read_bytes())
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    text = re.sub(r"  - mkdocstrings:\n(    .*\n)+", "", text)
    text = re.sub(r"^(hooks|strict): .*\n", "", text, flags=re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(text.replace("docs_dir: docs", "docs_dir: pages"))
    build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    with chromium() as driver:
        driver.get((tmp_path / "site" / "glossary.html").as_uri())
        query = driver.find_element("css selector", "input[name=query]")
        driver.execute_script("arguments[0].focus()", query)
        query.send_keys("OOM")
        found = WebDriverWait(driver, 60).until(lambda _: driver.execute_script(SHOWN))
        assert any("Out of memory" in each for each in found)
        assert [each for each in driver.get_log("browser") if each["level"] == "SEVERE"] == []
