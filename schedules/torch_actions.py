"""A task graph as the actions of PyTorch's pipeline runtime, one line a rank.

The words of `bfpp.schedules.torch_format` with communication among them: `1SEND_F3` and
`2RECV_F3`, `2SEND_B3` and `1RECV_B3`; of fully sharded stages `2UNSHARD` before the first of
their steps that finds these weights, `2RESHARD` after the last, and `2REDUCE_GRAD`. PyTorch has
one place for the weights of a stage: what several runs hold at once is unsharded once. All ranks
list what they share in the order of the tasks' numbers, in which no rank waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bfpp.schedules.columns import NONE
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.operations import Operation, compute_steps
from bfpp.schedules.tasks import Task
from bfpp.schedules.torch_format import CARRIED, word

LETTERS = {operation: (letter, on) for letter, (operation, on) in CARRIED.items()}


class Action(NamedTuple):
    """An action of a rank, at a task or right after it; it may acquire or release its stage."""

    rank: int
    task: int
    is_after: bool
    word: str
    stage: int = NONE
    holds: int = 0


def write_actions(graph: TaskGraph) -> str:
    """The actions of all ranks; raises `InvalidConfiguration` for stages of several units."""
    if max(graph.layout.units_per_stage) > 1:
        raise InvalidConfiguration(
            "units_per_stage", "PyTorch gathers whole stages: they must have one unit"
        )
    rows: list[list[str]] = [[] for _ in range(graph.layout.pp)]
    holding = Counter[tuple[int, int]]()
    for action in sorted([*_beside(graph), *_reshards(graph)]):
        place = action.rank, action.stage
        before = holding[place]
        holding[place] += action.holds
        if not action.holds or 0 in (before, holding[place]):
            rows[action.rank].append(action.word)
    return "".join(",".join(row) + "\n" for row in rows)


def _beside(graph: TaskGraph) -> Iterator[Action]:
    """What each task is called where it runs; a block, at its second pass."""
    for task in graph.tasks():
        stage, number = task.unit, task.number
        if task.operation in compute_steps():
            if task.block == NONE:
                yield Action(task.rank, number, False, _word(task))
            elif task.block != number:
                first = _word(graph.task(task.block))
                yield Action(task.rank, number, False, f"({first};{_word(task)})OVERLAP_F_B")
        elif task.operation in LETTERS:
            letter, on = LETTERS[task.operation]
            names = f"{stage}SEND_{letter}", f"{stage + on}RECV_{letter}"
            for rank, name in zip(task.ranks, names, strict=True):
                yield Action(rank, number, False, f"{name}{task.microbatch}")
        elif task.operation is Operation.GATHER:
            for rank in task.ranks:
                yield Action(rank, number, False, f"{stage}UNSHARD", stage, 1)
        elif task.operation is Operation.REDUCE:
            for rank in task.ranks:
                yield Action(rank, number, False, f"{stage}REDUCE_GRAD")


def _word(task: Task) -> str:
    return word((int(task.operation), task.stage, task.microbatch, False))


def _reshards(graph: TaskGraph) -> Iterator[Action]:
    """After the last use of what is gathered: before its buffer's next gather, or of all."""
    held: dict[tuple[int, int], tuple[int, int]] = {}
    ends = {task.block: task.number for task in graph.tasks() if task.block != NONE}

    def reshard(rank: int, stage: int, last_use: int) -> Action:
        return Action(rank, ends.get(last_use, last_use), True, f"{stage}RESHARD", stage, -1)

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
