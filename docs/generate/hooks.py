"""Hooks of MkDocs: add the pages and pictures that the tool itself makes.

Nothing that is generated is in git: the reference comes from the parsers and the docstrings,
results of a page (`out/...`) from running its commands, the paper's figures from `bfpp paper`,
and notebooks from being run.
"""

from __future__ import annotations

import os
import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.generate import assumptions, commands, notebooks, python
from docs.generate.sessions import ROOT, run, steps

REPOSITORY_README = "<!-- README -->"
WIDTH = "100"

_LINKED = re.compile(r"\]\((out/[\w./-]+)\)|(?:src|data|href)=\"(out/[\w./-]+)\"")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, with the generated pages in place of their folders."""
    os.environ.setdefault("COLUMNS", WIDTH)
    generated = {f"{each.FOLDER}/": list(each.pages()) for each in (commands, python)}
    for section in config.nav or []:
        for entries in section.values():
            if isinstance(entries, list):
                entries[:] = [_unfolded(entry, generated) for entry in entries]
    return config


def _unfolded(entry: Any, generated: dict[str, list[str]]) -> Any:
    if isinstance(entry, dict):
        return {title: generated.get(path, path) for title, path in entry.items()}
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All files of the site."""
    for path, text in {**assumptions.pages(), **commands.pages(), **python.pages()}.items():
        files.append(File.generated(config, path, content=text))
    for source in sorted(notebooks.FOLDER.glob("*.py")):
        page, notebook = notebooks.run(source)
        files.append(File.generated(config, f"notebooks/{source.stem}.md", content=page))
        files.append(File.generated(config, f"notebooks/{source.stem}.ipynb", content=notebook))
    for file in list(files.documentation_pages()):
        if file.abs_src_path and (names := linked(Path(file.abs_src_path))):
            for name, content in results(Path(file.abs_src_path), names).items():
                path = (Path(file.src_uri).parent / name).as_posix()
                assert files.get_file_from_path(path) is None, f"two pages write {path}"
                files.append(File.generated(config, path, content=content))
    return files


def linked(page: Path) -> set[str]:
    """The files of `out/` that a page shows or links to."""
    found = _LINKED.finditer(page.read_text(encoding="utf-8"))
    return {each[1] or each[2] for each in found}


def results(page: Path, names: set[str]) -> dict[str, bytes]:
    """These files, which the commands of a page write; what they print must be as the page says."""
    with TemporaryDirectory() as folder, chdir(folder):
        run(page, steps(page))
        return {name: Path(name).read_bytes() for name in sorted(names)}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """README's first screen, where a page asks for it; its links are from the docs' folder."""
    if REPOSITORY_README not in markdown:
        return markdown
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, _rest = readme.split("<!-- end of the first screen -->")
    return markdown.replace(REPOSITORY_README, first.replace("](docs/", "]("))
