"""Durations of one timeline as the costs of another schedule, of the same model and batch.

A pass takes what the same stage took with the same micro-batch; where stages are divided
otherwise, in proportion to how much of them it is. Halves of a backward pass that were not
measured take half of it each. Transfers take what the same one took, or the mean of those between
the same ranks, or of all; collectives and updates, what those of the stage or the rank took.

Each takes its own time. A pass that began later than it could takes that along; a transfer does
not, which waits for its receiver, and collectives and updates as much as all of their kind do.
Where transfers shared the ports of ranks, each takes what it would have taken alone, and shares
them anew with those that another schedule sends at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bfpp.schedules import InvalidConfiguration, Layout, Operation, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, Seconds
from bfpp.schedules.operations.operations import OPERATIONS, transfers
from bfpp.sim.costs.measured.replay import could_start
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.sim.remedies.shared_ports import ports_of, seconds_alone
from bfpp.traces.explain.causes import Causes

FIELD = "what_if"

Matrix = npt.NDArray[np.float64]

HALVES = (Operation.BACKWARD_INPUT, Operation.BACKWARD_WEIGHT)


@dataclass(frozen=True, eq=False)
class MeasuredElsewhere:
    """The cost model of other graphs, from a timeline."""

    causes: Causes

    def costs(self, graph: TaskGraph) -> Costs:
        """The measured seconds of each task; none for what was not measured."""
        seconds = np.nan_to_num(self._seconds(graph))
        if self._alone is None:
            return fixed_costs(seconds)
        moving, ports = np.zeros(len(graph)), np.full((len(graph), 2), NONE, dtype=np.int32)
        tasks = np.flatnonzero(graph.is_transfer).astype(np.int32)
        moving[tasks], seconds[tasks] = seconds[tasks], 0.0
        ports[tasks] = ports_of(graph, tasks)
        return Costs(seconds, moving, ports, np.ones(2 * graph.layout.pp))

    def not_measured(self, graph: TaskGraph) -> list[str]:
        """Operations of a graph of which none was measured."""
        unknown = np.unique(graph.operation[np.isnan(self._seconds(graph))])
        return [OPERATIONS[code].called(graph.communication) for code in unknown.tolist()]

    def _seconds(self, graph: TaskGraph) -> Seconds:
        """Seconds of each task; NaN for what was not measured."""
        self._require_alike(graph)
        seconds = np.full(len(graph), np.nan)
        for operation, tasks in graph.by_operation():
            if operation in transfers():
                seconds[tasks] = self._of_transfers(graph, operation, tasks)
            elif (graph.unit[tasks] != NONE).all():
                table = self._table(graph.layout, operation)
                seconds[tasks] = _looked_up(table, graph.unit[tasks], graph.microbatch[tasks])
            else:
                by_rank = self._means(operation, self._graph.rank, graph.layout.pp)
                seconds[tasks] = by_rank[graph.rank[tasks]]
        return seconds

    @property
    def _graph(self) -> TaskGraph:
        return self.causes.timeline.graph

    def _require_alike(self, graph: TaskGraph) -> None:
        """Raise `InvalidConfiguration` for a step of another size."""
        own, other = self._graph.layout, graph.layout
        if (own.pp, own.whole_microbatches) != (other.pp, other.whole_microbatches):
            size = f"{own.pp} ranks and {own.whole_microbatches} micro-batches"
            raise InvalidConfiguration(FIELD, f"the timeline has {size}: so must the schedule")
        for layout, whose in ((own, "the timeline"), (other, "the schedule")):
            if layout.slices > 1:
                raise InvalidConfiguration(FIELD, f"{whose} slices micro-batches: not known")
        if (self._graph.piece != NONE).any():
            raise InvalidConfiguration(FIELD, "the timeline has passes in pieces")

    @cached_property
    def _own(self) -> Seconds:
        """Own seconds of each task of the timeline."""
        timeline, graph, ready = self.causes.timeline, self._graph, could_start(self.causes)
        own: Seconds = np.maximum(timeline.end - np.maximum(timeline.start, ready), 0.0)
        late = np.maximum(timeline.start - ready, 0.0)
        own[graph.is_compute] = (timeline.duration + late)[graph.is_compute]
        for operation, tasks in graph.by_operation():
            if not graph.is_compute[tasks[0]] and operation not in transfers():
                own[tasks] += late[tasks].min()
        if self._alone is not None:
            own[graph.is_transfer] = self._alone
        return own

    @cached_property
    def _alone(self) -> Seconds | None:
        """Seconds of transfers without those that shared their ports; None if none did."""
        timeline, ready = self.causes.timeline, could_start(self.causes)
        tasks = np.flatnonzero(self._graph.is_transfer).astype(np.int32)
        if not len(tasks):
            return None
        begin = np.minimum(np.maximum(timeline.start, ready), timeline.end)
        return seconds_alone(timeline, tasks, begin[tasks])

    def _tasks(self, operation: Operation) -> Flags:
        chosen: Flags = self._graph.operation == operation
        return chosen

    def _means(self, operation: Operation, column: Integers, size: int) -> Seconds:
        """By a column, the mean of an operation's tasks; of all of them where there are none."""
        tasks = self._tasks(operation)
        if not tasks.any():
            return np.full(size, np.nan)
        count = np.bincount(column[tasks], minlength=size)
        sums = np.bincount(column[tasks], self._own[tasks], size)
        return np.where(count > 0, sums / np.maximum(count, 1), self._own[tasks].mean())

    def _table(self, layout: Layout, operation: Operation) -> Matrix:
        """Seconds by unit of a layout and by micro-batch; the last column: of any."""
        own = self._measured(operation)
        if operation in HALVES and np.isnan(own).all():
            own = self._measured(Operation.BACKWARD) / 2
        elif operation == Operation.BACKWARD and np.isnan(own).all():
            of_input, of_weight = map(self._measured, HALVES)
            own = of_input + of_weight
        of_units: Matrix = _overlaps(layout.units, len(own)) @ own
        return of_units

    def _measured(self, operation: Operation) -> Matrix:
        """The same by the timeline's units: NaN where there are none of the operation."""
        layout, tasks = self._graph.layout, np.flatnonzero(self._tasks(operation))
        shape = layout.units, layout.microbatches + 1
        if not len(tasks) or (self._graph.unit[tasks] == NONE).any():
            return np.full(shape, np.nan)
        by_unit = self._means(operation, self._graph.unit, layout.units)
        place = np.ravel_multi_index(
            (self._graph.unit[tasks], self._graph.microbatch[tasks] % shape[1]), shape
        )
        count = np.bincount(place, minlength=int(np.prod(shape))).reshape(shape)
        sums = np.bincount(place, self._own[tasks], count.size).reshape(shape)
        means: Matrix = np.where(count > 0, sums / np.maximum(count, 1), by_unit[:, np.newaxis])
        return means

    def _of_transfers(self, graph: TaskGraph, operation: Operation, tasks: Integers) -> Seconds:
        own, pp = self._graph, graph.layout.pp
        if graph.layout.units == own.layout.units:
            measured = self._measured(operation)
            same = np.flatnonzero(self._tasks(operation))
            known = np.unique(np.stack([own.rank[same], own.peer[same], own.unit[same]]), axis=1)
            wanted = np.stack([graph.rank[tasks], graph.peer[tasks], graph.unit[tasks]])
            is_known = (wanted[:, :, np.newaxis] == known[:, np.newaxis]).all(axis=0).any(axis=1)
        else:
            measured, is_known = np.full((1, 1), np.nan), np.zeros(len(tasks), dtype=bool)
        of_links = self._means(operation, own.rank * pp + np.maximum(own.peer, 0), pp * pp)
        by_link: Seconds = of_links[graph.rank[tasks] * pp + graph.peer[tasks]]
        if not is_known.any():
            return by_link
        exact = _looked_up(measured, graph.unit[tasks], graph.microbatch[tasks])
        return np.where(is_known, exact, by_link)


def _looked_up(table: Matrix, unit: Integers, microbatch: Integers) -> Seconds:
    """A micro-batch of -1, of what belongs to none, is the last column."""
    found: Seconds = table[unit, microbatch % table.shape[1]]
    return found


def _overlaps(units: int, measured: int) -> Matrix:
    """The share of each measured unit that is in each of the units, of a model divided evenly.

    >>> _overlaps(4, 2)
    array([[0.5, 0. ],
           [0.5, 0. ],
           [0. , 0.5],
           [0. , 0.5]])
    """
    bounds, own = np.arange(units + 1) / units, np.arange(measured + 1) / measured
    high = np.minimum(bounds[1:, np.newaxis], own[1:])
    low = np.maximum(bounds[:-1, np.newaxis], own[:-1])
    shares: Matrix = np.maximum(high - low, 0.0) * measured
    return shares
