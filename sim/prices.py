"""What each operation costs, by every cost model: one row for each.

A package that declares another operation adds its row to `PRICES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.operations import Operation, Table
from bfpp.sim.costs import Load

if TYPE_CHECKING:
    from bfpp.sim.abstract import AbstractCosts
    from bfpp.sim.physical_step import PhysicalStep
    from bfpp.sim.profile import MeasuredStep

NORM_TRAFFIC = 4.0
"""Bytes for each parameter that the norm of the gradients reads, in full precision."""


@dataclass(frozen=True)
class Price:
    """One operation's row: its parameter's name, and its price by each cost model.

    Operations with one `parameter` change together, in what-ifs and sensitivities. A cost
    model without a price refuses graphs with such tasks. Graphs on the same stages share prices
    on a cluster: what a micro-batch does must cost the same however parameters are sharded, and
    all else whatever the size of micro-batches.
    """

    parameter: str
    abstract: Callable[[AbstractCosts], float]
    physical: Callable[[PhysicalStep, Integers], Load] | None = None
    measured: Callable[[MeasuredStep, Integers], Seconds] | None = None

    def physical_load(self, step: PhysicalStep, tasks: Integers) -> Load:
        """What tasks of a graph cost on a cluster."""
        if self.physical is None:
            raise InvalidConfiguration("model", f"{self.parameter} has no price on clusters")
        return self.physical(step, tasks)

    def measured_seconds(self, step: MeasuredStep, tasks: Integers) -> Seconds:
        """What tasks of a graph took on the machine of a profile."""
        if self.measured is None:
            raise InvalidConfiguration("profile", f"a profile does not price {self.parameter}")
        return self.measured(step, tasks)


def _transfer(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.transfers(step.graph, tasks, step.hidden_bytes)


def _gather(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.collectives(step.graph, tasks, step.gathered)


def _reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.collectives(step.graph, tasks, step.reduced)


def _all_reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.collectives(step.graph, tasks, step.all_reduced)


def _host_copy(step: PhysicalStep, tasks: Integers) -> Load:
    return step.host_copies(tasks)


def _tied_all_reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.between_ends(step.graph, tasks, step.tied_bytes)


def _optimizer(step: PhysicalStep, tasks: Integers) -> Load:
    implementation = step.physical.implementation
    load = step.state_traffic(tasks, implementation.optimizer_traffic)
    quantising = step.quantising_weights(tasks)
    return load._replace(seconds=load.seconds + implementation.step_seconds + quantising)


def _norm(step: PhysicalStep, tasks: Integers) -> Load:
    return step.state_traffic(tasks, NORM_TRAFFIC)


PRICES: Table[Price] = Table(
    "price",
    {
        Operation.FORWARD: Price(
            "forward",
            lambda costs: costs.forward,
            lambda step, tasks: step.passes(tasks, "forward"),
            lambda step, tasks: step.passes(tasks, "forward"),
        ),
        Operation.BACKWARD: Price(
            "backward",
            lambda costs: costs.backward_seconds()[0],
            lambda step, tasks: step.passes(tasks, "backward_input", "backward_weight"),
            lambda step, tasks: step.passes(tasks, "backward"),
        ),
        Operation.BACKWARD_INPUT: Price(
            "backward",
            lambda costs: costs.backward_seconds()[1],
            lambda step, tasks: step.passes(tasks, "backward_input"),
            lambda step, tasks: step.passes(tasks, "backward_input"),
        ),
        Operation.BACKWARD_WEIGHT: Price(
            "backward",
            lambda costs: costs.backward_seconds()[2],
            lambda step, tasks: step.passes(tasks, "backward_weight"),
            lambda step, tasks: step.passes(tasks, "backward_weight"),
        ),
        Operation.TRANSFER_ACTIVATIONS: Price(
            "transfer",
            lambda costs: costs.transfer,
            _transfer,
            lambda step, tasks: step.transfers(tasks, of_unit=0),
        ),
        Operation.TRANSFER_GRADIENTS: Price(
            "transfer",
            lambda costs: costs.transfer,
            _transfer,
            # Gradients are as large as the activations that came from the stage before.
            lambda step, tasks: step.transfers(tasks, of_unit=-1),
        ),
        Operation.GATHER: Price(
            "gather",
            lambda costs: costs.gather,
            _gather,
            lambda step, tasks: step.of_unit(tasks),
        ),
        Operation.REDUCE: Price(
            "reduce",
            lambda costs: costs.reduce,
            _reduce,
            lambda step, tasks: step.of_unit(tasks),
        ),
        Operation.OPTIMIZER: Price(
            "optimizer",
            lambda costs: costs.optimizer,
            _optimizer,
            lambda step, tasks: step.of_rank(tasks),
        ),
        Operation.NORM: Price(
            "norm",
            lambda costs: costs.norm,
            _norm,
            lambda step, tasks: step.of_rank(tasks),
        ),
        Operation.ALL_REDUCE: Price(
            "all_reduce",
            lambda costs: costs.all_reduce,
            _all_reduce,
        ),
        Operation.TIED_ALL_REDUCE: Price(
            "tied_all_reduce",
            lambda costs: costs.tied_all_reduce,
            _tied_all_reduce,
        ),
        Operation.EXPERT_DISPATCH: Price(
            "expert_dispatch",
            lambda costs: costs.further.get("expert_dispatch", 0.0),
            lambda step, tasks: step.exchanges(tasks, Operation.EXPERT_DISPATCH),
        ),
        Operation.EXPERT_COMBINE: Price(
            "expert_combine",
            lambda costs: costs.further.get("expert_combine", 0.0),
            lambda step, tasks: step.exchanges(tasks, Operation.EXPERT_COMBINE),
        ),
        Operation.OFFLOAD: Price("host_copy", lambda costs: costs.host_copy, _host_copy),
        Operation.RELOAD: Price("host_copy", lambda costs: costs.host_copy, _host_copy),
    },
)


def parameters() -> dict[str, tuple[Operation, ...]]:
    """Each parameter, with the operations that it is the price of."""
    found: dict[str, tuple[Operation, ...]] = {}
    for operation, price in PRICES.items():
        found[price.parameter] = (*found.get(price.parameter, ()), operation)
    return found
