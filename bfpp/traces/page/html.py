"""Write timelines as one interactive page, which works offline whatever the number of tasks.

Python packs columns and never draws; the page (`page/*.js`) draws what its window shows.
Rules that the file keeps:

- It needs no other file: style, scripts and data are inside, and its content security policy
  lets nothing else load or run.
- Foreign text (titles, names) is data: it travels as JSON in which no tag can
  be written, and the page inserts it as text, never as markup.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from bfpp.traces.figures.panel import Panel
from bfpp.traces.page.panel_data import panel_data
from bfpp.traces.timeline.timeline import Timeline

MOST_OPEN_LANES = 48
"""A page with more rows than this opens with its channels hidden."""

SCRIPTS = (
    "data",
    "painting",
    "drawing",
    "zooming",
    "pointing",
    "waiting",
    "finding",
    "keyboard",
    "numbers",
    "sharing",
    "choices",
    "replay",
    "scatter",
    "timeline",
)
"""The parts of the page's one script, in order."""


def write_html(
    panels: Sequence[Panel], path: str | PathLike[str], title: str, lead: str = ""
) -> None:
    """Write a page of timelines below each other, to one scale of time; `lead` sums them up.

    Raises `ValueError` if there is no panel, or if times are not finite.

    >>> import bfpp, tempfile
    >>> panel = bfpp.Panel("GPipe", bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline)
    >>> with tempfile.NamedTemporaryFile(suffix=".html") as file:
    ...     bfpp.write_html([panel], file.name, "A page of one schedule")
    """
    if not panels:
        raise ValueError("a page needs at least one panel")
    Path(path).write_text(page(panels, title, lead), encoding="utf-8")


def page(panels: Sequence[Panel], title: str, lead: str = "") -> str:
    """The page of `write_html`, as text."""
    return document(contents(panels, title, lead))


def contents(panels: Sequence[Panel], title: str, lead: str = "") -> dict[str, Any]:
    """The data that the page's scripts read."""
    return {
        "title": title,
        "lead": lead,
        "opensWithChannels": _opens_with_channels([panel.timeline for panel in panels]),
        "panels": [panel_data(panel) for panel in panels],
    }


def document(content: Mapping[str, Any], connect: str = "'none'") -> str:
    """A page with that content, which may `connect` to these sources of its policy."""
    script = "".join(part(f"script/{name}.js") for name in SCRIPTS)
    return Template(part("page.html")).substitute(
        title=escape(content["title"]),
        scripts=_digest(script),
        connect=connect,
        style=look() + part("page.css"),
        script=script,
        content=embeddable(content),
    )


def look() -> str:
    """The style that all pages share: light and dark colours, fonts, headings."""
    return part("look.css")


def embeddable(content: object) -> str:
    """JSON for a script element: nothing in it can end or open a tag."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def part(name: str) -> str:
    """A file of the page: markup, style or script."""
    return (files("bfpp.traces") / "page" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The hash of a script, as a source of the content security policy."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _opens_with_channels(timelines: Sequence[Timeline]) -> bool:
    """True where channels are worth their room: some transfers take time, and all rows fit."""
    lanes = sum(len(timeline.graph.lanes) for timeline in timelines)
    return lanes <= MOST_OPEN_LANES and any(
        (timeline.duration[timeline.graph.is_transfer] > 0).any() for timeline in timelines
    )
