"""A result as a panel of a page: its timeline, waits, critical path and causes."""

from __future__ import annotations

from dataclasses import replace

from bfpp.api.results import Result
from bfpp.sim.costs.measured.wait_gains import MOST as MOST_GAINS
from bfpp.sim.costs.measured.wait_gains import waits_with_gains
from bfpp.traces.explain.causes import Causes
from bfpp.traces.figures.panel import Panel

EXPLAINED_UP_TO = 100_000
"""Tasks up to which a page holds the cause of each idle stretch."""


def panel_of(result: Result, most_gains: int = MOST_GAINS) -> Panel:
    """A result as a page shows it, with the gains of its `most_gains` longest waits."""
    highlights = tuple(result.highlights())
    panel = Panel(
        result.title,
        result.timeline,
        result.subtitle,
        highlights,
        memory=tuple(result.memory_curves),
        memory_unit=result.memory_unit,
        headline=result.headline,
        falls_short=bool(result.shortage),
    )
    if len(result.timeline.graph) > EXPLAINED_UP_TO:
        return panel
    causes = Causes(result.timeline)
    return replace(
        panel,
        waits=tuple(waits_with_gains(causes, most_gains)),
        critical_path=tuple(causes.critical_path),
        causes=tuple(causes.mean_rank.items()),
    )
