"""Passes with communication inside: one task to those who order, several to those who draw and run.

A pass may stop to exchange something within a unit's devices: tensor parallelism its sums, expert
parallelism its tokens. For a schedule, the checker and the search it stays one task, a *composite*,
whose template lists its pieces. `expanded` gives the graph in which each piece is a task.

Rules:

- A template belongs to an operation and a unit. Its pieces are shares of the pass's own compute,
  which add up to 1, and communication, each on a lane that nothing but pieces uses.
- The pieces of a pass are a chain, and hold the pass's lane until the last has ended. So without
  contention an expanded graph takes as long as the composite one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Groups, Integers, Seconds, group_by
from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.operations import COMPUTE, OPERATIONS, Operation

if TYPE_CHECKING:
    from bfpp.schedules.graph import TaskGraph


class Piece(NamedTuple):
    """A part of a pass: a share of its own compute, or another operation inside it."""

    operation: Operation
    share: float = 0.0


Template = tuple[Piece, ...]
Templates = Mapping[tuple[Operation, int], Template]
"""By the pass's operation and unit."""


def require_templates(graph: TaskGraph, templates: Templates) -> None:
    """Raise `InvalidConfiguration` for templates that the graph's passes cannot have."""
    taken = {lane.stream for lane in graph.lanes}
    for (operation, unit), template in templates.items():
        where = f"the template of {operation.title} at unit {unit}"
        shares = [piece.share for piece in template if piece.operation == operation]
        if not 0 <= unit < graph.layout.units:
            raise InvalidConfiguration("templates", f"{where}: there is no such unit")
        if not isclose(sum(shares), 1.0) or min(shares, default=0) <= 0:
            reason = f"{where}: the shares of its compute must add up to 1, not {sum(shares):g}"
            raise InvalidConfiguration("templates", reason)
        of_unit = (graph.operation == operation) & (graph.unit == unit)
        if (graph.block[of_unit] != NONE).any():
            raise InvalidConfiguration("templates", f"{where}: it is part of a fused block")
        for piece in template:
            stream = piece.operation.streams(graph.communication)[0]
            if piece.operation != operation and stream is not COMPUTE and stream in taken:
                raise InvalidConfiguration(
                    "templates",
                    f"{where}: {piece.operation.title} is on the {stream.title} lane, which is not "
                    "for pieces alone",
                )


def template_numbers(graph: TaskGraph) -> tuple[list[Template], Integers]:
    """The distinct templates, and which of them each task's operation and unit have, or -1."""
    distinct = list(dict.fromkeys(graph.templates.values()))
    table = np.full((len(OPERATIONS), graph.layout.units + 1), NONE, dtype=np.int32)
    for (operation, unit), template in graph.templates.items():
        table[operation, unit] = distinct.index(template)
    return distinct, table[graph.operation, graph.unit]  # no unit, -1, is the last column


def composites(graph: TaskGraph) -> Iterator[tuple[Template, Integers]]:
    """Each distinct template, and the tasks that are whole passes with it."""
    if not graph.templates:
        return
    distinct, number = template_numbers(graph)
    number = np.where(graph.piece == NONE, number, NONE)
    for each, template in enumerate(distinct):
        yield template, np.flatnonzero(number == each).astype(np.int32)


def shares(graph: TaskGraph) -> Seconds:
    """For each task, its share of the compute of its pass: 1 but for pieces."""
    share = np.ones(len(graph))
    pieces = np.flatnonzero(graph.piece != NONE)
    if len(pieces):
        distinct, number = template_numbers(graph)
        pieces = pieces[number[pieces] != NONE]
        table = np.zeros((len(distinct), max(map(len, distinct))))
        for each, template in enumerate(distinct):
            table[each, : len(template)] = [piece.share for piece in template]
        share[pieces] = table[number[pieces], graph.piece[pieces]]
    return share


def expanded(graph: TaskGraph) -> TaskGraph:
    """The graph with a task for each piece of its composite passes."""
    from bfpp.schedules.lowering.draft import lanes_of_tasks

    count = np.ones(len(graph), dtype=np.int32)
    for template, tasks in composites(graph):
        count[tasks] = len(template)
    first = np.append(0, np.cumsum(count)[:-1]).astype(np.int32)
    whole = np.repeat(np.arange(len(graph), dtype=np.int32), count)
    columns = {name: getattr(graph, name)[whole] for name in COPIED}
    for template, tasks in composites(graph):
        for number, piece in enumerate(template):
            columns["operation"][first[tasks] + number] = int(piece.operation)
            columns["piece"][first[tasks] + number] = number
    of_pass = columns["operation"] == graph.operation[whole]
    for buffer in ("weight_buffer", "gradient_buffer"):
        columns[buffer] = np.where(of_pass, columns[buffer], np.int32(NONE))
    lanes, lane, peer_lane = lanes_of_tasks(
        columns["operation"], columns["rank"], columns["peer"], graph.communication
    )
    return replace(
        graph,
        lanes=lanes,
        lane=lane,
        peer_lane=peer_lane,
        block=np.where(graph.block == NONE, NONE, first[graph.block])[whole],
        dependencies=_dependencies(graph, count, first),
        **columns,
    )


COPIED = (
    "operation", "rank", "peer", "unit", "microbatch", "weight_buffer", "gradient_buffer", "piece",
)  # fmt: skip
"""The columns that pieces have from their pass, before it is said what each piece does."""


def _dependencies(graph: TaskGraph, count: Integers, first: Integers) -> Groups:
    """A pass waits with its first piece, is waited for by its last, and holds its lane."""
    last = first + count - 1
    before, after = graph.dependencies.member, graph.dependent
    ahead, behind = graph.lane_neighbours
    held = (count[ahead] > 1) | (count[behind] > 1)
    links = np.flatnonzero(np.append(np.diff(np.repeat(first, count)) == 0, False)).astype(np.int32)
    waits = np.concatenate([first[after], first[behind[held]], links + 1])
    on = np.concatenate([last[before], last[ahead[held]], links])
    distinct = np.unique(np.stack([waits, on]), axis=1)
    return group_by(distinct[0], distinct[1].astype(np.int32), int(count.sum()))
