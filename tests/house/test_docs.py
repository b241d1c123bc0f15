"""README and the documentation: what they say runs, leads somewhere, and covers all there is."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest

import bfpp
from bfpp.terminal.command_table import COMMANDS
from docs.generate import assumptions, commands, python
from docs.generate.sessions import PAGES, ROOT, Command, agrees, quick, run, steps

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
LINK = re.compile(r"\]\((?!https?:|#|out/)([^)#\s]+)(?:#([^)\s]+))?\)")
OUR_FILE = re.compile(r"`((?:bfpp|tests|benchmarks|docs|examples)/[\w/.-]*)`")
FLOORS = ("schedules", "traces", "sim", "executor")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def title(page):
    return page.relative_to(ROOT).as_posix()


QUICK = [page for page in PAGES if quick(page)]
LONG = [page for page in PAGES if any(step.is_long for step in steps(page))]


@pytest.mark.parametrize("page", QUICK, ids=title)
def test_what_a_page_says_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    run(page, quick(page))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("page", LONG, ids=title)
def test_all_that_a_page_says_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    run(page, steps(page))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=title)
def test_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


def test_pages_have_commands():
    assert sum(isinstance(step, Command) for page in QUICK for step in quick(page)) > 60
    assert {title(page) for page in LONG} > {"README.md", "docs/tutorials/training.md"}


@pytest.mark.parametrize(
    ("printed", "found", "same"),
    [
        ((), "anything", True),
        (("valid",), "valid\n", True),
        (("valid",), "invalid\n", False),
        (("step time...", "..."), "step time   3 s\nbubble  1 %\n", True),
        (("step time...",), "step time   3 s\nbubble  1 %\n", True),
        (("bubble...",), "step time   3 s\nbubble  1 %\n", False),
    ],
)
def test_what_is_printed_otherwise_is_seen(printed, found, same):
    assert agrees(Command("bfpp", printed), found) is same


def test_a_page_that_is_wrong_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    for wrong in ("```console\n$ bfpp check none.csv\n```\n", "```python\nassert 0\n```\n"):
        page.write_text(wrong)
        with pytest.raises(AssertionError):
            run(page, quick(page))


@cache
def generated():
    """The pages that the build makes, by path in the docs."""
    made = {**assumptions.pages(), **commands.pages(), **python.pages()}
    for path in NOTEBOOKS:
        made |= {f"notebooks/{path.stem}{suffix}": "" for suffix in (".md", ".ipynb")}
    return made


def anchors(text):
    """Those of the headings of a page."""
    for heading in HEADING.findall(text):
        yield re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=title)
def test_every_link_leads_somewhere(page):
    made = {(ROOT / "docs" / path).resolve(): text for path, text in generated().items()}
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert path in made or path.exists(), target
        if anchor and path not in made:
            assert anchor in set(anchors(path.read_text(encoding="utf-8"))), (target, anchor)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=title)
def test_every_file_of_ours_that_is_named_exists(page):
    for path in OUR_FILE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("floor", ["bfpp", *(f"bfpp/{name}" for name in FLOORS)])
def test_the_architecture_names_every_room(floor):
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    heading = "Front door" if floor == "bfpp" else f"`{floor}`"
    section = text.partition(f"### {heading}")[2].partition("\n#")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    rooms = {file.parent.name for file in (ROOT / floor).glob("*/__init__.py")}
    below = {*FLOORS, "core"} if floor == "bfpp" else set()
    assert {*re.findall(r"`(\w+)`", " ".join(first_cells))} == rooms - below


def test_the_architecture_names_every_module_of_the_core():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("### `bfpp/core`")[2].partition("\n#")[0]
    modules = {file.stem for file in (ROOT / "bfpp" / "core").rglob("[!_]*.py")}
    subjects = {file.stem for file in (ROOT / "bfpp" / "core" / "source").rglob("*.h")}
    assert {*re.findall(r"\| `(\w+)\.py`", section)} == {"SUBJECT"} | (modules - subjects)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"[\w/-]+\.md", navigation))
    folders = {f"{each.FOLDER}/" for each in (commands, python)}
    assert all(folder in navigation for folder in folders)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    pages |= {path for path in generated() if path.startswith("notebooks/") and path.endswith("md")}
    pages |= assumptions.pages().keys()
    assert listed == pages


def test_the_reference_has_every_command_with_every_option(bfpp):
    pages = commands.pages()
    for command in COMMANDS:
        page = pages[f"{commands.FOLDER}/{command}.md"]
        assert f"({command}.md)" in pages[f"{commands.FOLDER}/index.md"]
        _, told, _ = bfpp(command, "--help", "all")
        options = set(re.findall(r"^ +(?:-h .*, )?(--[a-z][\w-]*)", told, re.MULTILINE))
        assert options
        assert all(option in page for option in options)


def test_the_reference_has_every_public_name_once():
    pages = "".join(python.pages().values())
    assert sorted(re.findall(r"^::: bfpp\.(\w+)$", pages, re.MULTILINE)) == bfpp.__all__


def test_what_is_generated_is_not_kept():
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    site = re.search(r"^site_dir: (\w+)/", Path(ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert f"{site[1]}/" in ignored
    assert not any((ROOT / "docs" / path).exists() for path in generated())
