"""One page with all that `bfpp paper` made: each figure and table, and a sentence on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from bfpp.paper.item import Made, PaperTable

STYLE = """
:root { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  color: #16202c; }
body { max-width: 1080px; margin: 36px auto 60px; padding: 0 32px; }
h1 { font-size: 24px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 44px 0 8px; }
h2::first-letter { text-transform: capitalize; }
p, li { max-width: 92ch; color: #414c59; }
img { max-width: 100%; margin: 10px 0; display: block; }
table { border-collapse: collapse; margin: 12px 0; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid #e3e7ec; white-space: pre-line; }
th { color: #5b6673; font-weight: 500; }
:is(th, td):first-child { text-align: left; }
a { color: #1f5fa8; }
"""


def write_index(made: Mapping[str, Made], directory: Path) -> Path:
    """Write `index.html` beside the files that it shows."""
    sections = "".join(_section(name, item) for name, item in made.items())
    path = directory / "index.html"
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="generator" content="bfpp">'
        "<title>Breadth-First Pipeline Parallelism, redrawn</title>"
        f"<style>{STYLE}</style></head><body>\n"
        "<h1>Breadth-First Pipeline Parallelism, redrawn</h1>\n"
        "<p>The figures and tables of the paper (Lamy-Poirier, MLSys 2023), made by bfpp from "
        "task graphs, simulation and search, next to what the paper prints.</p>\n"
        f"{sections}</body></html>\n",
        encoding="utf-8",
    )
    return path


def _section(name: str, item: Made) -> str:
    """An item: its sentence, its pictures, its table, and its files."""
    pictures = [path for path in item.files if path.suffix == ".svg"]
    parts = [f'<h2 id="{escape(name)}">{escape(name.replace("-", " "))}</h2>\n']
    if item.sentence:
        parts.append(f"<p>{escape(item.sentence)}</p>\n")
    parts += [f'<img src="{escape(path.name)}" alt="{escape(name)}">\n' for path in pictures]
    if item.table:
        parts.append(_table(item.table))
    links = (f'<a href="{escape(path.name)}">{escape(path.name)}</a>' for path in item.files)
    parts.append(f"<p>{' &middot; '.join(links)}</p>\n")
    return "".join(parts)


def _table(table: PaperTable) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f"<p>{escape(table.title)}</p>\n<table><thead>{_row('th', table.columns)}</thead>\n<tbody>"
        f"{_rows(table.rows)}</tbody></table>\n" + (f"<ul>{notes}</ul>\n" if notes else "")
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "".join(_row("td", row) for row in rows)


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"
