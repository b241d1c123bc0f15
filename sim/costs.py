"""What a task costs: the seam between a cost model and an engine.

A cost model is one call, `costs(graph)`, that returns the columns of `Costs`.
A task takes its `seconds` (compute time, or latency), and then, if it moves
`bytes`, sends them out of one port and into another. A port's bandwidth is
shared fairly by the tasks that use it at the same instant; a task's bytes flow
at the lesser of its shares at both its ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import composites


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each task, and the ports that they share.

    `seconds` and `bytes` are columns over tasks; `port_out` and `port_in` the
    ports that a task's bytes leave and enter by (-1 where it moves none);
    `bandwidth` is that of each port in bytes per second.
    """

    seconds: Seconds
    bytes: Seconds
    port_out: Integers
    port_in: Integers
    bandwidth: Seconds

    def of(self, tasks: Integers) -> Costs:
        """The costs of some tasks, or of as many that cost like these."""
        return Costs(
            self.seconds[tasks],
            self.bytes[tasks],
            self.port_out[tasks],
            self.port_in[tasks],
            self.bandwidth,
        )

    def seconds_moving(self) -> Seconds:
        """What each task's bytes take if they have their ports to themselves."""
        seconds = np.zeros(len(self.bytes))
        moves = np.flatnonzero(self.bytes > 0)
        if len(moves):
            port_out, port_in = self.port_out[moves], self.port_in[moves]
            rate = np.minimum(self.bandwidth[port_out], self.bandwidth[port_in])
            seconds[moves] = self.bytes[moves] / rate
        return seconds

    def seconds_alone(self) -> Seconds:
        """What each task takes if it has its ports to itself."""
        alone: Seconds = self.seconds + self.seconds_moving()
        return alone


class Load(NamedTuple):
    """What some tasks cost: columns over them, or a number for all."""

    seconds: Seconds | float
    bytes: Seconds | float = 0.0
    port_out: Integers | int = NONE
    port_in: Integers | int = NONE


class CostModel(Protocol):
    """Anything that can price the tasks of a graph."""

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        ...


def inside_passes(graph: TaskGraph, alone: Callable[[Operation, Integers], Seconds]) -> Seconds:
    """For each task, the seconds of the communication inside it.

    `alone` gives those of some tasks of an operation, as if they were tasks of the graph.
    """
    seconds = np.zeros(len(graph))
    for template, tasks in composites(graph):
        for piece in template:
            if not piece.share:
                seconds[tasks] += alone(piece.operation, tasks)
    return seconds


def fixed_costs(seconds: Seconds) -> Costs:
    """Costs without bytes: each task takes its seconds, whatever runs beside it."""
    nothing = np.full(len(seconds), NONE, dtype=np.int32)
    return Costs(seconds, np.zeros(len(seconds)), nothing, nothing, np.empty(0))
