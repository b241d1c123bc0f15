"""Prices of operations by each cost model: one row an operation.

A package that declares another operation adds its row to `PRICES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Integers
from bfpp.schedules.operations.operations import Operation, Table
from bfpp.sim.costs.measured_step import MeasuredStep
from bfpp.sim.engines.cost_model import Load

if TYPE_CHECKING:  # loaded where a model is simulated, so that abstract costs are there soon
    from bfpp.sim.costs.physical_step import PhysicalStep

NORM_TRAFFIC = 4.0
"""Bytes for each parameter that the norm of the gradients reads, in full precision."""


class AbstractSeconds(Protocol):
    """Seconds of tasks by parameter, the same on every stage."""

    def of(self, parameter: str) -> float:
        """The seconds given for a parameter."""

    def backward_seconds(self) -> tuple[float, float, float]:
        """Seconds of a whole backward pass, of its input half and of its weight half."""


@dataclass(frozen=True)
class Price:
    """One operation's row: its parameter's name, and its price by each cost model.

    Abstract costs are the seconds of that parameter, unless the row says otherwise. Operations
    with one `parameter` change together, in what-ifs and sensitivities. A cost model without a
    price refuses graphs with such tasks. Graphs on the same stages share prices on a cluster: what
    a micro-batch does must cost the same however parameters are sharded, and all else whatever the
    size of micro-batches.
    """

    parameter: str
    abstract: Callable[[AbstractSeconds], float] | None = None
    physical: Callable[[PhysicalStep, Integers], Load] | None = None
    measured: Callable[[MeasuredStep, Integers], Load] | None = None

    def abstract_seconds(self, seconds: AbstractSeconds) -> float:
        """Seconds of each task, by abstract costs."""
        return seconds.of(self.parameter) if self.abstract is None else self.abstract(seconds)

    def physical_load(self, step: PhysicalStep, tasks: Integers) -> Load:
        """Costs of tasks of a graph on a cluster."""
        if self.physical is None:
            raise InvalidConfiguration("model", f"{self.parameter} has no price on clusters")
        return self.physical(step, tasks)

    def measured_load(self, step: MeasuredStep, tasks: Integers) -> Load:
        """Costs of tasks of a graph on the machine of a profile."""
        if self.measured is None:
            raise InvalidConfiguration("profile", f"a profile does not price {self.parameter}")
        return self.measured(step, tasks)


def _transfer(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.transfers(step.graph, tasks, step.hidden_bytes)


def _gather(step: PhysicalStep, tasks: Integers) -> Load:
    return step.exchange(tasks, step.gathered)


def _reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.exchange(tasks, step.reduced)


def _all_reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.exchange(tasks, step.all_reduced)


def _tied_all_reduce(step: PhysicalStep, tasks: Integers) -> Load:
    return step.links.between_ends(step.graph, tasks, step.tied_bytes)


def _optimizer(step: PhysicalStep, tasks: Integers) -> Load:
    implementation = step.physical.implementation
    load = step.state_traffic(tasks, implementation.optimizer_traffic)
    quantising = step.quantising_weights(tasks)
    return load._replace(seconds=load.seconds + step.physical.step_seconds + quantising)


def _norm(step: PhysicalStep, tasks: Integers) -> Load:
    return step.state_traffic(tasks, NORM_TRAFFIC)


def _orthogonalise(step: PhysicalStep, tasks: Integers) -> Load:
    return step.orthogonalising(tasks)


def _host_copy(step: PhysicalStep, tasks: Integers) -> Load:
    return step.host_copies(tasks)


PRICES: Table[Price] = Table(
    "price",
    {
        Operation.FORWARD: Price(
            "forward",
            physical=lambda step, tasks: step.passes(tasks, "forward"),
            measured=lambda step, tasks: step.passes(tasks, "forward"),
        ),
        Operation.BACKWARD: Price(
            "backward",
            lambda seconds: seconds.backward_seconds()[0],
            lambda step, tasks: step.passes(tasks, "backward_input", "backward_weight"),
            lambda step, tasks: step.passes(tasks, "backward"),
        ),
        Operation.BACKWARD_INPUT: Price(
            "backward",
            lambda seconds: seconds.backward_seconds()[1],
            lambda step, tasks: step.passes(tasks, "backward_input"),
            lambda step, tasks: step.passes(tasks, "backward_input"),
        ),
        Operation.BACKWARD_WEIGHT: Price(
            "backward",
            lambda seconds: seconds.backward_seconds()[2],
            lambda step, tasks: step.passes(tasks, "backward_weight"),
            lambda step, tasks: step.passes(tasks, "backward_weight"),
        ),
        Operation.TRANSFER_ACTIVATIONS: Price(
            "transfer",
            physical=_transfer,
            measured=lambda step, tasks: step.transfers(tasks, of_unit=0),
        ),
        Operation.TRANSFER_GRADIENTS: Price(
            "transfer",
            physical=_transfer,
            # Gradients are as large as the activations that came from the stage before.
            measured=lambda step, tasks: step.transfers(tasks, of_unit=-1),
        ),
        Operation.GATHER: Price("gather", physical=_gather, measured=MeasuredStep.of_unit),
        Operation.REDUCE: Price("reduce", physical=_reduce, measured=MeasuredStep.of_unit),
        Operation.OPTIMIZER: Price("optimizer", physical=_optimizer, measured=MeasuredStep.updates),
        Operation.NORM: Price("norm", physical=_norm, measured=MeasuredStep.of_rank),
        Operation.ALL_REDUCE: Price("all_reduce", physical=_all_reduce),
        Operation.TIED_ALL_REDUCE: Price("tied_all_reduce", physical=_tied_all_reduce),
        Operation.EXPERT_DISPATCH: Price(
            "expert_dispatch",
            physical=lambda step, tasks: step.exchanges(tasks, Operation.EXPERT_DISPATCH),
        ),
        Operation.EXPERT_COMBINE: Price(
            "expert_combine",
            physical=lambda step, tasks: step.exchanges(tasks, Operation.EXPERT_COMBINE),
        ),
        Operation.OFFLOAD: Price("host_copy", physical=_host_copy),
        Operation.RELOAD: Price("host_copy", physical=_host_copy),
        Operation.ORTHOGONALISE: Price(
            "optimizer", lambda _: 0.0, _orthogonalise, MeasuredStep.orthogonalising
        ),
    },
)


def parameters() -> dict[str, tuple[Operation, ...]]:
    """Each parameter, with the operations that it is the price of."""
    operations: dict[str, tuple[Operation, ...]] = {}
    for operation, price in PRICES.items():
        operations[price.parameter] = (*operations.get(price.parameter, ()), operation)
    return operations
