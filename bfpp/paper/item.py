"""Items of the paper: the files of each, its claims, and figures of timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bfpp.schedules import Communication, Schedule, TaskGraph, build_graph, find_schedule
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.metrics import bubble
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import in_words


@dataclass(frozen=True)
class PaperTable:
    """A table to print: a title, column names, rows of cells, and notes below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table as Markdown text."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = ([cell.replace("\n", " ").replace("<", "&lt;") for cell in line] for line in lines)
        table = "".join(f"| {' | '.join(line)} |\n" for line in cells)
        notes = "".join(f"- {note}\n" for note in self.notes)
        return f"# {self.title}\n\n{table}\n{notes}"

    def write(self, path: Path) -> None:
        """Write the Markdown to a file, which says that it is ours."""
        path.write_text(f"<!-- generator: bfpp -->\n{self.markdown()}", encoding="utf-8")


@dataclass(frozen=True)
class Folder:
    """The folder of an item's files, and the printed width of its figures in points, if any."""

    path: Path
    points: float | None = None

    def __truediv__(self, name: str) -> Path:
        """The file of that name."""
        return self.path / name


@dataclass(frozen=True)
class Claim:
    """A claim of the paper on an item, the result here, and whether they agree.

    `reason` says why they do not, if that is known, or that it is not.
    """

    paper: str
    here: str
    holds: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if self.holds:
            object.__setattr__(self, "reason", "")

    @property
    def verdict(self) -> str:
        """The agreement, in words."""
        return "as the paper says" if self.holds else "not as the paper says"


@dataclass(frozen=True)
class ItemOutput:
    """The files that an item wrote, its JSON, its sentence, its table, and the paper's claims."""

    files: Sequence[Path]
    record: dict[str, Any] = field(default_factory=dict)
    table: PaperTable | None = None
    sentence: str = ""
    claims: Sequence[Claim] = ()

    @property
    def claims_table(self) -> PaperTable | None:
        """The paper's claims beside what is drawn, if it makes any."""
        rows = [[each.paper, each.here, each.verdict, each.reason] for each in self.claims]
        columns = ("the paper", "here", "", "reason")
        return PaperTable("What the paper says, and what is drawn", columns, rows) if rows else None


@dataclass(frozen=True)
class Captioned:
    """A timeline under the caption that the paper gives it."""

    caption: str
    timeline: Timeline

    @property
    def summary(self) -> tuple[tuple[str, str], ...]:
        """The numbers that a reader compares."""
        return (
            ("step time", in_words(self.timeline.step_time)),
            ("bubble", f"{bubble(self.timeline):.1%}"),
        )

    @property
    def record(self) -> dict[str, Any]:
        """The timeline's numbers; times in seconds."""
        return {
            "caption": self.caption,
            "step_time": self.timeline.step_time,
            "bubble": bubble(self.timeline),
            "tasks": len(self.timeline.graph),
        }


def graph_of(
    named: str | Schedule, ranks: int, microbatches: int, parts: int, communication: Communication
) -> TaskGraph:
    """The graph of a schedule on its own placement."""
    schedule = find_schedule(named) if isinstance(named, str) else named
    layout = schedule.divided(ranks, microbatches, parts)
    return build_graph(schedule, layout, communication)


def captioned(caption: str, graph: TaskGraph, costs: AbstractCosts) -> Captioned:
    """The replayed graph under its caption."""
    return Captioned(caption, simulate(graph, costs))


def draw(
    panels: Sequence[Captioned],
    folder: Folder,
    name: str,
    title: str,
    sentence: str,
    claims: Sequence[Claim] = (),
) -> ItemOutput:
    """Write the timelines below one another, for print and for the browser."""
    from bfpp.api.print_figures import write_svg
    from bfpp.traces.figures.panel import Panel
    from bfpp.traces.page.html import write_html

    svg, html = folder / f"{name}.svg", folder / f"{name}.html"
    write_svg([Panel(panel.caption, panel.timeline) for panel in panels], svg, folder.points)
    page = [Panel(panel.caption, panel.timeline, summary=panel.summary) for panel in panels]
    write_html(page, html, title, sentence)
    record = {"panels": [panel.record for panel in panels]}
    return ItemOutput([svg, html], record, sentence=sentence, claims=claims)
