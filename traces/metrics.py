"""Numbers of a timeline: bubble, utilisation, exposed communication, live buffers."""

from __future__ import annotations

import numpy as np

from schedules import LaneKind
from schedules.columns import Seconds
from traces.timeline import Timeline

CHANNELS = (
    LaneKind.SEND_ACTIVATIONS,
    LaneKind.RECEIVE_ACTIVATIONS,
    LaneKind.SEND_GRADIENTS,
    LaneKind.RECEIVE_GRADIENTS,
)


def compute_time(timeline: Timeline) -> Seconds:
    """For each rank, the seconds of its forward and backward passes."""
    graph = timeline.graph
    weights = np.where(graph.is_compute, timeline.duration, 0.0)
    seconds: Seconds = np.bincount(graph.rank, weights, graph.layout.pipeline_parallel)  # type: ignore[assignment]
    return seconds


def bubble(timeline: Timeline) -> float:
    """Step time over a rank's mean compute time, less one: the paper's overhead.

    Equals (N_PP - 1) / (N_mb N_loop) where communication is free (paper, Eq. for
    looping pipelines).
    """
    mean = float(compute_time(timeline).mean())
    return timeline.step_time / mean - 1 if mean else 0.0
