"""Write figures and tables as one page without scripts, which opens anywhere and prints.

It needs no other file, and its content security policy lets nothing load or run. Foreign text
(titles, names) is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from bfpp.traces.page.html import look, part


@dataclass(frozen=True)
class Section:
    """A heading with its text; a figure (`svg`, inserted as it is), or a table with its columns."""

    title: str
    text: str = ""
    svg: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def static_page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The page: its title, sentences that sum it up, and its sections."""
    return Template(part("static.html")).substitute(
        title=escape(title),
        style=look(),
        lead="\n".join(f'  <p class="lead">{escape(line)}</p>' for line in lead),
        sections="\n".join(map(_section, sections)),
    )


def _section(section: Section) -> str:
    body = [f"<h2>{escape(section.title)}</h2>"]
    if section.text:
        body.append(f"<p>{escape(section.text)}</p>")
    if section.svg:
        body.append(section.svg)
    if section.columns:
        body += ["<table>", f"<thead>{_row(section.columns, 'th')}</thead>", "<tbody>"]
        body += [_row(row, "td") for row in section.rows]
        body += ["</tbody>", "</table>"]
    return "\n".join(["<section>", *body, "</section>"])


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
