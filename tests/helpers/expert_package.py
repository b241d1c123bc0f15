"""A package of a user's: expert parallelism's all-to-all, added to bfpp in this one file.

Tokens are dispatched to the devices of their experts and combined again, inside each pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.executor.dispatch.worker import Worker
from bfpp.schedules import Operation, Task, TaskGraph
from bfpp.schedules.columns import Integers
from bfpp.schedules.graph.templates import Piece, Template
from bfpp.schedules.operations.operations import declare
from bfpp.schedules.operations.row import Group, Row, Scope
from bfpp.schedules.operations.streams import Stream
from bfpp.sim.costs.physical_step import PhysicalStep
from bfpp.sim.costs.prices import PRICES, Price
from bfpp.sim.engines.cost_model import Load
from bfpp.traces.explain.looks import LOOKS, Cause, Look, TextMark, Tone

EXPERT = Stream("EXPERT", "expert-parallel")
ALL_TO_ALL = declare(
    "EXPERT_ALL_TO_ALL", Row("expert all-to-all", Scope.CELL, EXPERT, group=Group.EP)
)

LOOKS[ALL_TO_ALL] = Look(Tone(320, 0.5, 0.5, 0.7), TextMark("x", "x", "x", "x"), Cause.EXPERT)


def physical(step: PhysicalStep, tasks: Integers) -> Load:
    """Seconds of every token's hidden state through the node's links."""
    del tasks  # the same for all
    size = step.physical.model.hidden_bytes(step.physical.microbatch_size)
    return Load(size / step.physical.cluster.levels[0].bandwidth)


PRICES[ALL_TO_ALL] = Price("all_to_all", physical=physical)

EXCHANGED: list[tuple[int, int, int]] = []


def exchange(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    """Nobody else is here: only say that it took place."""
    del backend
    (worker,) = workers
    EXCHANGED.append((worker.rank, task.unit, task.microbatch))


KERNELS[ALL_TO_ALL] = exchange


def template(operation: Operation) -> Template:
    """Attention and router, dispatch, experts, combine, and what comes after."""
    return (
        Piece(operation, 0.4),
        Piece(ALL_TO_ALL),
        Piece(operation, 0.5),
        Piece(ALL_TO_ALL),
        Piece(operation, 0.1),
    )


def with_experts(graph: TaskGraph) -> TaskGraph:
    """The graph with experts at each stage with an odd number."""
    passes = (Operation.FORWARD, Operation.BACKWARD)
    stages = range(1, graph.layout.units, 2)
    return graph.with_templates(
        {(each, stage): template(each) for each in passes for stage in stages}
    )
