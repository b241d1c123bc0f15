"""Checker of task graphs: the rules of a valid training step, whoever made the graph.

Theory of operation. Nothing here knows how graphs are lowered. Each rule is a small function that
yields what breaks it, and the tables name the rules, in layers:

- `columns` asks whether the columns point to anything, and alone if they do not;
- `STRUCTURE` looks at tasks one by one;
- `deadlock` replays the lanes;
- `ORDER` and `BUFFERS` ask what happens before what in every execution that the graph
  allows, and so are asked only of graphs that do not deadlock.

A graph that breaks one of these is wrong: it may hang, race, lose or double what it adds up,
or read what is not there. `PRESCRIBED` is of another kind: how often weights are gathered and
gradients reduced at each level of sharding, as the paper says. A graph that does so more or
less often computes the same, so findings there are remarks, and hide nothing wrong.

Rejected: to compare a graph with the one that the lowering makes of its orders. A fault of the
lowering would be the standard then, and graphs that others made otherwise, and are right, would
fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.validity import buffers, compute, structure, transfers
from bfpp.schedules.validity.blocks import blocks
from bfpp.schedules.validity.buffers import BufferUse
from bfpp.schedules.validity.findings import Finding
from bfpp.schedules.validity.happens_before import HappensBefore, replay
from bfpp.schedules.validity.offloads import offloads
from bfpp.schedules.validity.replicas import replicas
from bfpp.schedules.validity.slices import slices
from bfpp.schedules.validity.tied import tied

__all__ = [
    "BUFFERS",
    "ORDER",
    "PRESCRIBED",
    "STRUCTURE",
    "Kind",
    "Violation",
    "require_valid",
    "violations",
]


class Kind(StrEnum):
    """Severity: a wrong result, or a right one at another cost than the sharding prescribes."""

    WRONG = "wrong"
    REMARK = "remark"


@dataclass(frozen=True)
class Violation:
    """A rule that a graph breaks: its short name, a sentence, and the tasks it names.

    >>> import bfpp
    >>> from dataclasses import replace
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(1, 1))
    >>> [broken] = bfpp.violations(replace(graph, unit=graph.unit + 1))[:1]
    >>> broken.rule, broken.tasks
    ('columns', (0,))
    """

    rule: str
    message: str
    tasks: tuple[int, ...]

    @property
    def kind(self) -> Kind:
        """Severity of the broken rule."""
        return Kind.REMARK if self.rule in PRESCRIBED else Kind.WRONG


STRUCTURE: dict[str, Callable[[TaskGraph], Iterator[Finding]]] = {
    "numbering": structure.numbering,
    "lanes": structure.lanes,
    "placement": structure.placement,
    "passes": compute.passes,
    "blocks": blocks,
    "offloads": offloads,
    "transfers": transfers.transfers,
    "channels": transfers.channels,
    "posts": transfers.posts,
}

ORDER: dict[str, Callable[[TaskGraph, HappensBefore], Iterator[Finding]]] = {
    "precedence": compute.precedence,
    "slices": slices,
    "delivery": transfers.delivery,
    "replicas": replicas,
    "tied": tied,
    "optimizer": compute.optimizer,
}

BUFFERS: dict[str, Callable[[BufferUse], Iterator[Finding]]] = {
    "weights": buffers.weights,
    "gradients": buffers.gradients,
}

PRESCRIBED: dict[str, Callable[[BufferUse], Iterator[Finding]]] = {
    "gathers": buffers.gathers,
    "reductions": buffers.reductions,
}


def violations(graph: TaskGraph) -> list[Violation]:
    """All rules that the graph breaks; none of kind `WRONG` if it is a valid training step.

    >>> import bfpp
    >>> bfpp.violations(bfpp.Experiment("zb-v", pp=4, microbatches=8).graph())
    []
    """
    return [Violation(rule, *finding) for rule, finding in _findings(graph)]


def require_valid(graph: TaskGraph) -> TaskGraph:
    """The graph, checked unless it has been; raises `InvalidConfiguration` if it is wrong.

    What the lowering makes of the built-in schedules and operations needs no check: tests do it.
    """
    if graph.is_checked:
        return graph
    wrong = [each for each in violations(graph) if each.kind is Kind.WRONG]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        reason = f"{graph.schedule}: {wrong[0].rule}: {wrong[0].message}{more}"
        raise InvalidConfiguration("schedule", reason)
    return graph.checked()


def _findings(graph: TaskGraph) -> Iterator[tuple[str, Finding]]:
    if broken := [*structure.columns(graph), *structure.whole_passes(graph)]:
        yield from (("columns", finding) for finding in broken)
        return
    for name, rule in STRUCTURE.items():
        yield from ((name, finding) for finding in rule(graph))
    turn = replay(graph)
    if stuck := list(structure.deadlock(graph, turn)):
        yield from (("deadlock", finding) for finding in stuck)
        return
    order = HappensBefore(graph, turn)
    for name, ordered in ORDER.items():
        yield from ((name, finding) for finding in ordered(graph, order))
    uses = BufferUse(graph, order)
    for name, buffered in (BUFFERS | PRESCRIBED).items():
        yield from ((name, finding) for finding in buffered(uses))
