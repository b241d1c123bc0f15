"""Small changes to a task graph, most of which break it.

A mutation is a function of a graph and of `choose`, which picks one item of a
sequence; it returns the changed graph, or None where it finds nothing to
change. Tasks keep their numbers as names while they are moved, copied and
dropped; `rebuilt` numbers them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import networkx as nx
import numpy as np

from bfpp.schedules import Lane, Operation, Task, TaskGraph
from bfpp.schedules.columns import NONE, group_by
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.operations.operations import OPERATIONS, compute_steps
from bfpp.schedules.operations.streams import COMPUTE

Choose = Callable[[Sequence[Any]], Any]
Mutation = Callable[[TaskGraph, Choose], TaskGraph | None]


def rebuilt(graph: TaskGraph, tasks: list[Task]) -> TaskGraph:
    """The graph of these tasks in this order; what waited for others waits no more."""
    number = {task.number: new for new, task in enumerate(tasks)}
    edges = [
        (number[task.number], number[dependency])
        for task in tasks
        for dependency in task.dependencies
        if dependency in number
    ]
    ends, starts = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    columns: dict[str, Any] = {
        name: np.array([getattr(task, name) for task in tasks], dtype=getattr(graph, name).dtype)
        for name in COLUMNS
    }
    columns["block"][:] = [number.get(block, NONE) for block in columns["block"].tolist()]
    return replace(graph, dependencies=group_by(ends, starts, len(tasks)), **columns)


def changed(graph: TaskGraph, number: int, **fields: Any) -> TaskGraph:
    """The graph with other fields for one task."""
    tasks = list(graph.tasks())
    tasks[number] = tasks[number]._replace(**fields)
    return rebuilt(graph, tasks)


def find(graph: TaskGraph, *operations: Operation, **fields: int) -> list[Task]:
    """The tasks of these operations (or of all) with these fields."""
    return [
        task
        for task in graph.tasks()
        if task.operation in (operations or tuple(OPERATIONS))
        and all(getattr(task, name) == value for name, value in fields.items())
    ]


def without(graph: TaskGraph, number: int, *, bridged: bool) -> TaskGraph:
    """The graph without a task; if bridged, what waited for it waits for what it waited for."""
    dropped = graph.task(number)
    tasks = []
    for task in graph.tasks():
        if bridged and number in task.dependencies:
            kept = set(task.dependencies) - {number} | set(dropped.dependencies)
            tasks.append(task._replace(dependencies=tuple(sorted(kept))))
        elif task.number != number:
            tasks.append(task)
    return rebuilt(graph, tasks)


def waiting_less(graph: TaskGraph, number: int, dependency: int) -> TaskGraph:
    """The graph in which one task waits no more for another."""
    kept = [other for other in graph.task(number).dependencies if other != dependency]
    return changed(graph, number, dependencies=tuple(kept))


def twice(graph: TaskGraph, number: int) -> TaskGraph:
    """The graph with a second such task right after the first; the others know one alone."""
    tasks = list(graph.tasks())
    tasks.insert(number + 1, tasks[number]._replace(number=len(graph)))
    return rebuilt(graph, tasks)


def exchanged(graph: TaskGraph, first: int, second: int) -> TaskGraph:
    """The graph in which two tasks have changed places on the lanes that they share.

    All is numbered anew in an order in which it could run. Where there is none,
    the two exchange their numbers.
    """
    swap = {first: second, second: first}
    waits = nx.DiGraph()
    waits.add_nodes_from(range(len(graph)))
    for task in graph.tasks():
        waits.add_edges_from((dependency, task.number) for dependency in task.dependencies)
    for lane in range(len(graph.lanes)):
        order = graph.lane_tasks.of(lane).tolist()
        if first in order and second in order:
            order = [swap.get(task, task) for task in order]
        waits.add_edges_from(pairwise(order))
    if nx.is_directed_acyclic_graph(waits):
        order = list(nx.lexicographical_topological_sort(waits))
    else:
        order = [swap.get(task, task) for task in range(len(graph))]
    return rebuilt(graph, [graph.task(task) for task in order])


def swap_on_a_lane(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    lanes = [graph.lane_tasks.of(lane).tolist() for lane in range(len(graph.lanes))]
    if not (lanes := [tasks for tasks in lanes if len(tasks) > 1]):
        return None
    return exchanged(graph, *choose(list(combinations(choose(lanes), 2))))


def swap_neighbours(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    lanes = [graph.lane_tasks.of(lane).tolist() for lane in range(len(graph.lanes))]
    pairs = [pair for tasks in lanes for pair in pairwise(tasks)]
    return exchanged(graph, *choose(pairs)) if pairs else None


def swap_receives(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """Two transfers of one channel carry each other's payload."""
    transfers = find(graph, Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS)
    pairs = [
        (one, other)
        for one, other in combinations(transfers, 2)
        if (one.operation, one.rank, one.peer) == (other.operation, other.rank, other.peer)
    ]
    if not pairs:
        return None
    one, other = choose(pairs)
    tasks = list(graph.tasks())
    tasks[one.number] = one._replace(unit=other.unit, microbatch=other.microbatch)
    tasks[other.number] = other._replace(unit=one.unit, microbatch=one.microbatch)
    return rebuilt(graph, tasks)


def drop_dependency(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    edges = [(task.number, other) for task in graph.tasks() for other in task.dependencies]
    return waiting_less(graph, *choose(edges)) if edges else None


def drop_guard(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """A buffer's next user does not wait until it is free, or its reader until it is full."""
    guarded = (Operation.GATHER, Operation.REDUCE)
    edges = [
        (task.number, other)
        for task in graph.tasks()
        for other in task.dependencies
        if task.operation in guarded or graph.operation[other] in guarded
    ]
    return waiting_less(graph, *choose(edges)) if edges else None


def wait_for_another(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """A task waits for another one of the kind that it should wait for."""
    edges = [
        (task, other, instead.number)
        for task in graph.tasks()
        for other in task.dependencies
        for instead in find(graph, graph.task(other).operation, rank=graph.task(other).rank)
        if instead.number < task.number and instead.number not in task.dependencies
    ]
    if not edges:
        return None
    task, other, instead = choose(edges)
    waits = {*task.dependencies} - {other} | {instead}
    return changed(graph, task.number, dependencies=tuple(sorted(waits)))


def drop_task(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    return without(graph, choose(range(len(graph))), bridged=False)


def repeat_task(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    return twice(graph, choose(range(len(graph))))


def skip_gather(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    gathers = find(graph, Operation.GATHER)
    return without(graph, choose(gathers).number, bridged=True) if gathers else None


def reuse_buffer(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """A task uses another buffer than those that it works with."""
    column = choose(["weight_buffer", "gradient_buffer"])
    users = [task for task in graph.tasks() if getattr(task, column) != NONE]
    if not users:
        return None
    task = choose(users)
    buffers = sorted({getattr(user, column) for user in users} - {getattr(task, column)})
    return changed(graph, task.number, **{column: choose(buffers)}) if buffers else None


def relabel(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """A task is for another stage or micro-batch, on the same lane."""
    column, values = choose(
        [("unit", graph.layout.units), ("microbatch", graph.layout.microbatches)]
    )
    labelled = [task for task in graph.tasks() if getattr(task, column) != NONE]
    return changed(graph, choose(labelled).number, **{column: choose(range(values))})


def move_to_another_lane(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    task = choose(list(graph.tasks()))
    end = choose(["lane", "peer_lane"] if task.peer_lane != NONE else ["lane"])
    others = [lane for lane in range(len(graph.lanes)) if lane != getattr(task, end)]
    return changed(graph, task.number, **{end: choose(others)}) if others else None


def one_more_gather(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """Weights are gathered again between two steps: no harm done, but within blocks."""
    if not (gathers := find(graph, Operation.GATHER, peer=NONE)) or has_blocks(graph):
        return None
    step = choose([task for task in steps(graph) if task.weight_buffer != NONE])
    lane = next(gather.lane for gather in gathers if gather.rank == step.rank)
    before = find(graph, lane=graph.lanes.index(Lane(step.rank, COMPUTE)))
    ready = tuple(task.number for task in before if task.number < step.number)[-1:]
    gather = gathers[0]._replace(
        number=len(graph),
        rank=step.rank,
        unit=step.unit,
        lane=lane,
        weight_buffer=step.weight_buffer,
        dependencies=ready,
    )
    tasks = list(graph.tasks())
    tasks[step.number] = step._replace(dependencies=(*step.dependencies, gather.number))
    return rebuilt(graph, [*tasks[: step.number], gather, *tasks[step.number :]])


def one_more_reduction(graph: TaskGraph, choose: Choose) -> TaskGraph | None:
    """The sum so far is reduced, and later gradients by themselves: no harm done."""
    if not (reductions := find(graph, Operation.REDUCE, peer=NONE)) or has_blocks(graph):
        return None
    adding = [task for task in steps(graph) if task.gradient_buffer != NONE]
    step = choose(adding)
    reduction = reductions[0]._replace(
        number=len(graph),
        rank=step.rank,
        unit=step.unit,
        lane=next(each.lane for each in reductions if each.rank == step.rank),
        gradient_buffer=step.gradient_buffer,
        dependencies=(step.number,),
    )
    tasks = list(graph.tasks())
    for task in find(graph, rank=step.rank, gradient_buffer=step.gradient_buffer):
        if task in adding and task.number > step.number:
            after = (*task.dependencies, reduction.number)
            tasks[task.number] = task._replace(dependencies=after)
    return rebuilt(graph, [*tasks[: step.number + 1], reduction, *tasks[step.number + 1 :]])


def has_blocks(graph: TaskGraph) -> bool:
    return bool((graph.block != NONE).any())


def steps(graph: TaskGraph) -> list[Task]:
    return find(graph, *compute_steps())


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        swap_on_a_lane,
        swap_neighbours,
        swap_receives,
        drop_dependency,
        drop_guard,
        wait_for_another,
        drop_task,
        repeat_task,
        skip_gather,
        reuse_buffer,
        relabel,
        move_to_another_lane,
    )
}
