"""Bounds of configurations: the most throughput, and the least memory.

No schedule passes these bounds. The cheap ones are columns over a whole space, since they depend on
a setting and on stages alone, which many configurations share:

- the throughput of a step in which the busiest rank never waits, or that of the power limit;
- the memory of the fullest rank with one micro-batch under way.

Closer ones of the memory need the order of a pipeline, and then its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Configuration, Layout, Sharding
from bfpp.schedules.columns import Seconds
from bfpp.sim.caching import latest
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.memory.device_memory import least_memory, memories_in_order, one_buffer
from bfpp.sim.memory.peak_memory import Memories
from bfpp.sim.search.evaluation import Evaluation
from bfpp.sim.search.space import Numbered, Space


class Bounds(NamedTuple):
    """Columns over configurations: most samples a second, and least memory, in GiB."""

    throughput: Seconds
    memory_gb: Seconds
    reserved_gb: Seconds


@latest
def bounds_of(known: Evaluation, space: Space) -> Bounds:
    """Bounds of all configurations, whatever the order of their passes.

    The last ones are kept: a search asks whether anything can fit, and then where to begin.
    """
    tables = space.tables
    of_pipeline = Numbered[str]().numbers(each.stages_on_ranks for each in tables.layouts)
    kinds = Numbered[tuple[Sharding, bool]]()
    of_communication = kinds.numbers(
        (each.sharding, each.offload > 0) for each in tables.communications
    )
    columns = space.setting, of_pipeline[space.pipeline], of_communication[space.communication]
    asked, place, again = np.unique(
        np.stack(columns), axis=1, return_index=True, return_inverse=True
    )
    some = space.take(place)
    rows = [
        _bound(known.physical(setting), layout, *kinds.rows[kind])
        for setting, layout, kind in zip(
            some.settings, some.layouts, asked[2].tolist(), strict=True
        )
    ]
    throughput, *parts = np.array(rows).reshape(-1, 1 + len(Memories._fields)).T
    least = Memories(*parts)
    every = throughput, least.total_gb, least.reserved_gb
    return Bounds(*(column[again.ravel()] for column in every))


def _bound(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, offloads: bool
) -> tuple[float, ...]:
    """Most samples a second, and the parts of the least memory."""
    throughput = physical.batch(layout) / physical.shortest_step(layout)
    return throughput, *least_memory(physical, layout, sharding, offloads)


def closer_memories(
    known: Evaluation, step: Configuration
) -> Iterator[Callable[[PhysicalCosts], Memories]]:
    """Bounds of each rank's memory by a cost model, each closer and slower than the last.

    In the step's order, and then in its graph, where that decides: this is what it needs.
    """
    layout, communication = step.layout, step.communication
    if communication.sharding is Sharding.FULL and not communication.offload:
        ordered, buffers = known.of_memory(step), one_buffer(layout, Sharding.FULL)
        yield lambda physical: memories_in_order(
            physical, layout, Sharding.FULL, known.passing(ordered, physical), buffers
        )
    yield lambda physical: known.memories(step, physical)
