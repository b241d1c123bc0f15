"""One page with all that `bfpp paper` made: each figure and table, and a sentence on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.traces.page.html import look

STYLE = """
body { max-width: 1080px; margin: auto; }
h2 { margin: 44px 0 8px; }
h2::first-letter { text-transform: capitalize; }
p, li { max-width: 92ch; margin-top: 6px; }
ul { margin-left: 20px; }
img { max-width: 100%; margin: 12px 0; display: block; border-radius: 4px; }
.table { overflow-x: auto; }
table { border-collapse: collapse; margin: 12px 0; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: pre-line; }
th { color: var(--quiet); font-weight: 500; }
:is(th, td):first-child { text-align: left; }
"""


FROM_GRAPHS = "made by bfpp from task graphs, simulation and search, next to what the paper prints"
FROM_STUDY = "measured by bfpp study, beside its predictions and what the paper says"
"""Origins of what a page shows."""


def write_index(made: Mapping[str, ItemOutput], folder: Folder, origin: str) -> Path:
    """Write `index.html` next to the files that it shows."""
    sections = "".join(_section(name, item) for name, item in made.items())
    path = folder / "index.html"
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="generator" content="bfpp">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>Breadth-First Pipeline Parallelism, redrawn</title>"
        f"<style>{look()}{STYLE}</style></head><body>\n"
        "<h1>Breadth-First Pipeline Parallelism, redrawn</h1>\n"
        '<p class="lead">The figures and tables of the paper (Lamy-Poirier, MLSys 2023), '
        f"{origin}.</p>\n"
        f"{sections}</body></html>\n",
        encoding="utf-8",
    )
    return path


def _section(name: str, item: ItemOutput) -> str:
    """An item: its sentence, its pictures, its table, and its files."""
    pictures = [path for path in item.files if path.suffix == ".svg"]
    parts = [f'<h2 id="{escape(name)}">{escape(name.replace("-", " "))}</h2>\n']
    if item.sentence:
        parts.append(f"<p>{escape(item.sentence)}</p>\n")
    parts += [f'<img src="{escape(path.name)}" alt="{escape(name)}">\n' for path in pictures]
    parts += [_table(each) for each in (item.claims_table, item.table) if each]
    links = (f'<a href="{escape(path.name)}">{escape(path.name)}</a>' for path in item.files)
    parts.append(f"<p>{' &middot; '.join(links)}</p>\n")
    return "".join(parts)


def _table(table: PaperTable) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<p>{escape(table.title)}</p>\n<div class="table" role="region" '
        f'aria-label="{escape(table.title)}" tabindex="0">'
        f"<table><thead>{_row('th', table.columns)}</thead>\n<tbody>{_rows(table.rows)}</tbody>"
        "</table></div>\n" + (f"<ul>{notes}</ul>\n" if notes else "")
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "".join(_row("td", row) for row in rows)


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"
