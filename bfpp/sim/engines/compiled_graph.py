"""Kinds and dependencies of a graph's tasks, by compiled loops once that pays.

As the properties of `TaskGraph` have it, which say what each is.
"""

from __future__ import annotations

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Groups
from bfpp.schedules.graph.task_kinds import kinds_of, operation_flags
from bfpp.sim.engines.loops import graph_kernels
from bfpp.sim.engines.loops.compiling import WORK, compiled


def work_out_followers(graph: TaskGraph) -> None:
    """Give a graph what replaying it asks for."""
    known = vars(graph)
    if "followers" in known or not WORK.pays:
        return
    lanes = graph.lane, graph.peer_lane, len(graph.lanes)
    known["followers"] = Groups(*compiled(graph_kernels).followers(*lanes, *graph.dependencies))


def work_out_kinds(graph: TaskGraph) -> None:
    """Give a graph what pricing it asks for."""
    known = vars(graph)
    if "kinds" in known or not WORK.pays:
        return
    loops, layout, operation = compiled(graph_kernels), graph.layout, graph.operation
    flags = operation_flags()
    codes, first, of_task = loops.kinds(
        operation, graph.unit, graph.rank, graph.peer, flags.place,
        layout.units, layout.pp,
    )  # fmt: skip
    known["kinds"] = kinds_of(codes, operation[first], first, of_task)
    known["is_compute"], known["is_pass"], known["trains"] = loops.flags(
        operation, graph.piece, flags.is_compute, flags.is_backward
    )
