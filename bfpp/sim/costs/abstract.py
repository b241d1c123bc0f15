"""Abstract costs: the same seconds for every task of an operation, on every stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.graph.composite_tasks import shares
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.engines.cost_model import Costs, fixed_costs, in_turns, inside_passes

AGREEMENT = 1e-4
"""Share by which a whole may differ from its halves: more than a derivative's step."""


@dataclass(frozen=True)
class AbstractCosts:
    """The same seconds for every task of an operation, on every stage.

    Where stages are divided into units, on every unit: two units take as long as the two stages
    of a rank with two loops.

    A whole backward pass takes the sum of its halves by default. Of a whole one
    that is given, a half takes what the other leaves, and each one half of it
    by default; without any of the three, a whole one takes 2. A block of a forward and a
    whole backward pass takes `forward_backward`, by default their sum. `further` are those
    of operations that are not built in, by the parameter's name. Raises
    `InvalidConfiguration` where the whole is not the sum of its halves.

    >>> import bfpp
    >>> costs = bfpp.AbstractCosts(forward=1, backward_input=1, backward_weight=0.5)
    >>> costs.by_operation()[bfpp.Operation.BACKWARD]
    1.5
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
    forward_backward: float | None = None
    all_reduce: float = 0.0
    tied_all_reduce: float = 0.0
    further: Mapping[str, float] = field(default_factory=dict)
    host_copy: float = 0.0

    def __post_init__(self) -> None:
        if self.backward is None:
            return
        halves = [half for half in (self.backward_input, self.backward_weight) if half is not None]
        room = AGREEMENT * max(self.backward, *halves, 0.0)
        short = self.backward < sum(halves) - room
        if short or (len(halves) == 2 and self.backward > sum(halves) + room):
            shown = " and ".join(f"{half:g}" for half in halves)
            raise InvalidConfiguration(
                "backward", f"{self.backward:g} is not the sum of its halves ({shown})"
            )

    def of(self, parameter: str) -> float:
        """Seconds given for a parameter of `PRICES`; 0 by default for those not built in."""
        seconds: float = vars(self).get(parameter, self.further.get(parameter, 0.0))
        return seconds

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

    def block_seconds(self) -> tuple[float, float]:
        """Seconds of a block, divided over its two passes as their own seconds are."""
        forward, backward = self.forward, self.backward_seconds()[0]
        if self.forward_backward is None:
            return forward, backward
        share = forward / (forward + backward) if forward + backward else 0.5
        return self.forward_backward * share, self.forward_backward * (1 - share)

    def by_operation(self, slices: int = 1) -> dict[Operation, float]:
        """Seconds of a task of each operation: of a micro-batch's, those of one slice."""
        return {
            operation: PRICES[operation].abstract_seconds(self)
            / (slices if operation.is_of_cell else 1)
            for operation in OPERATIONS
        }

    def costs(self, graph: TaskGraph) -> Costs:
        """Seconds by operation; no bytes, so no port is shared."""
        table, slices = self.by_operation(graph.layout.slices), graph.layout.slices
        by_code = np.array([table[operation] for operation in OPERATIONS])
        seconds = by_code[graph.operation]
        if (in_block := graph.is_compute & (graph.block != NONE)).any():
            is_forward = graph.operation == Operation.FORWARD
            of_block = np.where(is_forward, *self.block_seconds()) / slices
            seconds = np.where(in_block, of_block, seconds)
        if graph.templates:

            def alone(operation: Operation, tasks: Integers) -> Seconds:
                return np.full(len(tasks), table[operation])

            inside = inside_passes(graph, alone)[graph.kinds.of_task]
            seconds = in_turns(graph, seconds * shares(graph) + inside, inside, alone)
        return fixed_costs(seconds)
