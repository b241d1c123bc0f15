"""Steps of many micro-batches, predicted from fewer: warm-up, a period that repeats, drain.

Theory of operation. Between its first and its last passes each rank repeats its order
(`Schedule.repetition`). Once times repeat as well, for as long as any task waits for another,
everything is as it was a period before: each further period takes as long, however many there are.
So fewer micro-batches are simulated, and where their times do not repeat, all.

Invariant: a step that is extended takes what the whole one takes, but for rounding. Both halves of
the condition are needed, and the core tests them in the simulated step (`bfpp_repeats`): all that
starts in some periods starts and ends again a period later, and no task there waits for one from
before them.

Rejected: a straight line through the step times of two numbers of micro-batches. It is right only
if both have left the warm-up behind, which the two times do not show.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np

from bfpp.core.step import Extension
from bfpp.schedules import Communication, Configuration, Layout, Operation, TaskGraph
from bfpp.schedules.orders.steps import Repetition
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.compiled_engine import StepTime

WORTHWHILE = 0.7
"""The share of the micro-batches from which on all of them are simulated."""

SETTLING = 4
"""Periods in which times may come to repeat, beyond those that fill the pipeline."""

ATTEMPTS = 1, 2
"""Multiples of the shortest step that are tried in turn."""

ROUNDING = 1e-14
"""The share of a step by which times that repeat may differ, by rounding."""


class Shortened(NamedTuple):
    """A configuration with fewer micro-batches, and how many periods of it are left out."""

    configuration: Configuration
    repetition: Repetition
    left_out: int


def shortened(configuration: Configuration) -> list[Shortened]:
    """The same with as few micro-batches as may show a period, and with more, if worthwhile."""
    repetition = configuration.schedule.repetition(configuration.layout)
    if repetition is None or not _repeats(configuration.communication):
        return []
    period, candidates = repetition.period, []
    for times in ATTEMPTS:
        enough = times * (ceil(2 * repetition.alive / period) + SETTLING)
        left_out = configuration.microbatches // period - enough
        microbatches = configuration.microbatches - left_out * period
        if left_out < 1 or microbatches > WORTHWHILE * configuration.microbatches:
            break
        fewer = replace(configuration, microbatches=microbatches)
        schedule, layout = fewer.schedule, fewer.layout
        if schedule.can_run(layout) and schedule.repetition(layout) == repetition:
            candidates.append(Shortened(fewer, repetition, left_out))
    return candidates


def _repeats(communication: Communication) -> bool:
    """True if communication and its buffers repeat whenever orders do.

    Runs of a limited length end by a count of their own; many buffers come into use, and gathers
    far ahead are held back, only after many runs.
    """
    limited = communication.offload or communication.run_length
    counted = communication.weight_buffers, communication.prefetch or 0
    return not limited and max(counted) <= SETTLING


def whole_step(
    graph: TaskGraph, fewer: Shortened, physical: PhysicalCosts, layout: Layout
) -> StepTime:
    """The time of a step on a `layout`, of which a graph has fewer micro-batches.

    Raises `NotPeriodic`.
    """
    return physical.timed(graph, layout, extension_of(graph, fewer))


def extension_of(graph: TaskGraph, fewer: Shortened) -> Extension:
    """Periods that are left out of a step, and those whose times have to repeat for it."""
    alive, period = fewer.repetition.alive, fewer.repetition.period
    begin = np.flatnonzero((graph.operation == Operation.FORWARD) & (graph.unit == 0))
    periods = ceil(alive / period) + 2
    return Extension(begin.astype(np.int32), periods, periods * period, fewer.left_out, ROUNDING)
