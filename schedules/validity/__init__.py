"""Whether a task graph is a right training step, whoever made it and however.

Nothing here knows how graphs are lowered. Each rule is a small function that
yields what breaks it, and the tables name the rules, in layers:

- `columns` asks whether the columns point to anything, and alone if they do not;
- `STRUCTURE` looks at tasks one by one;
- `deadlock` replays the lanes;
- `ORDER` asks what happens before what in every execution that the graph
  allows, and so is asked only of graphs that do not deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.validity import buffers, compute, structure, transfers
from bfpp.schedules.validity.blocks import blocks
from bfpp.schedules.validity.findings import Finding
from bfpp.schedules.validity.happens_before import HappensBefore, happens_before
from bfpp.schedules.validity.slices import slices

__all__ = ["ORDER", "STRUCTURE", "Violation", "violations"]


@dataclass(frozen=True)
class Violation:
    """A rule that a graph breaks: its short name, a sentence, and the tasks it names."""

    rule: str
    message: str
    tasks: tuple[int, ...]


STRUCTURE: dict[str, Callable[[TaskGraph], Iterator[Finding]]] = {
    "numbering": structure.numbering,
    "lanes": structure.lanes,
    "placement": structure.placement,
    "passes": compute.passes,
    "blocks": blocks,
    "transfers": transfers.transfers,
    "channels": transfers.channels,
}

ORDER: dict[str, Callable[[TaskGraph, HappensBefore], Iterator[Finding]]] = {
    "precedence": compute.precedence,
    "slices": slices,
    "delivery": transfers.delivery,
    "weights": buffers.weights,
    "gathers": buffers.gathers,
    "gradients": buffers.gradients,
    "reductions": buffers.reductions,
    "optimizer": compute.optimizer,
}


def violations(graph: TaskGraph) -> list[Violation]:
    """All that is wrong with the graph; empty if it is a valid training step."""
    broken = [Violation("columns", *finding) for finding in structure.columns(graph)]
    if broken:
        return broken
    for name, rule in STRUCTURE.items():
        broken += [Violation(name, *finding) for finding in rule(graph)]
    stuck = [Violation("deadlock", *finding) for finding in structure.deadlock(graph)]
    if stuck:
        return broken + stuck
    order = happens_before(graph)
    for name, ordered in ORDER.items():
        broken += [Violation(name, *finding) for finding in ordered(graph, order)]
    return broken
