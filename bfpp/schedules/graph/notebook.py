"""Tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """A table in HTML, under its title."""
    lines = (
        "".join(f"<td>{escape(cell)}</td>" for cell in row).join(("<tr>", "</tr>")) for row in rows
    )
    return f"<p><b>{escape(title)}</b></p><table>{''.join(lines)}</table>"
