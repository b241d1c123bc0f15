"""The activations that a task graph offloads to the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bfpp.executor.devices.messages import Cell
from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers


@dataclass(frozen=True)
class Offloads:
    """The offloaded cells, and the passes at which each one's memory is freed and taken again."""

    cells: frozenset[Cell]
    leaves: Mapping[int, list[Cell]]
    returns: Mapping[int, list[Cell]]

    @staticmethod
    def of(graph: TaskGraph) -> Offloads:
        """The offloads of a graph."""
        offload, _, leaves, returns = graph.absences
        of_tasks = graph.unit[offload].tolist(), graph.microbatch[offload].tolist()
        cells = [*map(Cell, *of_tasks)]
        return Offloads(frozenset(cells), _by_pass(cells, leaves), _by_pass(cells, returns))


def _by_pass(cells: Iterable[Cell], passes: Integers) -> dict[int, list[Cell]]:
    grouped: dict[int, list[Cell]] = {}
    for cell, number in zip(cells, passes.tolist(), strict=True):
        if number != NONE:
            grouped.setdefault(number, []).append(cell)
    return grouped
