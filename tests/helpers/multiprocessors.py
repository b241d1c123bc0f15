"""A model of GPUs whose kernels of communication spin on multiprocessors until others run.

Each part in a task is a kernel of its lane. It begins once the lane is at it, what it waits for on
its own rank is over, and its blocks have multiprocessors; it ends once all who take part have
begun. Passes take one, and end by themselves. Which of the kernels that could begin is next is
drawn, those that spin rather than passes: so receives take what they can get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import Membership, Use, by_use, memberships, use_of
from bfpp.schedules import Operation, Task, TaskGraph


class Part(NamedTuple):
    """A process's part in a task: its lane there, its blocks, and all who must have begun."""

    process: int
    task: int
    lane: int
    blocks: int
    with_others: frozenset[tuple[int, int]]
    waits: frozenset[tuple[int, int]]


def parts_of(plan: Plan) -> list[Part]:
    """The parts of all processes in a step, each process's in the order of dispatch."""
    parts = []
    for rank in range(plan.graph.layout.pp):
        for pipeline in range(plan.pipelines):
            groups = by_use(memberships(plan, rank, pipeline))
            tasks = map(plan.graph.task, plan.graph.rank_tasks.of(rank).tolist())
            parts += [_part(plan, task, rank, pipeline, groups) for task in tasks]
    return parts


def _part(
    plan: Plan, task: Task, rank: int, pipeline: int, groups: Mapping[Use, Membership]
) -> Part:
    graph, process = plan.graph, plan.process(rank, pipeline)
    use = use_of(task.operation, task.rank, task.peer, graph.communication)
    group = groups.get(use) if use else None
    members, blocks = (group.members, group.max_ctas) if group else ((process,), 1)
    return Part(
        process,
        task.number,
        task.lane if task.rank == rank else task.peer_lane,
        blocks if len(members) > 1 else 1,
        frozenset((each, _same(graph, task, each // plan.pipelines)) for each in members),
        frozenset(
            (process, each)
            for each in task.dependencies
            if rank in (graph.rank[each], graph.peer[each])
        ),
    )


def _same(graph: TaskGraph, task: Task, rank: int) -> int:
    """The number of what a rank has for a task that several do together, each with its own."""
    if rank in (task.rank, task.peer):
        return task.number
    of_unit = task.operation in (Operation.GATHER, Operation.REDUCE)  # of copies of a stage

    def alike(rank: int) -> list[int]:
        own = graph.rank_tasks.of(rank)
        is_like = graph.operation[own] == task.operation
        return own[is_like & ((not of_unit) | (graph.unit[own] == task.unit))].tolist()

    return alike(rank)[alike(task.rank).index(task.number)]


def comes_to_an_end(
    parts: Sequence[Part], processes: int, multiprocessors: int, chance: Random
) -> bool:
    """True if all parts end; False where kernels that spin leave none room that they wait for."""
    queues: dict[tuple[int, int], list[Part]] = {}
    for part in parts:
        queues.setdefault((part.process, part.lane), []).append(part)
    free = Counter(dict.fromkeys(range(processes), multiprocessors))
    begun: dict[tuple[int, int], Part] = {}
    over: set[tuple[int, int]] = set()
    while queues:
        ready = [
            (key, queue[0])
            for key, queue in queues.items()
            if (queue[0].process, queue[0].task) not in begun
            and queue[0].waits <= over
            and queue[0].blocks <= free[queue[0].process]
        ]
        if not ready:
            return False
        spinning = [each for each in ready if len(each[1].with_others) > 1]
        _, part = chance.choice(spinning if spinning and chance.random() < 0.9 else ready)
        begun[part.process, part.task] = part
        free[part.process] -= part.blocks
        if part.with_others <= begun.keys():
            for each in part.with_others:
                over.add(each)
                free[each[0]] += begun[each].blocks
                lane = each[0], begun[each].lane
                queues[lane].pop(0)
                if not queues[lane]:
                    del queues[lane]
    return True
