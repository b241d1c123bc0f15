"""What a simulated scenario is reported as: JSON, tables, pictures."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bfpp.errors import one_line
from bfpp.options import Scenario
from schedules import Sharding
from sim.engines import simulate
from sim.prediction import predict
from traces.metrics import RankMetrics, bubble, rank_metrics
from traces.time_axis import in_words
from traces.timeline import Timeline

SHOW_PROGRESS_FROM = 50_000
"""Tasks from which on a replay takes long enough to show its progress."""

WIDTH_OF_FILES = 120
"""Characters in a line of output that goes to no terminal."""

NOISE = 1e-9
"""Share of the step time below which a duration is a rounding error."""

SHORT = 13
"""Letters up to which a table's cell stays on one line: `45.7 Tflop/s`."""

RANKS_SHOWN = 16
"""Ranks that a table shows; JSON has all of them."""


@dataclass(frozen=True)
class Result:
    """A scenario and its timeline."""

    scenario: Scenario
    timeline: Timeline

    @property
    def title(self) -> str:
        """The schedule, and how it is cut."""
        return f"{self.scenario.schedule.name}: {self.cut}"

    @property
    def cut(self) -> str:
        """How the model and the batch are cut, in words."""
        layout = self.scenario.layout
        if layout.stages_per_rank == 1:
            return self.size
        what = "loops" if layout.placement == "looped" else "stages each"
        return f"{self.size}, {layout.stages_per_rank} {what}"

    @property
    def size(self) -> str:
        """What schedules that are compared have in common: ranks, micro-batches, sharding."""
        layout, sharding = self.scenario.layout, self.scenario.communication.sharding
        parts = [
            _count(layout.pipeline_parallel, "rank"),
            _count(layout.microbatches, "micro-batch", "es"),
        ]
        if sharding is not Sharding.NONE:
            parts.append(f"{sharding} sharding")
        return ", ".join(parts)

    @cached_property
    def ranks(self) -> list[RankMetrics]:
        """Metrics of each rank."""
        return rank_metrics(self.timeline)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The result as a JSON object; times in seconds, memory in gigabytes."""
        physical = self.scenario.physical
        return {
            "schedule": self.scenario.schedule.name,
            "step_time": self.timeline.step_time,
            "bubble": bubble(self.timeline),
            "tasks": len(self.timeline.graph),
            "engine": self.timeline.source,
            **(predict(self.timeline, physical) if physical else {}),
            "ranks": [vars(rank) for rank in self.ranks],
        }

    def highlights(self) -> list[tuple[str, str]]:
        """The numbers that a person reads first, with their units."""
        peak = max(rank.peak_microbatches for rank in self.ranks)
        lines = [
            ("step time", in_words(self.timeline.step_time)),
            ("bubble", f"{self.record['bubble']:.1%}"),
            ("exposed transfers, mean rank", self._mean(lambda rank: rank.exposed_transfer)),
            ("exposed gathers and reductions", self._mean(lambda rank: rank.exposed_data)),
            ("peak micro-batches, any rank", f"{peak:.4g}"),
        ]
        if self.scenario.physical:
            lines += [
                ("throughput of a GPU", f"{self.record['tflops_per_gpu']:.1f} Tflop/s"),
                ("samples per second", f"{self.record['samples_per_second']:.4g}"),
                ("memory, fullest rank", self._largest_memory()),
                ("memory of a device", f"{self.record['device_memory_gb']:.4g} GB"),
                ("memory, first rank", f"{self.record['memory_gb']:.1f} GB"),
                ("same, very large cluster", f"{self.record['memory_min_gb']:.1f} GB"),
            ]
        return [*lines, ("tasks", f"{self.record['tasks']:,}")]

    def _largest_memory(self) -> str:
        """The memory that decides whether the model fits, marked if it does not."""
        mark = " (!)" if self.record["missing_gb"] else ""
        return f"{self.record['memory_largest_gb']:.1f} GB{mark}"

    def _mean(self, value: Callable[[RankMetrics], float]) -> str:
        return self.in_words(sum(map(value, self.ranks)) / len(self.ranks))

    def in_words(self, seconds: float) -> str:
        """A share of the step time in words; rounding errors are nothing."""
        return in_words(seconds if seconds > NOISE * self.timeline.step_time else 0.0)


def run_scenario(scenario: Scenario, engine: str) -> Result:
    """Build and replay a scenario, with a progress bar where it takes long.

    Raises `OverflowError` for a step that takes longer than a number can tell.
    """
    graph = scenario.graph()
    with _progress(scenario.schedule.name, len(graph)) as advance, np.errstate(all="ignore"):
        timeline = simulate(graph, scenario.costs, engine, advance)
    if not math.isfinite(timeline.step_time):
        raise OverflowError("the step time is not finite")
    return Result(scenario, timeline)


def shortage(record: Mapping[str, Any]) -> str:
    """Of a record that does not fit: how much of a device it needs, and most of it for what."""
    part, size = max(record["memory_parts_gb"].items(), key=lambda each: each[1])
    needed, device = record["memory_largest_gb"], record["device_memory_gb"]
    return f"{needed:.1f} GB of {device:.4g} GB; largest is {part}, {size:.1f} GB"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number > 1 else ''}"


@contextmanager
def _progress(name: str, tasks: int) -> Iterator[Callable[[int], None] | None]:
    if tasks < SHOW_PROGRESS_FROM or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(name, total=tasks)
        done = 0

        def advance(_: int) -> None:
            nonlocal done
            done += 1
            if done % 1024 == 0:
                bar.update(job, completed=done)

        yield advance


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


def print_shortages(results: Sequence[Result]) -> None:
    """A line on standard output for each result that does not fit."""
    lines = [
        f"{record['schedule']} does not fit: {shortage(record)}\n"
        for record in (result.record for result in results)
        if record.get("missing_gb")
    ]
    if lines:
        output().print(Text("".join(lines)))


def output() -> Console:
    """Standard output; wide where it is no terminal and nothing else is said."""
    is_narrowed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrowed else WIDTH_OF_FILES)


def announce(path: Path) -> None:
    """Say on standard error that a file is there."""
    text = Text(one_line(f"wrote {path}"))
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
