"""Composite passes: passes with communication inside, as one task or as a task for each piece.

A pass may stop to exchange something within a unit's devices: tensor parallelism its sums, expert
parallelism its tokens. For a schedule, the checker and the search it stays one task, a *composite*,
whose template (`templates`) lists its pieces. `expanded` gives the graph in which each piece is a
task, for those who draw and run.

Rules:

- A template belongs to an operation and a unit. Its pieces are shares of the pass's own compute,
  which add up to 1, and communication, each on a lane that nothing but pieces uses.
- The pieces of a pass are a chain, and hold the pass's lane until the last has ended. So without
  contention an expanded graph takes as long as the composite one.
- The two passes of a fused block take turns: one computes while the other communicates. The second
  begins once the first piece of the first has ended, and the block ends when both have.

Expansion keeps the order of the tasks: pieces get the numbers in the place of their pass, those of
a block in the place of its first pass. What waited for a pass waits for its last piece. A lane's
order does not hold the compute lane while a piece communicates, as that piece is on another lane;
so the last piece of each pass is made a dependency of the next task on the pass's lane. The work is
done once for each distinct template and kind of block, on arrays of all their passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose
from typing import NamedTuple, TypeVar

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Groups, Integers, Seconds, group_by
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.lanes import lanes_of_tasks
from bfpp.schedules.graph.task_columns import TaskColumns
from bfpp.schedules.graph.templates import Piece, Template, Templates, block_order
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import COMPUTE

Graph = TypeVar("Graph", bound=TaskColumns)


def require_templates(graph: TaskColumns, templates: Templates) -> None:
    """Raise `InvalidConfiguration` for templates that the graph's passes cannot have."""
    taken = {lane.stream for lane in graph.lanes}
    for operation, unit in templates:
        if not 0 <= unit < graph.layout.units:
            where = f"the template of {operation.title} at unit {unit}"
            raise InvalidConfiguration("templates", f"{where}: there is no such unit")
    distinct = {(operation, template): unit for (operation, unit), template in templates.items()}
    for (operation, template), unit in distinct.items():
        where = f"the template of {operation.title} at unit {unit}"
        shares = [piece.share for piece in template if piece.operation == operation]
        if not isclose(sum(shares), 1.0) or min(shares, default=0) <= 0:
            reason = f"{where}: the shares of its compute must add up to 1, not {sum(shares):g}"
            raise InvalidConfiguration("templates", reason)
        for piece in template:
            stream = piece.operation.streams(graph.communication)[0]
            if piece.operation != operation and stream is not COMPUTE and stream in taken:
                raise InvalidConfiguration(
                    "templates",
                    f"{where}: {piece.operation.title} is on the {stream.title} lane, which is not "
                    "for pieces alone",
                )


def template_numbers(
    graph: TaskColumns, tasks: Integers | None = None
) -> tuple[list[Template], Integers]:
    """The distinct templates, and which of them the operation and unit of tasks have, or -1.

    Of all tasks by default.
    """
    distinct = list(dict.fromkeys(graph.templates.values()))
    table = np.full((len(OPERATIONS), graph.layout.units + 1), NONE, dtype=np.int32)
    for (operation, unit), template in graph.templates.items():
        table[operation, unit] = distinct.index(template)
    if tasks is None:
        return distinct, table[graph.operation, graph.unit]  # no unit, -1, is the last column
    return distinct, table[graph.operation[tasks], graph.unit[tasks]]


def composites(graph: TaskColumns) -> Iterator[tuple[Template, Integers]]:
    """Each distinct template, and the tasks that are whole passes with it."""
    if not graph.templates:
        return
    distinct, number = template_numbers(graph)
    number = np.where(graph.piece == NONE, number, NONE)
    for each, template in enumerate(distinct):
        yield template, np.flatnonzero(number == each).astype(np.int32)


def shares(graph: TaskColumns) -> Seconds:
    """For each task, its share of the compute of its pass: 1 except for pieces."""
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


class Fused(NamedTuple):
    """Blocks of one kind, and the tasks of their passes."""

    templates: tuple[Template, Template]
    one: Integers
    other: Integers


def fused_passes(graph: TaskColumns) -> list[Fused]:
    """The blocks with a composite pass, by the templates and operations of both passes."""
    if not graph.templates:
        return []
    whole = (graph.block != NONE) & (graph.piece == NONE)
    other = np.flatnonzero(whole & (graph.block != np.arange(len(graph))))
    one = graph.block[other]
    distinct, numbers = template_numbers(graph, np.stack([one, other]))
    keys = *(numbers + 1), graph.operation[one], graph.operation[other]
    sizes = (len(distinct) + 1, len(distinct) + 1, len(OPERATIONS), len(OPERATIONS))
    code = np.ravel_multi_index([key.astype(np.int64) for key in keys], sizes)
    blocks = []
    for each, at in zip(*np.unique(code, return_index=True), strict=True):
        if (numbers[:, at] != NONE).any():
            first, second = (
                (Piece(OPERATIONS[graph.operation[task]], 1.0),)
                if number == NONE
                else distinct[number]
                for task, number in zip((one[at], other[at]), numbers[:, at], strict=True)
            )
            chosen = code == each
            blocks.append(Fused((first, second), one[chosen], other[chosen]))
    return blocks


class Rows(NamedTuple):
    """The tasks of an expanded graph: whose pieces they are, and which ones.

    Of each task before, `first` and `last` are where it begins and ends; `is_cut` is true if it,
    or another pass of its block, is in pieces.
    """

    whole: Integers
    piece: Integers
    first: Integers
    last: Integers
    is_cut: Flags


def expanded(graph: Graph) -> Graph:
    """The graph with a task for each piece of its composite passes."""
    blocks = fused_passes(graph)
    rows = _rows(graph, blocks)
    whole = rows.whole
    columns = {name: getattr(graph, name)[whole] for name in COPIED}
    columns["piece"] = np.where(rows.piece == NONE, columns["piece"], rows.piece)
    distinct, number = template_numbers(graph)
    for each, template in enumerate(distinct):
        own = (number[whole] == each) & (rows.piece != NONE)
        operations = np.array([int(piece.operation) for piece in template], dtype=np.int8)
        columns["operation"][own] = operations[rows.piece[own]]
    of_pass = columns["operation"] == graph.operation[whole]
    for buffer in ("weight_buffer", "gradient_buffer"):
        columns[buffer] = np.where(of_pass, columns[buffer], np.int32(NONE))
    lanes, lane, peer_lane = lanes_of_tasks(
        columns["operation"],
        columns["rank"],
        columns["peer"],
        graph.layout.pp,
        graph.communication,
    )
    return replace(
        graph,
        lanes=lanes,
        lane=lane,
        peer_lane=peer_lane,
        block=np.where(graph.block == NONE, NONE, rows.first[graph.block])[whole],
        posts=graph.posts.moved(rows.first, rows.last),
        dependencies=_dependencies(graph, rows, blocks),
        **columns,
    )


COPIED = (
    "operation", "rank", "peer", "unit", "microbatch", "weight_buffer", "gradient_buffer", "piece",
)  # fmt: skip
"""Columns that pieces take from their pass."""


def _rows(graph: TaskColumns, blocks: Sequence[Fused]) -> Rows:
    """Pieces are in the place of their pass, those of a block in that of its first pass."""
    chains = list(composites(graph))
    count = np.ones(len(graph), dtype=np.int32)
    for template, tasks in chains:
        count[tasks] = len(template)
    is_cut = count > 1
    for (one, other), first, second in blocks:
        count[first], count[second] = len(one) + len(other), 0
        is_cut[first] = is_cut[second] = True
    begin = (np.cumsum(count) - count).astype(np.int32)
    whole = np.repeat(np.arange(len(graph), dtype=np.int32), count)
    piece = np.full(len(whole), NONE, dtype=np.int32)
    last = begin + count - 1
    for template, tasks in chains:
        alone = tasks[graph.block[tasks] == NONE]
        piece[begin[alone][:, None] + np.arange(len(template))] = np.arange(len(template))
    for templates, first, second in blocks:
        both = np.stack([first, second])
        for at, (of_pass, number) in enumerate(zip(*block_order(*templates)[:2], strict=True)):
            whole[begin[first] + at], piece[begin[first] + at] = both[of_pass], number
        last[second] = last[first]
    return Rows(whole, piece, begin, last.astype(np.int32), is_cut)


def _dependencies(graph: TaskColumns, rows: Rows, blocks: Sequence[Fused]) -> Groups:
    """A pass waits with its first piece, is waited for by its last, and holds its lane."""
    first, last = rows.first, rows.last
    before, after = graph.dependencies.member, graph.dependent
    ahead, behind = graph.lane_neighbours
    held = rows.is_cut[ahead] | rows.is_cut[behind]
    held &= (graph.block[ahead] == NONE) | (graph.block[ahead] != graph.block[behind])
    alone = graph.block[rows.whole] == NONE
    links = np.flatnonzero((np.diff(rows.whole) == 0) & alone[1:]).astype(np.int32)
    waits, on = (
        [first[after], first[behind[held]], links + 1],
        [last[before], last[ahead[held]], links],
    )
    for templates, one, _ in blocks:
        for at, needed in enumerate(block_order(*templates).waits):
            for each in needed:
                waits.append(first[one] + at)
                on.append(first[one] + each)
    distinct = np.unique(np.stack([np.concatenate(waits), np.concatenate(on)]), axis=1)
    return group_by(distinct[0], distinct[1].astype(np.int32), len(rows.whole))
