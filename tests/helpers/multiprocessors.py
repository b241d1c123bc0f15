"""A model of GPUs whose kernels of communication spin on multiprocessors until others run.

Each part in a task is a kernel of its lane, and so is a batch of transfers posted together. It
begins once the lane is at it, what it waits for on its own rank is over, and its blocks have
multiprocessors; it ends once all who take part have begun. Passes take one, and end by themselves.
Which of the kernels that could begin is next is drawn, those that spin rather than passes: so
receives take what they can get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import Membership, Use, by_use, memberships, use_of
from bfpp.schedules import Operation, Task, TaskGraph
from bfpp.schedules.columns import NONE


class Part(NamedTuple):
    """A process's part in tasks: its lane there, its blocks, and all who must have begun."""

    process: int
    tasks: tuple[int, ...]
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
            own = [_part(plan, task, rank, pipeline, groups) for task in tasks]
            parts += _batched(plan.graph, rank, own) if plan.graph.communication.in_groups else own
    return parts


def _batched(graph: TaskGraph, rank: int, parts: Sequence[Part]) -> list[Part]:
    """The parts with one for each batch, in the place of its first one, on a lane for all."""
    batches = [each for (of, _), each in graph.posts.batches().items() if of == rank]
    whole = {task: tuple(batch) for batch in batches for task in batch}
    by_task = {part.tasks[0]: part for part in parts}
    found = []
    for part in parts:
        batch = whole.get(part.tasks[0], part.tasks)
        if part.tasks[0] > min(batch):
            continue
        together = [by_task[task] for task in batch]
        within = {(part.process, task) for task in batch}
        found.append(
            part._replace(
                tasks=batch,
                lane=NONE if part.tasks[0] in whole else part.lane,
                with_others=frozenset().union(*(each.with_others for each in together)),
                waits=frozenset().union(*(each.waits for each in together)) - within,
            )
        )
    return found


def _part(
    plan: Plan, task: Task, rank: int, pipeline: int, groups: Mapping[Use, Membership]
) -> Part:
    graph, process = plan.graph, plan.process(rank, pipeline)
    use = use_of(task.operation, task.rank, task.peer, graph.communication)
    group = groups.get(use) if use else None
    members, blocks = (group.members, group.max_ctas) if group else ((process,), 1)
    if graph.is_transfer[task.number]:
        members = tuple(plan.process(each, pipeline) for each in (task.rank, task.peer))
    return Part(
        process,
        (task.number,),
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
    begun: set[tuple[int, int]] = set()
    spinning: list[Part] = []
    over: set[tuple[int, int]] = set()
    while queues:
        ready = [
            queue[0]
            for queue in queues.values()
            if queue[0] not in spinning
            and queue[0].waits <= over
            and queue[0].blocks <= free[queue[0].process]
        ]
        if not ready:
            return False
        shared = [each for each in ready if len(each.with_others) > 1]
        part = chance.choice(shared if shared and chance.random() < 0.9 else ready)
        begun.update((part.process, task) for task in part.tasks)
        free[part.process] -= part.blocks
        spinning.append(part)
        for each in [one for one in spinning if one.with_others <= begun]:
            spinning.remove(each)
            over.update((each.process, task) for task in each.tasks)
            free[each.process] += each.blocks
            lane = each.process, each.lane
            queues[lane].pop(0)
            if not queues[lane]:
                del queues[lane]
    return True


def ends_one_by_one(parts: Sequence[Part], processes: int, chance: Random, chained: bool) -> bool:
    """True if all parts end where each process does one at a time, in an order that is drawn.

    As if nothing ran side by side: an order of what waits for nothing, of lanes and, if it is
    `chained`, of all that others take part in as it is dispatched.
    """
    left = [_drawn([each for each in parts if each.process == process], chance, chained)
            for process in range(processes)]  # fmt: skip
    while any(left):
        heads = {(own[0].process, task) for own in left if own for task in own[0].tasks}
        over = [own for own in left if own and own[0].with_others <= heads]
        if not over:
            return False
        for own in over:
            own.pop(0)
    return True


def _drawn(parts: Sequence[Part], chance: Random, chained: bool) -> list[Part]:
    """An order in which one process may do its parts, what spins for others rather first."""
    left, done = [*parts], set[tuple[int, int]]()
    order: list[Part] = []
    while left:
        lanes, ready, is_met = set[int](), [], False
        for part in left:
            is_shared = len(part.with_others) > 1
            if (
                part.lane not in lanes
                and part.waits <= done
                and not (chained and is_shared and is_met)
            ):
                ready.append(part)
            lanes.add(part.lane)
            is_met |= is_shared
        shared = [each for each in ready if len(each.with_others) > 1]
        part = chance.choice(shared if shared and chance.random() < 0.9 else ready)
        left.remove(part)
        order.append(part)
        done.update((part.process, task) for task in part.tasks)
    return order
