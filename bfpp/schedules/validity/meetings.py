"""Checker of joint graphs: each replica's step is right, and replicas meet in whole groups.

What waits for what inside a replica is checked as if it were alone (`bfpp.schedules.validity`).
Meetings only add waits; so of all replicas together there is left to ask

- `meetings`: what a data-parallel group does together, and nothing else, has a meeting; with one
  task of each member, of one operation, unit and rank;
- `deadlock`: replicas that meet, all of them in their own orders, come to their ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bfpp.schedules.columns import NONE, group_by
from bfpp.schedules.errors import InvalidConfiguration, InvalidInput
from bfpp.schedules.graph.wait_cycles import short_cycle, turns
from bfpp.schedules.operations.operations import OPERATIONS, collectives
from bfpp.schedules.replicas.joint_graph import JointGraph, require_alike, together
from bfpp.schedules.validity import Kind, Violation, violations
from bfpp.schedules.validity.findings import Finding


def joint_violations(graph: JointGraph) -> list[Violation]:
    """All rules that a joint graph breaks, its tasks by their numbers there.

    Replicas with one graph are checked once, and not those that have been checked before.

    >>> import bfpp
    >>> from bfpp.schedules.replicas.joint_graph import joined
    >>> joint_violations(joined([bfpp.build_graph("1f1b", bfpp.Layout(2, 4))] * 4))
    []
    """
    try:
        require_alike(graph.replicas, graph.groups)
    except InvalidConfiguration as wrong:
        return [Violation("replicas", wrong.reason, ())]
    first = {id(each): number for number, each in reversed([*enumerate(graph.replicas)])}
    found = [
        Violation(
            each.rule,
            f"replica {number}: {each.message}",
            tuple(int(graph.begins[number]) + task for task in each.tasks),
        )
        for number in sorted(first.values())
        if not graph.replicas[number].is_checked
        for each in violations(graph.replicas[number])
    ]
    if any(each.rule in ("columns", "deadlock") for each in found):
        return found
    if broken := [*_columns(graph)]:
        return [*found, *(Violation("columns", *finding) for finding in broken)]
    found += [Violation("meetings", *finding) for finding in _meetings(graph)]
    return found + [Violation("deadlock", *finding) for finding in _deadlock(graph)]


def require_valid_joint(graph: JointGraph) -> JointGraph:
    """The graph, checked unless it has been; raises `InvalidConfiguration` if it is wrong."""
    if graph.is_checked:
        return graph
    wrong = [each for each in joint_violations(graph) if each.kind is Kind.WRONG]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        reason = f"{graph.replicas[0].schedule}: {wrong[0].rule}: {wrong[0].message}{more}"
        raise InvalidConfiguration("schedule", reason)
    return graph.checked()


def _columns(graph: JointGraph) -> Iterator[Finding]:
    if len(graph.meeting) != len(graph):
        yield f"column meeting has {len(graph.meeting)} entries for {len(graph)} tasks", ()
        return
    for task in np.flatnonzero(graph.meeting < NONE).tolist():
        yield f"#{task} has meeting {graph.meeting[task]}, which does not exist", (task,)


def _meetings(graph: JointGraph) -> Iterator[Finding]:
    """Tasks of a group have a meeting with all its members, and no others have one."""
    codes = collectives(graph.replicas[0].communication)
    operation, rank, peer, unit = (
        np.concatenate([getattr(each, name) for each in graph.replicas])
        for name in ("operation", "rank", "peer", "unit")
    )
    joins = np.isin(operation, codes)
    for task in np.flatnonzero(joins & (graph.meeting == NONE)).tolist():
        yield f"{graph.words(task)} meets no other replica", (task,)
    for task in np.flatnonzero(~joins & (graph.meeting != NONE)).tolist():
        yield f"{graph.words(task)} is its replica's own, and yet has a meeting", (task,)
    tasks = np.flatnonzero(joins & (graph.meeting != NONE))
    tasks = tasks[np.argsort(graph.meeting[tasks], kind="stable")]
    replica = np.repeat(np.arange(len(graph.replicas)), np.diff(graph.begins))
    in_group = _groups(graph)[replica, operation]
    columns = np.stack([operation, rank, peer, unit, in_group])[:, tasks]
    bounds = np.flatnonzero(np.diff(graph.meeting[tasks], prepend=NONE, append=NONE))
    expected = _members(graph)
    for begin, end in pairwise(bounds.tolist()):
        members, own = tasks[begin:end].tolist(), columns[:, begin:end]
        if (own != own[:, :1]).any():
            differs = int((own != own[:, :1]).any(axis=0).argmax())
            other = members[differs]
            yield f"{graph.words(other)} meets {graph.words(members[0])}", (members[0], other)
        elif (met := replica[members].tolist()) != expected[own[0, 0], own[4, 0]]:
            absent = sorted({*expected[own[0, 0], own[4, 0]]} - {*met})
            names = ", ".join(map(str, absent))
            how = f"without replica {names}" if absent else "with a replica twice"
            yield f"{graph.words(members[0])} meets {how}", tuple(members)


def _groups(graph: JointGraph) -> np.ndarray:
    """The number of the group of each replica for each operation."""
    size, communication = len(graph.replicas) // graph.groups, graph.replicas[0].communication
    return np.array(
        [
            [together(each.group(communication), replica, size) for each in OPERATIONS]
            for replica in range(len(graph.replicas))
        ]
    )


def _members(graph: JointGraph) -> dict[tuple[int, int], list[int]]:
    """The replicas of each operation's groups, by their numbers."""
    groups = _groups(graph)
    return {
        (code, number): np.flatnonzero(groups[:, code] == number).tolist()
        for code in range(groups.shape[1])
        for number in range(int(groups[:, code].max()) + 1)
    }


def _deadlock(graph: JointGraph) -> Iterator[Finding]:
    """Replicas in their own orders, which wait at each meeting for all others, come to an end."""
    try:
        graph.tasks.require_order()
    except InvalidInput:
        waits = _cycle(graph)
        words = (f"{graph.words(one)} waits for {graph.words(other)}" for one, other in waits)
        yield "; ".join(words), tuple(one for one, _ in waits)


def _cycle(graph: JointGraph) -> list[tuple[int, int]]:
    """Tasks and what they wait for, each of which the next one is, or meets; so is the first.

    All tasks of a meeting are one in this.
    """
    tasks, meets = graph.tasks, np.flatnonzero(graph.tasks.meets)
    first, which = np.unique(tasks.meeting[meets], return_index=True, return_inverse=True)[1:]
    one = np.arange(len(graph), dtype=np.int32)
    one[meets] = meets[first[which]]
    before, after = one[tasks.before], one[tasks.after]
    predecessors = group_by(after, before, len(graph))
    cycle = short_cycle(predecessors, turns(predecessors))
    edges = [
        np.flatnonzero((after == waiting) & (before == other))[0]
        for waiting, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    return [(int(tasks.after[edge]), int(tasks.before[edge])) for edge in edges]
