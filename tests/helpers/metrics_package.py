"""A package of a user's: three operations of a step, added to bfpp in this one file.

An all-reduce of each rank's metrics at the end of a step, on a stream of its own; a compression of
the gradients, which the optimizer waits for; and a check of each forward pass's output, which its
backward pass waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.executor.dispatch.worker import Worker
from bfpp.schedules import Task
from bfpp.schedules.columns import Integers
from bfpp.schedules.operations.data import OUTPUT, REDUCED, Datum
from bfpp.schedules.operations.operations import Operation, declare
from bfpp.schedules.operations.row import Group, Made, Row, Scope
from bfpp.schedules.operations.streams import Stream
from bfpp.sim.costs.physical_step import PhysicalStep
from bfpp.sim.costs.prices import PRICES, Price
from bfpp.sim.engines.cost_model import Load
from bfpp.traces.explain.looks import LOOKS, Cause, Look, TextMark, Tone

METRICS, CHECKS = Stream("METRICS", "metrics"), Stream("CHECKS", "checks")
COMPRESSED, CHECKED = Datum("compressed gradients"), Datum("checked output")

METRICS_ALL_REDUCE = declare(
    "METRICS_ALL_REDUCE",
    Row(
        "metrics all-reduce",
        Scope.RANK,
        METRICS,
        reads=(OUTPUT,),
        group=Group.DP,
        made=Made.AFTER_DATA,
    ),
)
COMPRESS = declare(
    "COMPRESS",
    Row(
        "compress",
        Scope.UNIT,
        METRICS,
        reads=(REDUCED,),
        writes=(COMPRESSED,),
        made=Made.AFTER_DATA,
        awaited_by=("OPTIMIZER",),
    ),
)
CHECK = declare(
    "CHECK",
    Row(
        "check",
        Scope.CELL,
        CHECKS,
        reads=(OUTPUT,),
        writes=(CHECKED,),
        made=Made.AFTER_PASSES,
        after=("FORWARD",),
        awaited_by=("BACKWARD", "BACKWARD_INPUT"),
    ),
)
ADDED = METRICS_ALL_REDUCE, COMPRESS, CHECK

RAN: list[tuple[Operation, int, int, int]] = []
"""Dispatched tasks: operation, rank, unit and micro-batch."""


def _run(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    del backend
    RAN.append((task.operation, workers[0].rank, task.unit, task.microbatch))


def _physical(step: PhysicalStep, tasks: Integers) -> Load:
    del step, tasks
    return Load(1e-3)


for _number, _operation in enumerate(ADDED):
    _letter = "mcx"[_number]
    _mark = TextMark(_letter, _letter, _letter, _letter)
    LOOKS[_operation] = Look(Tone(200 + 40 * _number, 0.5, 0.5, 0.7), _mark, Cause.REDUCTION)
    PRICES[_operation] = Price(_operation.name.lower(), physical=_physical)
    KERNELS[_operation] = _run
