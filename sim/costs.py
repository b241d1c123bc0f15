"""What a task costs: the seam between a cost model and an engine.

A cost model is one call, `costs(graph)`, that returns the columns of `Costs`.
A task takes its `seconds` (compute time, or latency), and then, if it moves
`bytes`, sends them out of one port and into another. A port's bandwidth is
shared fairly by the tasks that use it at the same instant; a task's bytes flow
at the lesser of its shares at both its ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from schedules import Operation, TaskGraph
from schedules.columns import NONE, Integers, Seconds


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

    def seconds_alone(self) -> Seconds:
        """What each task takes if it has its ports to itself."""
        moves = np.flatnonzero(self.bytes > 0)
        if not len(moves):
            return self.seconds
        port_out, port_in = self.port_out[moves], self.port_in[moves]
        rate = np.minimum(self.bandwidth[port_out], self.bandwidth[port_in])
        seconds = self.seconds.copy()
        seconds[moves] += self.bytes[moves] / rate
        return seconds


class CostModel(Protocol):
    """Anything that can price the tasks of a graph."""

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        ...


@dataclass(frozen=True)
class AbstractCosts:
    """The same seconds for every task of an operation, on every stage.

    A whole backward pass takes the sum of its halves by default, and each half
    by default one half of it; without any of the three, a whole one takes 2.
    """

    forward: float = 1.0
    backward: float | None = None
    backward_input: float | None = None
    backward_weight: float | None = None
    transfer: float = 0.0
    gather: float = 0.0
    reduce: float = 0.0
    optimizer: float = 0.0
    norm: float = 0.0

    def by_operation(self) -> dict[Operation, float]:
        """Seconds of a task of each operation."""
        half = 1.0 if self.backward is None else self.backward / 2
        of_input = half if self.backward_input is None else self.backward_input
        of_weight = half if self.backward_weight is None else self.backward_weight
        whole = of_input + of_weight if self.backward is None else self.backward
        return {
            Operation.FORWARD: self.forward,
            Operation.BACKWARD: whole,
            Operation.BACKWARD_INPUT: of_input,
            Operation.BACKWARD_WEIGHT: of_weight,
            Operation.TRANSFER_ACTIVATIONS: self.transfer,
            Operation.TRANSFER_GRADIENTS: self.transfer,
            Operation.GATHER: self.gather,
            Operation.REDUCE: self.reduce,
            Operation.OPTIMIZER: self.optimizer,
            Operation.NORM: self.norm,
        }

    def costs(self, graph: TaskGraph) -> Costs:
        """Seconds by operation; no bytes, so no port is shared."""
        table = self.by_operation()
        seconds = np.array([table[operation] for operation in Operation])
        return fixed_costs(seconds[graph.operation])


def fixed_costs(seconds: Seconds) -> Costs:
    """Costs without bytes: each task takes its seconds, whatever runs beside it."""
    nothing = np.full(len(seconds), NONE, dtype=np.int32)
    return Costs(seconds, np.zeros(len(seconds)), nothing, nothing, np.empty(0))
