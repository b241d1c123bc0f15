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

from bfpp.schedules import InvalidConfiguration, Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds


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


AGREEMENT = 1e-4
"""Share by which a whole may differ from its halves: more than a derivative's step."""


@dataclass(frozen=True)
class AbstractCosts:
    """The same seconds for every task of an operation, on every stage.

    A whole backward pass takes the sum of its halves by default. Of a whole one
    that is given, a half takes what the other leaves, and each one half of it
    by default; without any of the three, a whole one takes 2. Raises
    `InvalidConfiguration` where the whole is not the sum of its halves.
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

    def __post_init__(self) -> None:
        if self.backward is None:
            return
        halves = [half for half in (self.backward_input, self.backward_weight) if half is not None]
        room = AGREEMENT * max(self.backward, *halves, 0.0)
        short = self.backward < sum(halves) - room
        if short or (len(halves) == 2 and self.backward > sum(halves) + room):
            told = " and ".join(f"{half:g}" for half in halves)
            raise InvalidConfiguration(
                "backward", f"{self.backward:g} is not what its halves take together ({told})"
            )

    def backward_seconds(self) -> tuple[float, float, float]:
        """Seconds of a whole backward pass, of its input half and of its weight half."""
        of_input, of_weight = self.backward_input, self.backward_weight
        if self.backward is None:
            of_input = 1.0 if of_input is None else of_input
            of_weight = 1.0 if of_weight is None else of_weight
            return of_input + of_weight, of_input, of_weight
        if of_input is None:
            of_input = self.backward / 2 if of_weight is None else self.backward - of_weight
        if of_weight is None:
            of_weight = self.backward - of_input
        return self.backward, max(of_input, 0.0), max(of_weight, 0.0)

    def by_operation(self) -> dict[Operation, float]:
        """Seconds of a task of each operation."""
        whole, of_input, of_weight = self.backward_seconds()
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
