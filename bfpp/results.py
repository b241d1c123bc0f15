"""What a simulated scenario is reported as: JSON, tables, pictures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bfpp.options import Scenario
from sim.engines import simulate
from sim.prediction import predict
from traces.metrics import RankMetrics, bubble, rank_metrics
from traces.time_axis import in_words
from traces.timeline import Timeline

SHOW_PROGRESS_FROM = 50_000
"""Tasks from which on a replay takes long enough to show its progress."""

WIDTH_OF_FILES = 120
"""Characters in a line of output that goes to no terminal."""

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
        layout, communication = self.scenario.layout, self.scenario.communication
        parts = [f"{layout.pipeline_parallel} ranks", f"{layout.microbatches} micro-batches"]
        if layout.stages_per_rank > 1:
            what = "loops" if layout.placement == "looped" else "stages each"
            parts.append(f"{layout.stages_per_rank} {what}")
        if communication.sharding != "none":
            parts.append(f"{communication.sharding} sharding")
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
                ("throughput", f"{self.record['tflops_per_gpu']:.1f} Tflop/s per GPU"),
                ("samples", f"{self.record['samples_per_second']:.2f} per second"),
                ("memory", f"{self.record['memory_gb']:.1f} GB"),
                ("memory on a very large cluster", f"{self.record['memory_min_gb']:.1f} GB"),
            ]
        return [*lines, ("tasks", f"{self.record['tasks']:,}")]

    def _mean(self, value: Callable[[RankMetrics], float]) -> str:
        return in_words(sum(map(value, self.ranks)) / len(self.ranks))


def run_scenario(scenario: Scenario, engine: str) -> Result:
    """Build and replay a scenario, with a progress bar where it takes long."""
    graph = scenario.graph()
    with _progress(scenario.schedule.name, len(graph)) as advance:
        return Result(scenario, simulate(graph, scenario.costs, engine, advance))


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
    table = Table(box=SIMPLE_HEAD, show_header=any(columns), pad_edge=False, padding=(0, 1))
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(column), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = output()
    console.print(Text(title, style="bold"))
    console.print(table)


def output() -> Console:
    """Standard output; wide where it is no terminal and nothing else is said."""
    is_narrowed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrowed else WIDTH_OF_FILES)


def announce(path: Path) -> None:
    """Say on standard error that a file is there."""
    Console(stderr=True, highlight=False).print(Text(f"wrote {path}"))
