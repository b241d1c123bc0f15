"""Dispatch and combine as pieces of passes: the place and length of each all-to-all.

An experiment's graph has one task a pass, whose seconds have all that is inside. `with_exchanges`
gives the same graph with templates, by which `expanded` shows each all-to-all of a layer's experts
as a task on a stream of its own. Only those that the pass waits for are pieces: where all-to-alls
overlap the shared experts or another micro-batch, the pass cannot be split at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from bfpp.schedules import InvalidConfiguration, Layout, TaskGraph
from bfpp.schedules.graph.templates import Piece, Template
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.operations.row import Group
from bfpp.sim.costs.model_on_cluster import ModelOnCluster
from bfpp.sim.costs.units.seconds import device_seconds, part_counts
from bfpp.sim.engines.caching import once_for_stages
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.operators import Work

FIELD = "pieces"


class PassSegment(NamedTuple):
    """Seconds of kernels, or an exchange in place of them."""

    seconds: float
    exchange: Operation | None = None


def with_exchanges(graph: TaskGraph, physical: ModelOnCluster) -> TaskGraph:
    """The graph with the all-to-alls of its passes as pieces."""
    routing = physical.execution.routing
    if physical.degrees.ep == 1:
        raise InvalidConfiguration(FIELD, "needs expert parallelism (--ep)")
    if routing.beside_shared or routing.interleaved:
        overlapping = "--shared-overlap" if routing.beside_shared else "--microbatch-overlap"
        reason = f"with {overlapping} all-to-alls overlap the pass, so it cannot be split at them"
        raise InvalidConfiguration(FIELD, reason)
    present = {operation for operation, _ in graph.by_operation()}
    return graph.with_templates(
        {
            (operation, unit): template
            for operation in PASSES.keys() & present
            for unit, template in _templates(physical, graph.layout, operation).items()
        }
    )


Passed = list[tuple[Work, bool]]
"""Work of a pass, and whether it is the backward pass's own."""


def _forward(part: Checkpointed) -> Passed:
    return [(each.forward, False) for each in part.operators]


def _backward(part: Checkpointed) -> Passed:
    again = [(each.forward, False) for each in part.recomputed]
    return [*again, *((each.backward_input, True) for each in reversed(part.operators))]


def _weights(part: Checkpointed) -> Passed:
    return [(each.backward_weight, True) for each in part.operators]


PASSES: dict[Operation, Callable[[Checkpointed], Passed]] = {
    Operation.FORWARD: _forward,
    Operation.BACKWARD: lambda part: [*_backward(part), *_weights(part)],
    Operation.BACKWARD_INPUT: _backward,
}
"""Work of the passes that may exchange rows."""


@once_for_stages
def _templates(
    physical: ModelOnCluster, layout: Layout, operation: Operation
) -> Mapping[int, Template]:
    """Templates of the units whose passes exchange rows."""
    counted = part_counts(physical, physical.layers(layout))
    of_units = list(zip(*(counts.astype(int).tolist() for _, counts in counted), strict=True))

    @cache
    def priced(work: Work, backward: bool) -> float:
        return device_seconds(physical, work, backward=backward)

    steps = [list(_steps(PASSES[operation](part), priced)) for part, _ in counted]
    alike = {counts: _template(operation, steps, counts) for counts in set(of_units)}
    return {
        unit: alike[counts]
        for unit, counts in enumerate(of_units)
        if any(not piece.share for piece in alike[counts])
    }


def _steps(works: Passed, priced: Callable[[Work, bool], float]) -> Iterator[PassSegment]:
    """The first of two exchanges takes rows to experts, and the second back."""
    kinds = (Operation.EXPERT_DISPATCH, Operation.EXPERT_COMBINE)
    seen = 0
    for work, backward in works:
        others = tuple(each for each in work.collectives if each.group is not Group.EP)
        for _ in range(len(work.collectives) - len(others)):
            yield PassSegment(0.0, kinds[seen % 2])
            seen += 1
        yield PassSegment(priced(work._replace(collectives=others), backward))


def _template(
    operation: Operation, of_parts: Sequence[Sequence[PassSegment]], counts: Sequence[int]
) -> Template:
    """The steps of each part, `counts` times, as pieces: consecutive compute is one piece."""
    steps = [step for each, count in zip(of_parts, counts, strict=True) for step in [*each] * count]
    total = sum(step.seconds for step in steps)
    pieces: list[Piece] = []
    for exchange, row in groupby(steps, attrgetter("exchange")):
        if exchange is not None:
            pieces += (Piece(exchange) for _ in row)
        elif computed := sum(step.seconds for step in row):
            pieces.append(Piece(operation, computed / total))
    return tuple(pieces)
