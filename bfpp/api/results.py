"""A timeline as it is reported: its JSON object and its numbers in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bfpp.schedules import Sharding
from bfpp.schedules.graph.notebook import table
from bfpp.terminal.error_lines import one_line
from bfpp.terminal.printing import counted
from bfpp.traces.timeline.memory_curves import MemoryCurve, curves, in_flight_over_time
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.metrics import RankMetrics, bubble, bubble_fraction, rank_metrics, span
from bfpp.traces.timeline.period import period
from bfpp.traces.timeline.timeline import Replicas, Timeline
from bfpp.traces.timeline.units import in_words

NOISE = 1e-9
"""Share of the step time below which a duration is a rounding error."""


@dataclass(frozen=True, repr=False)
class Result:
    """A timeline as it is reported, under its title or another one.

    Next to others, a `label` distinguishes it from one whose schedule has the same name.
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
        """The line below the title of a picture, if any."""
        return ""

    @property
    def step_time(self) -> float:
        """Seconds from the first task's start to the last one's end."""
        return self.timeline.step_time

    @property
    def bubble(self) -> float:
        """Bubble ratio: all idle time over compute."""
        return bubble(self.timeline)

    @property
    def cut(self) -> str:
        """Ranks, micro-batches, sharding, loops and units of stages, in words."""
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
        """Ranks, micro-batches and sharding, which compared schedules share."""
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

    @property
    def software(self) -> dict[str, Any]:
        """The implementation whose time was predicted, of a model on a cluster."""
        named = self.timeline.about.get("implementation")
        return {} if named is None else {"implementation": named}

    @cached_property
    def held(self) -> Sequence[MemoryRecord]:
        """Memory record of each rank, where it is known."""
        return self.timeline.memory

    @cached_property
    def memory_curves(self) -> list[MemoryCurve]:
        """Memory of each rank over the step; in-flight micro-batches where bytes are not known."""
        return curves(self.timeline, self.held) or in_flight_over_time(self.timeline)

    @property
    def memory_unit(self) -> str:
        """Unit of the memory curves."""
        return "GiB" if self.held else "micro-batches"

    @property
    def replicas(self) -> Replicas | None:
        """Timelines of all replicas, where they differ."""
        return self.timeline.replicas

    @property
    def whole_timeline(self) -> Timeline:
        """The timeline with the memory of each rank, and those of all replicas."""
        return replace(self.timeline, memory=self.held, replicas=self.replicas)

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
            "period": period(self.timeline, self.replicas),
            "tasks": len(self.timeline.graph),
            **self.software,
            **self.origin(),
            "ranks": [vars(rank) for rank in self.ranks],
        }

    def origin(self) -> dict[str, Any]:
        """Provenance of the timeline, a part of its record: source, costs, digest of the graph."""
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

    @property
    def headline(self) -> tuple[str, ...]:
        """The numbers that decide, in a few words each, for the line above a picture."""
        return (f"{in_words(self.step_time)} a step", f"bubble ratio {self.bubble:.1%}")

    @property
    def shortage(self) -> str:
        """Empty, or how far it exceeds a device's memory."""
        return ""

    def further_highlights(self) -> list[tuple[str, str]]:
        """Rows that only some timelines have."""
        return []

    def _mean(self, value: Callable[[RankMetrics], float]) -> str:
        return self.in_words(sum(map(value, self.ranks)) / len(self.ranks))

    def in_words(self, seconds: float) -> str:
        """A share of the step time in words; rounding errors are nothing."""
        return in_words(seconds if seconds > NOISE * self.timeline.step_time else 0.0)


def fastest(results: Sequence[Result]) -> Result | None:
    """The one with the shortest step of those that fit in memory, if any does."""
    fitting = (result for result in results if not result.shortage)
    return min(fitting, key=lambda result: result.timeline.step_time, default=None)


def verdict(results: Sequence[Result]) -> str:
    """In sentences, which is the fastest, how far behind the others are, and which do not fit."""
    sentences = [f"{each.name} does not fit: {each.shortage}" for each in results if each.shortage]
    first = fastest(results)
    if len(results) > 1 and first is not None and (least := first.timeline.step_time):
        others = [each for each in results if each is not first and not each.shortage]
        others.sort(key=lambda result: result.timeline.step_time)
        behind = [
            f"{each.name} takes {each.timeline.step_time / least - 1:.1%} longer"
            if each.timeline.step_time > least * (1 + NOISE)
            else f"{each.name} takes as long"
            for each in others
        ]
        which = "the fastest" if others else "the only one that fits"
        won = f"{first.name} is {which}: {in_words(least)} a step"
        sentences = [won, *([", ".join(behind)] if behind else []), *sentences]
    return "".join(f"{each}. " for each in sentences).strip()
