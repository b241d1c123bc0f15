"""Metrics of a timeline: bubble, utilisation, exposed communication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Seconds
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.traces.timeline.timeline import Timeline


@dataclass(frozen=True)
class RankMetrics:
    """One rank's share of a step; times in seconds.

    `start` and `end` are those of its compute, from the step's first start, and
    `idle` is the rest of the step time. `exposed_transfer`, `exposed_data` and
    `exposed_model` are the time in which it only communicates: a transfer (at either
    end), an all-gather or reduction, or an exchange of tensor-, context- and
    expert-parallel groups runs while no compute step does.
    `peak_microbatches` is the peak of activations in flight, in micro-batches
    that each take all of a rank's stages.
    """

    rank: int
    compute_time: float
    start: float
    end: float
    idle: float
    utilisation: float
    exposed_transfer: float
    exposed_data: float
    exposed_model: float
    peak_microbatches: float


def rank_metrics(timeline: Timeline) -> list[RankMetrics]:
    """The metrics of each rank.

    >>> import bfpp
    >>> timeline = bfpp.predict(bfpp.Experiment("1f1b", pp=4)).timeline
    >>> [rank.peak_microbatches for rank in bfpp.rank_metrics(timeline)]
    [4.0, 3.0, 2.0, 1.0]
    """
    times, step_time = timeline.rank_times, timeline.step_time
    columns = (  # as the fields of `RankMetrics` follow one another
        compute_time(timeline),
        times.start - timeline.first_start,
        times.end - timeline.first_start,
        np.maximum(step_time - times.busy, 0.0),
        times.busy / step_time if step_time else np.ones(len(times.busy)),
        *times.exposed,
        peak_microbatches(timeline.graph),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [RankMetrics(rank, *values) for rank, values in enumerate(rows)]


def compute_time(timeline: Timeline) -> Seconds:
    """For each rank, the seconds in which its forward and backward passes compute."""
    return _rank_seconds(timeline, timeline.graph.is_compute)


def pass_time(timeline: Timeline) -> Seconds:
    """For each rank, the seconds of its passes; of those in pieces, with their exchanges."""
    return _rank_seconds(timeline, timeline.graph.is_pass)


def _rank_seconds(timeline: Timeline, chosen: Flags) -> Seconds:
    seconds = np.where(chosen, timeline.duration, 0.0)
    return np.bincount(timeline.graph.rank, seconds, timeline.graph.layout.pp).astype(float)


def bubble(timeline: Timeline) -> float:
    """Bubble ratio: step time over a rank's mean time in passes, less one (the paper's overhead).

    Equals (N_PP - 1) / (N_mb N_loop) where communication is free. Passes in pieces count whole.

    >>> import bfpp
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(4, 8))
    >>> bfpp.bubble(bfpp.simulate(graph, bfpp.AbstractCosts()))
    0.375
    """
    return bubble_of(timeline.step_time, timeline.pass_seconds, timeline.graph.layout.pp)


def bubble_of(step_time: float, pass_seconds: float, ranks: int) -> float:
    """The bubble of a step, given the seconds of the passes of all ranks together."""
    mean = pass_seconds / ranks
    return step_time / mean - 1 if mean else 0.0


def bubble_fraction(timeline: Timeline) -> float:
    """Bubble fraction: the share of the step time in which the mean rank runs no pass."""
    step = timeline.step_time
    return 1 - float(pass_time(timeline).mean()) / step if step else 0.0


def span(ranks: Iterable[RankMetrics]) -> float:
    """The longest time, over ranks, from the first compute step to the end of the last."""
    return max(rank.end - rank.start for rank in ranks)


def lane_busy_time(timeline: Timeline) -> Seconds:
    """For each lane, the seconds in which it runs a task."""
    graph, lanes = timeline.graph, len(timeline.graph.lanes)
    received = graph.peer_lane != NONE
    busy = np.bincount(graph.lane, timeline.duration, lanes)
    busy += np.bincount(graph.peer_lane[received], timeline.duration[received], lanes)
    return busy.astype(float)
