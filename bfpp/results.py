"""What a timeline is reported as: JSON, and tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bfpp.errors import one_line
from bfpp.schedules import Sharding
from bfpp.schedules.notebook import table
from bfpp.traces.held import Held, curves
from bfpp.traces.memory import MemoryCurve, in_flight_over_time
from bfpp.traces.metrics import RankMetrics, bubble, bubble_fraction, rank_metrics, span
from bfpp.traces.period import period
from bfpp.traces.time_axis import in_words
from bfpp.traces.timeline import Timeline

WIDTH_OF_FILES = 120
"""Characters in a line of output that goes to no terminal."""

NOISE = 1e-9
"""Share of the step time below which a duration is a rounding error."""

SHORT = 13
"""Letters up to which a table's cell stays on one line: `45.7 TFLOP/s`."""

RANKS_SHOWN = 16
"""Ranks that a table shows; JSON has all of them."""


@dataclass(frozen=True, repr=False)
class Result:
    """A timeline as it is reported, under its title or another one.

    Beside others, a `label` may tell it from one whose schedule has the same name.
    """

    timeline: Timeline
    caption: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or the schedule's name."""
        return self.label or self.timeline.graph.schedule

    @property
    def title(self) -> str:
        """The caption, or the schedule and how it is cut."""
        return one_line(self.caption or f"{self.name}: {self.cut}")

    @property
    def subtitle(self) -> str:
        """What is said below the title of a picture, if anything."""
        return ""

    @property
    def cut(self) -> str:
        """How the model and the batch are cut, in words."""
        layout = self.timeline.graph.layout
        parts = [self.size]
        if layout.stages != layout.pp:
            parts.append(counted(layout.loops, "loop"))
        if layout.units != layout.stages:
            fewest, most = min(layout.units_per_stage), max(layout.units_per_stage)
            number = f"{fewest} to {most}" if fewest < most else str(most)
            parts.append(f"{number} units a stage")
        return ", ".join(parts)

    @property
    def size(self) -> str:
        """What schedules that are compared have in common: ranks, micro-batches, sharding."""
        graph = self.timeline.graph
        parts = [
            counted(graph.layout.pp, "rank"),
            counted(graph.layout.whole_microbatches, "micro-batch", "es"),
        ]
        if graph.layout.slices > 1:
            parts.append(f"{graph.layout.slices} slices each")
        if graph.communication.sharding is not Sharding.NONE:
            within = " in groups of replicas" if graph.communication.hybrid else ""
            parts.append(f"{graph.communication.sharding.usual_name}{within}")
        return ", ".join(parts)

    @cached_property
    def held(self) -> Sequence[Held]:
        """What the memory of each rank holds, where that is known."""
        return self.timeline.memory

    @cached_property
    def memory_curves(self) -> list[MemoryCurve]:
        """What each rank holds over the step: micro-batches, where bytes are not known."""
        return curves(self.timeline, self.held) or in_flight_over_time(self.timeline)

    @property
    def memory_unit(self) -> str:
        """What it is counted in."""
        return "GB" if self.held else "micro-batches"

    @property
    def whole_timeline(self) -> Timeline:
        """The timeline with what the ranks hold."""
        return replace(self.timeline, memory=self.held)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title}: {in_words(self.timeline.step_time)}>"

    def _repr_html_(self) -> str:
        """The numbers that a person reads first, and the figure, for a notebook."""
        return table(self.title, self.highlights()) + self.timeline._repr_html_()

    @cached_property
    def ranks(self) -> list[RankMetrics]:
        """Metrics of each rank."""
        return rank_metrics(self.timeline)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The result as a JSON object; times in seconds."""
        return {
            "schedule": self.timeline.graph.schedule,
            "step_time": self.timeline.step_time,
            "bubble": bubble(self.timeline),
            "bubble_fraction": bubble_fraction(self.timeline),
            "span": span(self.ranks),
            "period": period(self.timeline),
            "tasks": len(self.timeline.graph),
            **self.origin(),
            "ranks": [vars(rank) for rank in self.ranks],
        }

    def origin(self) -> dict[str, Any]:
        """Who made the timeline, and of what: a part of its record."""
        timeline = self.timeline
        return {
            "source": timeline.source,
            "about": dict(timeline.about),
            "digest": timeline.graph.digest,
        }

    def highlights(self) -> list[tuple[str, str]]:
        """The numbers that a person reads first, with their units."""
        peak = max(rank.peak_microbatches for rank in self.ranks)
        return [
            ("step time", in_words(self.timeline.step_time)),
            ("span of the longest rank", in_words(self.record["span"])),
            ("period, from step to step", in_words(self.record["period"])),
            ("bubble ratio, all idle / compute", f"{self.record['bubble']:.1%}"),
            ("bubble fraction, all idle / step", f"{self.record['bubble_fraction']:.1%}"),
            ("exposed P2P, mean rank", self._mean(lambda rank: rank.exposed_transfer)),
            ("exposed DP communication", self._mean(lambda rank: rank.exposed_data)),
            ("peak in-flight micro-batches", f"{peak:.4g}"),
            *self.further_highlights(),
            ("tasks", f"{self.record['tasks']:,}"),
        ]

    def further_highlights(self) -> list[tuple[str, str]]:
        """Rows that only some timelines have."""
        return []

    def _mean(self, value: Callable[[RankMetrics], float]) -> str:
        return self.in_words(sum(map(value, self.ranks)) / len(self.ranks))

    def in_words(self, seconds: float) -> str:
        """A share of the step time in words; rounding errors are nothing."""
        return in_words(seconds if seconds > NOISE * self.timeline.step_time else 0.0)


def verdict(results: Sequence[Result]) -> str:
    """In a sentence, which is the fastest, and how far behind the others are."""
    first, *others = sorted(results, key=lambda result: result.timeline.step_time)
    least = first.timeline.step_time
    if not others or not least:
        return ""
    behind = [
        f"{each.name} takes {each.timeline.step_time / least - 1:.1%} longer"
        if each.timeline.step_time > least * (1 + NOISE)
        else f"{each.name} takes as long"
        for each in others
    ]
    return f"{first.name} is the fastest: {in_words(least)} a step. {', '.join(behind)}."


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number of things: `1 rank`, `8 micro-batches`."""
    return f"{number} {noun}{plural if number > 1 else ''}"


def print_json(record: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the first column is left-aligned, the others right."""
    console = output()
    padding, widths = _columns_of(list(zip(columns, *rows, strict=True)), console.width)
    table = Table(
        box=SIMPLE_HEAD, show_header=any(columns), show_edge=False, pad_edge=False,
        padding=(0, padding, 0, 0),
    )  # fmt: skip
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(column), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _columns_of(table: Sequence[Sequence[str]], room: int) -> tuple[int, Sequence[int | None]]:
    """The padding and widths of a table's columns that break no word and no short cell.

    Where there is no room for that, the widths are left to the table.
    """
    least = [_least_width(cells) for cells in table]
    padding = 1 if sum(least) + 2 * len(least) <= room + 1 else 0
    room -= (1 + padding) * len(least) - 1
    if sum(least) > room:
        return padding, [None] * len(least)
    widths = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in table]
    while sum(widths) > room:
        slack = [width - narrowest for width, narrowest in zip(widths, least, strict=True)]
        widths[slack.index(max(slack))] -= 1
    return padding, widths


def _least_width(cells: Sequence[str]) -> int:
    header, *rest = cells
    short = [cell for cell in rest if len(cell) <= SHORT]
    return max(map(len, [*" ".join([header, *rest]).split(), *short]), default=0)


def output() -> Console:
    """Standard output; wide where it is no terminal and nothing else is said."""
    is_narrowed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrowed else WIDTH_OF_FILES)


def announce(path: Path) -> None:
    """Report on standard error that a file was written."""
    text = Text(one_line(f"wrote {path}"))
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
