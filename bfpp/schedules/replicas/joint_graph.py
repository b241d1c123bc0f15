"""The joint graph: one training step of replicas x pipeline ranks, where replicas differ.

Alike replicas need one graph: a `TaskGraph` stands for them all. Replicas whose tasks differ, in
what they take or in their order, wait for each other wherever they communicate, so that each has a
graph of its own, and what a data-parallel group does together is a *meeting*:

- Tasks are those of the first replica, then those of the next, in one numbering.
- A meeting has one task of each member of a group: the reduction, gather or norm of one unit or
  rank. They begin together, when all could, and each ends after its own seconds.
- Nothing else joins replicas: all other tasks wait for tasks of their own replica alone.

Groups are those of `Communication`: all replicas, or, with hybrid sharding, those that shard their
state together, which follow one another, and those that keep the same share in each such group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Offsets, place_in_segment, segment_starts
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.operations import OPERATIONS, collectives
from bfpp.schedules.operations.row import Group
from bfpp.schedules.replicas.joint_tasks import JointTasks


@dataclass(frozen=True, eq=False, repr=False)
class JointGraph:
    """The graph of each replica, and the meeting of each task (-1: it joins no replicas).

    Replicas are in `groups` of equal size: more than one with hybrid sharding.

    >>> import bfpp
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 2))
    >>> joint = joined([graph] * 3)
    >>> joint
    <JointGraph 1f1b: 3 x Layout(2, 2), 48 tasks>
    >>> joint.words(18)
    '#2 forward of stage 0 micro-batch 1 on rank 0 of replica 1'
    """

    replicas: tuple[TaskGraph, ...]
    meeting: Integers
    groups: int = 1
    is_checked: bool = field(default=False, init=False)

    def checked(self) -> JointGraph:
        """The graph itself, which is valid from now on for all who ask."""
        object.__setattr__(self, "is_checked", True)
        return self

    def __len__(self) -> int:
        return int(self.begins[-1])

    def __repr__(self) -> str:
        first = self.replicas[0]
        size = f"{len(self.replicas)} x {first.layout}"
        return f"<JointGraph {first.schedule}: {size}, {len(self):,} tasks>"

    @cached_property
    def begins(self) -> Offsets:
        """The number of each replica's first task, and one beyond the last."""
        return np.cumsum([0, *map(len, self.replicas)])

    def place(self, task: int) -> tuple[int, int]:
        """The replica of a task, and its number there."""
        replica = int(np.searchsorted(self.begins, task, side="right")) - 1
        return replica, task - int(self.begins[replica])

    def words(self, task: int) -> str:
        """A task in words."""
        replica, number = self.place(task)
        return f"{self.replicas[replica].task(number)} of replica {replica}"

    @cached_property
    def tasks(self) -> JointTasks:
        """All tasks with what each waits for, the order of lanes included."""
        before, after = [], []
        for begin, graph in zip(self.begins.tolist(), self.replicas, strict=False):
            start, follower = graph.followers
            ahead = np.repeat(np.arange(len(graph)), np.diff(start))
            before.append(ahead + begin)
            after.append(follower + begin)
        return JointTasks(np.concatenate(before), np.concatenate(after), self.meeting)

    @cached_property
    def digest(self) -> str:
        """A hexadecimal SHA-256 of all that decides what runs: of one replica, its graph's."""
        if len(self.replicas) == 1:
            return self.replicas[0].digest
        digests = [graph.digest for graph in self.replicas]
        digest = sha256(json.dumps([digests, self.groups]).encode())
        digest.update(np.asarray(self.meeting, dtype="<i8").tobytes())
        return digest.hexdigest()


def joined(replicas: Sequence[TaskGraph], groups: int = 1) -> JointGraph:
    """The joint graph of replicas, whose collectives meet in turn.

    Raises `InvalidConfiguration` where they cannot be in so many groups, are not of the same stages
    and communication, or do not communicate equally often.

    >>> import bfpp
    >>> len(bfpp.joined([bfpp.build_graph("1f1b", bfpp.Layout(2, 2))] * 4).replicas)
    4
    """
    require_alike(replicas, groups)
    distinct = {id(graph): _Collectives(graph) for graph in replicas}
    keys = distinct[id(replicas[0])].keys
    meeting, size = [], len(replicas) // groups
    for number, graph in enumerate(replicas):
        own = distinct[id(graph)]
        if not np.array_equal(own.keys, keys):
            raise InvalidConfiguration(
                "replicas", f"replica {number} and replica 0 do not communicate equally often"
            )
        column = np.full(len(graph), NONE)
        column[own.tasks] = own.together(number, size) * len(keys) + np.arange(len(keys))
        meeting.append(column)
    return JointGraph(tuple(replicas), np.concatenate(meeting), groups)


def require_alike(replicas: Sequence[TaskGraph], groups: int) -> None:
    """Raise `InvalidConfiguration` for replicas that are not of one model, or in no such groups."""
    if not replicas:
        raise InvalidConfiguration("replicas", "there must be one at least")
    if groups < 1 or len(replicas) % groups:
        raise InvalidConfiguration("dp_replicate", f"must divide the {len(replicas)} replicas")
    first = replicas[0]
    if groups > 1 and not first.communication.hybrid:
        raise InvalidConfiguration("dp_replicate", "needs hybrid sharding for several groups")
    for number, graph in enumerate(replicas):
        if graph.communication != first.communication:
            raise InvalidConfiguration("replicas", f"replica {number} communicates otherwise")
        if graph.layout.stages_on_ranks != first.layout.stages_on_ranks:
            raise InvalidConfiguration("replicas", f"replica {number} has other stages")


def together(group: Group, replica: int, size: int) -> int:
    """The number of the group that a replica is in, where `size` replicas shard their state.

    >>> [together(Group.DP_SHARD, replica, 2) for replica in range(4)]
    [0, 0, 1, 1]
    """
    if group is Group.DP_SHARD:
        return replica // size
    return replica % size if group is Group.DP_REPLICATE else 0


class _Collectives:
    """The tasks of a graph that a group of replicas does together, by what they are.

    The n-th of one operation, unit and rank is the same in each replica.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.communication = graph.communication
        codes = collectives(graph.communication)
        tasks = np.flatnonzero(np.isin(graph.operation, codes))
        columns = [column[tasks] for column in (graph.operation, graph.rank, graph.unit)]
        in_order = np.lexsort((tasks, *columns[::-1]))
        self.tasks = tasks[in_order]
        columns = [column[in_order] for column in columns]
        nth = place_in_segment(segment_starts(*columns)) if len(tasks) else tasks
        self.keys = np.stack([*columns, nth], axis=1)

    def together(self, replica: int, size: int) -> Offsets:
        """For each of these tasks, the number of the group that a replica does it with."""
        by_code = np.zeros(len(OPERATIONS), dtype=np.int64)
        for code in set(self.keys[:, 0].tolist()):
            group = OPERATIONS[code].group(self.communication)
            by_code[code] = together(group, replica, size)
        numbers: Offsets = by_code[self.keys[:, 0]]
        return numbers
