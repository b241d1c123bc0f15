"""A task graph as the actions of PyTorch's pipeline runtime, one line a rank.

The actions of `bfpp.schedules.formats.torch_csv` with communication among them: `1SEND_F3` and
`2RECV_F3`, `2SEND_B3` and `1RECV_B3`; of fully sharded stages `2UNSHARD` before the first of
their steps that finds these weights, `2RESHARD` after the last, and `2REDUCE_GRAD`. PyTorch has
one place for the weights of a stage: what several runs hold at once is unsharded once. All ranks
list what they share in the order of the tasks' numbers, in which no rank waits for ever; sends
and receives where the graph posts them, if not on channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.formats.torch_csv import CARRIED
from bfpp.schedules.formats.torch_waits import with_waits
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.tasks import Task
from bfpp.schedules.operations.operations import Operation, compute_steps
from bfpp.schedules.orders.actions import action

TRANSFER_LETTERS = {operation: (letter, on) for letter, (operation, on) in CARRIED.items()}


class Action(NamedTuple):
    """An action of a rank, at a task or right after it; it may acquire or release its stage.

    Of several in one place, those of the first `turn` come first.
    """

    rank: int
    task: int
    is_after: bool
    turn: int
    name: str
    stage: int = NONE
    holds: int = 0


def write_actions(graph: TaskGraph, *, waits: bool = True) -> str:
    """The actions of all ranks, with `waits` for what they begin, as PyTorch has had since 2.15.

    Raises `InvalidConfiguration` for stages of several units.
    """
    if max(graph.layout.units_per_stage) > 1:
        raise InvalidConfiguration(
            "units_per_stage", "PyTorch gathers whole stages: they must have one unit"
        )
    rows: list[list[str]] = [[] for _ in range(graph.layout.pp)]
    holding = Counter[tuple[int, int]]()
    for each in sorted([*_beside(graph), *_ends(graph), *_reshards(graph)]):
        place = each.rank, each.stage
        before = holding[place]
        holding[place] += each.holds
        if not each.holds or 0 in (before, holding[place]):
            rows[each.rank].append(each.name)
    if waits:
        overlaps = graph.communication.dp_overlap
        rows = [[*with_waits(row, overlaps=overlaps)] for row in rows]
    return "".join(",".join(row) + "\n" for row in rows)


def _beside(graph: TaskGraph) -> Iterator[Action]:
    """Passes, UNSHARD and REDUCE_GRAD at their own tasks; a block at its second pass."""
    for task in graph.tasks():
        stage, number = task.unit, task.number
        if task.operation in compute_steps():
            if task.block == NONE:
                yield Action(task.rank, number, False, 0, pass_action(task))
            elif task.block != number:
                first = pass_action(graph.task(task.block))
                block = f"({first};{pass_action(task)})OVERLAP_F_B"
                yield Action(task.rank, number, False, 0, block)
        elif task.operation is Operation.GATHER:
            for rank in task.ranks:
                yield Action(rank, number, False, 0, f"{stage}UNSHARD", stage, 1)
        elif task.operation is Operation.REDUCE:
            for rank in task.ranks:
                yield Action(rank, number, False, 0, f"{stage}REDUCE_GRAD")


def _ends(graph: TaskGraph) -> Iterator[Action]:
    """Sends and receives: after the steps that they are posted after, or else by their numbers."""
    if len(graph.posts.rank):
        posts = zip(*(column.tolist() for column in graph.posts), strict=True)
        for turn, (rank, number, is_send, after) in enumerate(posts):
            yield Action(
                rank, after, True, turn, transfer_action(graph.task(number), is_send=is_send)
            )
        return
    for number in np.flatnonzero(graph.is_transfer).tolist():
        task = graph.task(number)
        yield Action(task.rank, number, False, 0, transfer_action(task, is_send=True))
        yield Action(task.peer, number, False, 0, transfer_action(task, is_send=False))


def transfer_action(task: Task, *, is_send: bool) -> str:
    """The action of one end of a transfer: `1SEND_F3`."""
    letter, on = TRANSFER_LETTERS[task.operation]
    verb, stage = ("SEND", task.stage) if is_send else ("RECV", task.stage + on)
    return f"{stage}{verb}_{letter}{task.microbatch}"


def pass_action(task: Task) -> str:
    """The action of a pass: `2F3`."""
    return action((int(task.operation), task.stage, task.microbatch, False))


def _reshards(graph: TaskGraph) -> Iterator[Action]:
    """After the last use of gathered weights: before their buffer's next gather, or of all."""
    held: dict[tuple[int, int], tuple[int, int]] = {}
    ends = {task.block: task.number for task in graph.tasks() if task.block != NONE}

    def reshard(rank: int, stage: int, last_use: int) -> Action:
        return Action(rank, ends.get(last_use, last_use), True, 0, f"{stage}RESHARD", stage, -1)

    for task in graph.tasks():
        if task.operation is Operation.GATHER:
            for rank in task.ranks:
                place = rank, task.weight_buffer
                if place in held:
                    yield reshard(rank, *held[place])
                held[place] = task.unit, task.number
        elif (place := (task.rank, task.weight_buffer)) in held:
            held[place] = task.unit, task.number
    for (rank, _), use in held.items():
        yield reshard(rank, *use)
