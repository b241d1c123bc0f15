"""The checker's rules in their plainest form: task by task, with a clock of all lanes for each.

What asks for the order of tasks is written apart from `bfpp.schedules.validity`, loop by loop,
in time and memory of tasks x lanes. The tests hold the checker's findings against it; the
benchmark of the same name says what columns and short proofs gain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import GRADIENTS, INPUT_GRADIENT, WEIGHTS
from bfpp.schedules.operations.operations import (
    Operation,
    compute_steps,
    enders,
    of_scope,
    readers,
    writers,
)
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.validity import Violation
from bfpp.schedules.validity.compute import _precedence, optimizer
from bfpp.schedules.validity.findings import Finding, having, too_early
from bfpp.schedules.validity.transfers import _payloads

Cell = tuple[int, int]
"""(unit, micro-batch)"""


def by_cell(graph: TaskGraph, operations: Collection[Operation]) -> dict[Cell, list[int]]:
    """The tasks of these operations, by the unit and micro-batch that they are for."""
    cells: dict[Cell, list[int]] = {}
    for number in having(graph, operations).tolist():
        cell = int(graph.unit[number]), int(graph.microbatch[number])
        cells.setdefault(cell, []).append(number)
    return cells


def network(graph: TaskGraph) -> nx.DiGraph:
    """Tasks as nodes; an edge leads from a task to each that waits for its end."""
    waits = nx.DiGraph()
    waits.add_nodes_from(range(len(graph)))
    dependencies = graph.dependencies
    task = np.repeat(np.arange(len(graph)), np.diff(dependencies.start))
    waits.add_edges_from(zip(dependencies.member.tolist(), task.tolist(), strict=True))
    for lane in range(len(graph.lanes)):
        waits.add_edges_from(pairwise(graph.lane_tasks.of(lane).tolist()))
    return waits


@dataclass(frozen=True, eq=False)
class Clocks:
    """Which tasks have ended before another one starts.

    A lane is a chain, so the tasks of a lane that happen before a task are the
    first few of it: `reached[task, lane]` says how many (a vector clock, after
    Fidge and Mattern). `place` is each task's place on its own lane, `turn` its
    place in one order in which all tasks could run one by one.
    """

    lane: Integers
    place: Integers
    turn: Integers
    reached: Integers

    def __call__(self, first: Any, second: Any) -> Any:
        """True if the first task has ended when the second one starts, in every execution."""
        return self.reached[second, self.lane[first]] > self.place[first]

    def before(self, tasks: Integers, second: int) -> Flags:
        """Which of these tasks have ended when that one starts."""
        ended: Flags = self.reached[second, self.lane[tasks]] > self.place[tasks]
        return ended

    def after(self, first: int, tasks: Integers) -> Flags:
        """Which of these tasks start only when that one has ended."""
        waiting: Flags = self.reached[tasks, self.lane[first]] > self.place[first]
        return waiting


def clocks(graph: TaskGraph) -> Clocks:
    """The order of a graph that does not deadlock, in time and space tasks x lanes.

    Raises `networkx.NetworkXUnfeasible` if some tasks wait for each other.
    """
    waits = network(graph)
    place = _places(graph)
    turn = np.empty(len(graph), dtype=np.int32)
    reached = np.zeros((len(graph), len(graph.lanes)), dtype=np.int32)
    own = list(zip(graph.lane.tolist(), (place + 1).tolist(), strict=True))
    for now, task in enumerate(nx.topological_sort(waits)):
        turn[task] = now
        row = reached[task]
        for previous in waits.predecessors(task):
            np.maximum(row, reached[previous], out=row)
            lane, count = own[previous]
            row[lane] = max(row[lane], count)
    return Clocks(graph.lane, place, turn, reached)


def _places(graph: TaskGraph) -> Integers:
    """For each task, its place on its own lane."""
    place = np.empty(len(graph), dtype=np.int32)
    for lane in range(len(graph.lanes)):
        tasks = graph.lane_tasks.of(lane)
        mine = graph.lane[tasks] == lane
        place[tasks[mine]] = np.flatnonzero(mine)
    return place


def precedence(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """Each step comes after those that make what it needs, and those that use what it ends."""
    seen = set()
    for first_operations, second_operation, shift in _precedence():
        seconds = by_cell(graph, (second_operation,))
        for (unit, microbatch), firsts in by_cell(graph, first_operations).items():
            for second in seconds.get((unit + shift, microbatch), []):
                for first in firsts:
                    if (first, second) not in seen and not order(first, second):
                        seen.add((first, second))
                        yield too_early(graph, second, first)


def delivery(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """Require that a transfer's data is made before it, and used after it."""
    for operation, (datum, shift) in _payloads().items():
        made, used = by_cell(graph, writers(datum)), by_cell(graph, readers(datum))
        for (unit, microbatch), found in by_cell(graph, (operation,)).items():
            makers = made.get((unit, microbatch), [])
            users = used.get((unit + shift, microbatch), [])
            pairs = [(maker, transfer) for transfer in found for maker in makers]
            pairs += [(transfer, user) for transfer in found for user in users]
            for first, second in pairs:
                if not order(first, second):
                    yield too_early(graph, second, first)


def replicas(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """A unit's gradients are all-reduced across groups once, after all its reductions."""
    due = int(graph.communication.hybrid and graph.trains)
    reduced = having(graph, (Operation.REDUCE,)).tolist()
    across = having(graph, (Operation.ALL_REDUCE,)).tolist()
    for unit in range(graph.layout.units):
        own = [task for task in across if graph.unit[task] == unit]
        if len(own) != due:
            name = graph.layout.name_of(unit)
            yield f"{name} has {len(own)} tasks all-reduce, not {due}", tuple(own)
    for late in across:
        for early in reduced:
            if graph.unit[early] == graph.unit[late] and not order(early, late):
                yield too_early(graph, late, early)


def tied(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """The gradients of tied parameters are added up once, after all reductions of both units."""
    ends = {0, graph.layout.units - 1}
    due = int(graph.communication.tied_embeddings and graph.trains and len(ends) > 1)
    sums = having(graph, (Operation.TIED_ALL_REDUCE,)).tolist()
    if len(sums) != due:
        yield f"there are {len(sums)} tasks tied all-reduce, not {due}", tuple(sums)
    made = having(graph, (Operation.REDUCE, Operation.ALL_REDUCE)).tolist()
    for late in sums:
        for early in made:
            if graph.unit[early] in ends and not order(early, late):
                yield too_early(graph, late, early)


def _fill() -> tuple[Operation, ...]:
    """Tasks that put a unit's weights into a buffer."""
    return of_scope(Scope.UNIT, writers(WEIGHTS))


def _empty() -> tuple[Operation, ...]:
    """Tasks that take a unit's gradients out of a buffer."""
    return of_scope(Scope.UNIT, enders(GRADIENTS))


def weights(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """Each step finds its unit's weights in its buffer, and nobody overwrites them."""
    for step, gather, racing in _served(graph, order):
        buffer = f"weight buffer {graph.weight_buffer[step]}"
        if gather == NONE:
            yield f"{graph.task(step)} finds nothing in {buffer}", (step,)
        elif graph.unit[gather] != graph.unit[step]:
            message = f"{graph.task(step)} finds in {buffer} what {graph.task(gather)} put there"
            yield message, (step, gather)
        for other in racing:
            message = f"{graph.task(other)} may overwrite {buffer} under {graph.task(step)}"
            yield message, (other, step)


def gradients(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """Require that gradients in a buffer are reduced once, and not while a step adds."""
    for step, reduction, racing in _covered(graph, order):
        buffer = f"gradient buffer {graph.gradient_buffer[step]}"
        if reduction == NONE:
            yield f"{graph.task(step)} adds to {buffer} what nothing reduces", (step,)
        elif graph.unit[reduction] != graph.unit[step]:
            message = f"{graph.task(step)} adds to {buffer} what {graph.task(reduction)} takes"
            yield message, (step, reduction)
        for other in racing:
            message = f"{graph.task(other)} may empty {buffer} under {graph.task(step)}"
            yield message, (other, step)


def gathers(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """One gather for each unit (partial sharding) or each run (full), else none."""
    served = {step: gather for step, gather, _ in _served(graph, order)}
    yield from _one_each(graph, _fill(), served, per_run=graph.communication.gathers_runs)


def reductions(graph: TaskGraph, order: Clocks) -> Iterator[Finding]:
    """One reduction for each unit, or (full sharding) for each backward run."""
    covered = {step: reduction for step, reduction, _ in _covered(graph, order)}
    yield from _one_each(graph, _empty(), covered, per_run=graph.communication.reduces_runs)


Use = tuple[int, int, list[int]]
"""A step, the gather or reduction of what it uses (or -1), and those that may race with it."""


def _served(graph: TaskGraph, order: Clocks) -> Iterator[Use]:
    """Each step that needs gathered weights, with its gather."""
    if not any(operation.row.happens(graph.communication) for operation in _fill()):
        return
    into = _by_buffer(graph, _fill(), graph.weight_buffer)
    for step in having(graph, of_scope(Scope.CELL, readers(WEIGHTS))).tolist():
        found = into[int(graph.rank[step]), int(graph.weight_buffer[step])]
        before = order.before(found, step)
        racing = found[~before & ~order.after(step, found)].tolist()
        earlier = found[before]
        last = int(earlier[np.argmax(order.turn[earlier])]) if len(earlier) else NONE
        unordered = earlier[(earlier != last) & ~order.before(earlier, last)]
        yield step, last, racing + unordered.tolist()


def _covered(graph: TaskGraph, order: Clocks) -> Iterator[Use]:
    """Each step that adds gradients, with its reduction.

    An input half adds none, unless it names a gradient buffer nevertheless.
    """
    out_of = _by_buffer(graph, _empty(), graph.gradient_buffer)
    adds = of_scope(Scope.CELL, writers(GRADIENTS))
    for step in having(graph, {*adds, *writers(INPUT_GRADIENT)}).tolist():
        buffer = int(graph.gradient_buffer[step])
        if buffer == NONE and int(graph.operation[step]) not in adds:
            continue
        found = out_of[int(graph.rank[step]), buffer]
        after = order.after(step, found)
        racing = found[~after & ~order.before(found, step)].tolist()
        later = found[after]
        first = int(later[np.argmin(order.turn[later])]) if len(later) else NONE
        unordered = later[(later != first) & ~order.after(first, later)]
        yield step, first, racing + unordered.tolist()


def _by_buffer(
    graph: TaskGraph, operations: Collection[Operation], buffer: Integers
) -> defaultdict[tuple[int, int], Integers]:
    """The tasks of some operations, by the rank and the buffer that they use.

    What is done for both copies of a unit uses a buffer of that number at each.
    """
    lists: dict[tuple[int, int], list[int]] = {}
    for task in having(graph, operations).tolist():
        for rank in {int(graph.rank[task]), int(graph.peer[task])} - {NONE}:
            lists.setdefault((rank, int(buffer[task])), []).append(task)
    arrays = {key: np.array(tasks, dtype=np.int32) for key, tasks in lists.items()}
    return defaultdict(lambda: np.empty(0, dtype=np.int32), arrays)


def _own_of_each_unit(graph: TaskGraph) -> dict[int, str]:
    """For each compute step, its unit in words."""
    return {
        step: graph.layout.name_of(int(graph.unit[step]))
        for step in having(graph, compute_steps()).tolist()
    }


def _runs(graph: TaskGraph) -> dict[int, str]:
    """For each compute step, its run in words.

    A run is a stretch of one unit among a rank's forward steps, or among its
    backward steps, or so many of these as a run may have.
    """
    runs: dict[int, str] = {}
    latest: dict[tuple[int, str], tuple[int, int]] = {}
    steps: Counter[int] = Counter()
    longest = graph.communication.run_length or len(graph)
    for step in having(graph, compute_steps()).tolist():
        which = "forward" if graph.operation[step] == Operation.FORWARD else "backward"
        sequence, unit = (int(graph.rank[step]), which), int(graph.unit[step])
        before = latest.get(sequence, (NONE, NONE))
        if before[0] != unit or steps[before[1]] == longest:
            latest[sequence] = unit, step
        steps[latest[sequence][1]] += 1
        runs[step] = (
            f"the {which} run of {graph.layout.name_of(unit)} that begins at #{latest[sequence][1]}"
        )
    return runs


def _one_each(
    graph: TaskGraph, operations: Collection[Operation], used: dict[int, int], *, per_run: bool
) -> Iterator[Finding]:
    """Every use has one task of these operations, and every such task one use at each copy."""
    use_of = _runs(graph) if per_run else _own_of_each_unit(graph)
    uses: dict[int, dict[int, set[str]]] = {task: {} for task in having(graph, operations).tolist()}
    tasks: dict[str, set[int]] = {}
    for step, task in used.items():
        if task != NONE:
            uses[task].setdefault(int(graph.rank[step]), set()).add(use_of[step])
            tasks.setdefault(use_of[step], set()).add(task)
    for task, by_copy in uses.items():
        if not by_copy:
            yield f"{graph.task(task)} is of no use", (task,)
        for sharing in by_copy.values():
            if len(sharing) > 1:
                yield f"{graph.task(task)} is shared by {' and '.join(sorted(sharing))}", (task,)
    for use, several in tasks.items():
        if len(several) > 1:
            names = " and ".join(str(graph.task(task)) for task in sorted(several))
            yield f"{use} uses {len(several)} tasks, not one: {names}", tuple(sorted(several))


RULES: dict[str, Any] = {
    "precedence": precedence,
    "delivery": delivery,
    "replicas": replicas,
    "tied": tied,
    "weights": weights,
    "gathers": gathers,
    "gradients": gradients,
    "reductions": reductions,
    "optimizer": optimizer,
}


def plain_violations(graph: TaskGraph) -> list[Violation]:
    """Violations of rules on the order of tasks, in a graph that does not deadlock."""
    order = clocks(graph)
    return [
        Violation(name, *finding) for name, rule in RULES.items() for finding in rule(graph, order)
    ]
