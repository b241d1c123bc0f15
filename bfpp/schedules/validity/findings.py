"""Findings of rules, and the lookups that rules share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import Integers, Offsets, among
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.validity.happens_before import HappensBefore

Finding = tuple[str, tuple[int, ...]]
"""A violation of a rule: one sentence, and the numbers of the tasks that it names."""

Places = npt.NDArray[np.intp]


def having(graph: TaskGraph, operations: Collection[Operation]) -> Integers:
    """The tasks of these operations, by number."""
    return np.flatnonzero(among(graph.operation, operations)).astype(np.int32)


def cells(
    graph: TaskGraph, tasks: Integers, units_on: int = 0, microbatches_on: int = 0
) -> Offsets:
    """The unit and micro-batch of each task, or those further on, as one number."""
    unit, microbatch = graph.unit[tasks] + units_on, graph.microbatch[tasks] + microbatches_on
    return cell_number(graph.layout, unit, microbatch)


def cell_number(
    layout: Layout, unit: npt.NDArray[np.integer], microbatch: npt.NDArray[np.integer]
) -> Offsets:
    """One number for a unit and a micro-batch, either of which may be `NONE`."""
    return unit.astype(np.int64) * (layout.microbatches + 1) + microbatch + 1


def of_cell(layout: Layout, cell: int) -> tuple[int, int]:
    """The unit and the micro-batch that such a number is for."""
    unit, microbatch = divmod(cell, layout.microbatches + 1)
    return unit, microbatch - 1


def alike(left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> tuple[Places, Places]:
    """All pairs of places, one in each array, that hold the same."""
    in_order = np.argsort(right, kind="stable")
    ordered = right[in_order]
    begin = np.searchsorted(ordered, left, side="left")
    count = np.searchsorted(ordered, left, side="right") - begin
    return np.repeat(np.arange(len(left)), count), in_order[ranges(begin, count)]


def ranges(begin: Places, count: Places) -> Places:
    """`count` consecutive numbers from each `begin`, one range after the other."""
    first = np.repeat(begin - (np.cumsum(count) - count), count)
    return first + np.arange(len(first))


def out_of_order(
    order: HappensBefore,
    firsts: Integers,
    seconds: Integers,
    units_on: int = 0,
    microbatches_on: int = 0,
) -> Iterator[tuple[int, int]]:
    """Pairs whose first may be late, and whose second is that many units and micro-batches on."""
    wanted = cells(order.graph, firsts, units_on, microbatches_on)
    one, other = alike(wanted, cells(order.graph, seconds))
    first, second = firsts[one], seconds[other]
    late = ~order(first, second)
    yield from zip(first[late].tolist(), second[late].tolist(), strict=True)


def too_early(graph: TaskGraph, second: int, first: int) -> Finding:
    """The finding that nothing keeps the second task from running before or during the first."""
    message = f"{graph.task(second)} may start before {graph.task(first)} has ended"
    return message, (second, first)
