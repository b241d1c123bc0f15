"""Costs of tasks: the interface between a cost model and an engine.

A cost model is one call, `costs(graph)`, that returns the columns of `Costs`.
A task takes its `seconds` (compute time, or latency), and then, if it moves
`bytes`, sends them through its ports, all at once. Tasks that use a port at the
same instant share its bandwidth max-min fairly: what one cannot use, because
another of its ports is narrower, the others have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.graph.composite_tasks import fused_passes, template_numbers
from bfpp.schedules.graph.templates import block_order
from bfpp.schedules.operations.streams import Stream


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each task, and the ports that they share.

    `seconds` and `bytes` are columns over tasks; `ports` has a row for each: the
    ports that its bytes pass, each once (-1 where there are fewer);
    `bandwidth` is that of each port in bytes per second.

    >>> import bfpp
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(2, 1))
    >>> bfpp.AbstractCosts(transfer=0.5).costs(graph).seconds
    array([1. , 0.5, 1. , 2. , 0.5, 0. , 0. , 2. , 0. , 0. ])
    """

    seconds: Seconds
    bytes: Seconds
    ports: Integers
    bandwidth: Seconds

    @property
    def columns(self) -> tuple[Seconds, Seconds, Integers]:
        """The columns over tasks, as compiled loops take them."""
        return self.seconds, self.bytes, self.ports

    def of(self, tasks: Integers) -> Costs:
        """The costs of some tasks, or of as many that cost like these."""
        return Costs(
            self.seconds.take(tasks),
            self.bytes.take(tasks),
            self.ports.take(tasks, axis=0),
            self.bandwidth,
        )

    def seconds_moving(self) -> Seconds:
        """Seconds of each task's bytes with its ports to itself."""
        seconds = np.zeros(len(self.bytes))
        moves = np.flatnonzero(self.bytes > 0)
        if len(moves):
            seconds[moves] = self.bytes[moves] / narrowest(self.bandwidth, self.ports[moves])
        return seconds

    def seconds_alone(self) -> Seconds:
        """Seconds of each task with its ports to itself."""
        alone: Seconds = self.seconds + self.seconds_moving()
        return alone


class Load(NamedTuple):
    """Costs of some tasks: columns over them, or a number for all; ports as those of `Costs`."""

    seconds: Seconds | float
    bytes: Seconds | float = 0.0
    ports: Integers | int = NONE


class CostModel(Protocol):
    """Anything that can price the tasks of a graph.

    >>> import bfpp, numpy
    >>> class Growing:
    ...     def costs(self, graph):
    ...         seconds = 1.0 + graph.unit.clip(0)
    ...         none = numpy.zeros(len(graph))
    ...         return bfpp.Costs(seconds, none, numpy.empty((len(graph), 0), int), none[:0])
    >>> bfpp.simulate(bfpp.build_graph("gpipe", bfpp.Layout(2, 2)), Growing()).step_time
    15.0
    """

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""


def side_by_side(costs: Sequence[Costs]) -> Costs:
    """The costs of replicas, one after the other, each with ports of its own."""
    ports = np.cumsum([0, *(len(each.bandwidth) for each in costs)])
    return Costs(
        np.concatenate([each.seconds for each in costs]),
        np.concatenate([each.bytes for each in costs]),
        np.concatenate(
            [
                np.where(each.ports == NONE, NONE, each.ports + first)
                for each, first in zip(costs, ports.tolist(), strict=False)
            ]
        ),
        np.concatenate([each.bandwidth for each in costs]),
    )


def inside_passes(graph: TaskGraph, alone: Callable[[Operation, Integers], Seconds]) -> Seconds:
    """For each kind of task, the seconds of the communication inside it.

    `alone` gives those of some tasks of an operation, as if they were tasks of the graph.
    """
    first = graph.kinds.first
    distinct, number = template_numbers(graph, first)
    number = np.where(graph.piece[first] == NONE, number, NONE)
    seconds = np.zeros(len(first))
    for each, template in enumerate(distinct):
        inside = Counter(piece.operation for piece in template if not piece.share)
        for operation, count in inside.items():
            seconds[number == each] += count * alone(operation, first[number == each])
    return seconds


def in_turns(
    graph: TaskGraph,
    seconds: Seconds,
    inside: Seconds,
    alone: Callable[[Operation, Integers], Seconds],
) -> Seconds:
    """The `seconds` of tasks, where the passes of each block compute and communicate in turn.

    `inside` is what of them is communication, which `alone` prices as in `inside_passes`. A
    block is as long as its pieces take on lanes of their own, and its second pass what is left:
    worked out once for blocks whose passes are of the same kinds.
    """
    seconds, kind = seconds.copy(), graph.kinds.of_task.astype(np.int64)
    for templates, *passes in fused_passes(graph):
        pair = np.ravel_multi_index([kind[each] for each in passes], [len(graph.kinds.first)] * 2)
        _, first, alike = np.unique(pair, return_index=True, return_inverse=True)
        tasks = [each[first] for each in passes]
        computing = [seconds[each] - inside[each] for each in tasks]
        communicating = {
            (of_pass, operation): alone(operation, tasks[of_pass])
            for of_pass, template in enumerate(templates)
            for operation in {piece.operation for piece in template if not piece.share}
        }
        free: dict[Stream, Seconds] = {}
        ends: list[Seconds] = []
        order = block_order(*templates)
        for of_pass, number, waits in zip(*order, strict=True):
            operation, share = templates[of_pass][number]
            stream = operation.streams(graph.communication)[0]
            each = share * computing[of_pass] if share else communicating[of_pass, operation]
            ready = free.get(stream, np.zeros(len(first)))
            for at in waits:
                ready = np.maximum(ready, ends[at])
            free[stream] = ready + each
            ends.append(free[stream])
        lengths = computing[0], np.max(ends, axis=0) - computing[0]
        for each_pass, length in zip(passes, lengths, strict=True):
            seconds[each_pass] = length[alike]
    return seconds


def fixed_costs(seconds: Seconds) -> Costs:
    """Costs without bytes: each task takes its seconds, whatever runs in parallel with it."""
    nothing = np.empty((len(seconds), 0), dtype=np.int32)
    return Costs(seconds, np.zeros(len(seconds)), nothing, np.empty(0))


def narrowest(bandwidth: Seconds, ports: Integers) -> Seconds:
    """The least bandwidth of each row of ports; infinite without any."""
    rate: Seconds = np.where(ports == NONE, np.inf, bandwidth.take(ports)).min(axis=1)
    return rate
