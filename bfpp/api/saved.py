"""Timelines read from the files that a command names, and how they are reported."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.api.results import Result
from bfpp.schedules import Schedule, TaskGraph, build_graph
from bfpp.terminal import formats
from bfpp.terminal.error_lines import blaming, one_line
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.formats.chakra import is_chakra
from bfpp.traces.formats.text_files import begins_with_events
from bfpp.traces.formats.timeline_json import load_timeline
from bfpp.traces.profiles.nsight import is_nsight
from bfpp.traces.timeline.timeline import Timeline

if TYPE_CHECKING:
    from bfpp.sim.engines.cost_model import CostModel


NOT_MEASURED = "not_measured"
"""The note of a replay on operations whose durations are not known, and which take no time."""


def add_timeline_argument(
    parser: argparse.ArgumentParser, name: str, metavar: str, purpose: str
) -> None:
    """A file of a timeline, simulated or measured."""
    parser.add_argument(
        name,
        type=Path,
        metavar=metavar,
        help=f"{purpose}, from bfpp simulate --timeline, bfpp run --trace or bfpp import",
    )


def add_replica_argument(parser: argparse.ArgumentParser) -> None:
    """`--replica`, of timelines whose replicas differ."""
    parser.add_argument(
        "--replica",
        type=int,
        metavar="N",
        help="where replicas differ: by replica N (default: the one that others wait for)",
    )


def is_timeline_file(name: str) -> bool:
    """True for the name of a file that timelines are saved in."""
    return name.endswith(formats.TIMELINE.suffixes)


def is_job_table(path: Path) -> bool:
    """True for the name of a table of a job's operations, as others record it."""
    return path.suffix == ".parquet"


def is_job_file(path: Path) -> bool:
    """True for a job's operations: such a table, or the file that `bfpp import` saves of it."""
    if is_job_table(path):
        return True
    try:
        return path.name.endswith(formats.OPERATIONS.suffixes) and formats.OPERATIONS.is_ours(path)
    except OSError:
        return False


def is_trace_file(name: str) -> bool:
    """True for a file that others wrote: an SQLite export, Chakra's, or JSON that is not ours.

    A damaged file of ours is not a trace: the reason is then what is wrong with a timeline.
    """
    path = Path(name)
    try:
        if is_nsight(path) or is_chakra(path):
            return True
        return is_timeline_file(name) and path.is_file() and begins_with_events(path)
    except OSError:
        return False


def load(path: Path, option: str) -> Timeline:
    """The timeline of a file; the option is named where the file is at fault."""
    with blaming(option):
        return load_timeline(path)


@dataclass(frozen=True)
class SavedTimeline(Result):
    """A timeline from a file: its source, and the causes of its ranks' waits."""

    @property
    def origins(self) -> list[tuple[str, str]]:
        """Titles and values of the file's own description, without zeros and disabled options."""
        timeline = self.timeline
        source = "measured" if timeline.is_measured else f"simulated ({timeline.source} engine)"
        about = {name: each for name, each in timeline.about.items() if each not in (0, "false")}
        origins = [("source", source), *((name, _in_words(each)) for name, each in about.items())]
        return [(one_line(name.replace("_", " ")), one_line(value)) for name, value in origins]

    @property
    def subtitle(self) -> str:
        """The same on one line."""
        return ", ".join(f"{name} {value}" for name, value in self.origins)

    @cached_property
    def causes(self) -> Causes:
        """Blockers, critical path and waits."""
        return Causes(self.timeline)

    @property
    def idle(self) -> list[dict[Cause, float]]:
        """For each rank, its idle seconds by cause."""
        return self.causes.idle

    @cached_property
    def costs(self) -> CostModel:
        """Costs as measured: each task takes as long as it took."""
        from bfpp.sim.costs.measured.replay import AsItRan

        return AsItRan(self.causes)

    def as_schedule(self, rule: Schedule, parts: int | None = None) -> SavedTimeline:
        """The same step by another schedule, with these durations.

        Ranks have as many `parts` as they have units, by default. Raises `InvalidConfiguration`
        for a schedule that this timeline says too little of.
        """
        own = self.timeline.graph
        parts = parts or -(-own.layout.units // own.layout.pp)
        layout = rule.divided(own.layout.pp, own.layout.microbatches, parts)
        return self._replayed(build_graph(rule, layout, own.communication))

    def as_itself(self) -> SavedTimeline:
        """The same step with its own times, without what it waited for beyond its order."""
        return self._replayed(self.timeline.graph)

    def _replayed(self, graph: TaskGraph) -> SavedTimeline:
        from bfpp.sim.engines.engines import simulate
        from bfpp.sim.remedies.measured_elsewhere import MeasuredElsewhere

        costs = MeasuredElsewhere(self.causes)
        replayed = simulate(graph, costs)
        unknown = costs.not_measured(graph)
        about = {NOT_MEASURED: ", ".join(unknown)} if unknown else {}
        return SavedTimeline(replace(replayed, about=about))

    @cached_property
    def record(self) -> dict[str, Any]:
        """The result as a JSON object; times in seconds."""
        record = super().record
        both = zip(record["ranks"], self.idle, strict=True)
        return {**record, "ranks": [{**rank, "causes": causes} for rank, causes in both]}


def _in_words(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
