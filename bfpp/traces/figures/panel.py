"""Panel: a timeline with its title and explanations, for a figure or a page."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bfpp.schedules.operations.streams import Stream
from bfpp.traces.explain.causes import Wait
from bfpp.traces.figures.appearance import COMPUTE_AND_DATA
from bfpp.traces.timeline.memory_curves import MemoryCurve
from bfpp.traces.timeline.timeline import Timeline


@dataclass(frozen=True)
class Panel:
    """One timeline of several, with a title such as `(a) GPipe: large bubble`.

    `streams` are those that a figure for print draws. On a page, `subtitle` is a line below
    the title; `headline` has what decides, in a few words each, the first of which is an alarm if
    the panel `falls_short`; `summary` holds (label, value) pairs, the panel's key numbers as they
    are to be read; `waits` are the idle stretches that a click explains, `critical_path` the tasks
    that a switch outlines, `causes` the seconds of the mean rank's step by what they go to.
    `memory` has each rank's memory over time, in `memory_unit`.

    >>> import bfpp
    >>> predicted = bfpp.predict(bfpp.Experiment("gpipe", pp=2))
    >>> bfpp.Panel("(a) GPipe", predicted.timeline, subtitle="the first schedule").title
    '(a) GPipe'
    """

    title: str
    timeline: Timeline
    subtitle: str = ""
    summary: tuple[tuple[str, str], ...] = ()
    waits: tuple[Wait, ...] = ()
    critical_path: tuple[int, ...] = ()
    causes: tuple[tuple[str, float], ...] = ()
    memory: tuple[MemoryCurve, ...] = ()
    memory_unit: str = "GiB"
    streams: Collection[Stream] = COMPUTE_AND_DATA
    headline: tuple[str, ...] = ()
    falls_short: bool = False
