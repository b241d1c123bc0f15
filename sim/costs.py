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


class CostModel(Protocol):
    """Anything that can price the tasks of a graph."""

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        ...


@dataclass(frozen=True)
class AbstractCosts:
    """The same seconds for every task of an operation, on every stage.

    `backward` is that of a whole backward pass, and by default the sum of its
    halves, of which the defaults are one half each.
    """

    forward: float = 1.0
    backward: float = 2.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    transfer: float = 0.0
    gather: float = 0.0
    reduce: float = 0.0
    optimizer: float = 0.0

    def costs(self, graph: TaskGraph) -> Costs:
        """Seconds by operation; no bytes, so no port is shared."""
        by_operation = np.zeros(len(Operation))
        by_operation[Operation.FORWARD] = self.forward
        by_operation[Operation.BACKWARD] = self.backward
        by_operation[Operation.BACKWARD_INPUT] = self.backward_input
        by_operation[Operation.BACKWARD_WEIGHT] = self.backward_weight
        by_operation[Operation.TRANSFER_ACTIVATIONS] = self.transfer
        by_operation[Operation.TRANSFER_GRADIENTS] = self.transfer
        by_operation[Operation.GATHER] = self.gather
        by_operation[Operation.REDUCE] = self.reduce
        by_operation[Operation.OPTIMIZER] = self.optimizer
        return fixed_costs(by_operation[graph.operation])


def fixed_costs(seconds: Seconds) -> Costs:
    """Costs without bytes: each task takes its seconds, whatever runs beside it."""
    nothing = np.full(len(seconds), NONE, dtype=np.int32)
    return Costs(seconds, np.zeros(len(seconds)), nothing, nothing, np.empty(0))
