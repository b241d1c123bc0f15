"""Bounds of configurations: the most throughput, and the least memory.

No schedule passes these bounds. The cheap ones are columns over a whole space, since they depend on
a setting and on stages alone, which many configurations share:

- the throughput of a step in which the busiest rank never waits, or that of the power limit;
- the memory of the fullest rank with one micro-batch under way.

Closer ones need the order of a pipeline, and then its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from bfpp.core.orders import Steps, time_orders
from bfpp.schedules import Communication, Configuration, Layout, Operation, Schedule, Sharding
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.families.registry import is_built_in
from bfpp.schedules.lowering import count_exchanges
from bfpp.sim.costs.physical import ROUNDING, PhysicalCosts
from bfpp.sim.costs.physical_step import data_parallel_seconds
from bfpp.sim.costs.units.seconds import UnitSeconds
from bfpp.sim.engines.caching import once_for_stages
from bfpp.sim.memory.device_memory import least_memory, one_buffer
from bfpp.sim.memory.peak_memory import Memories, fullest_of
from bfpp.sim.search.evaluation import Evaluation, evaluation_of
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.space import Numbered, Places, Space, one_number, ranks_of


class Bounds(NamedTuple):
    """Columns over configurations: most samples a second, and least memory, in GiB."""

    throughput: Seconds
    memory_gb: Seconds
    reserved_gb: Seconds

    def take(self, places: slice | Places) -> Bounds:
        """Those of some configurations."""
        return Bounds(*(column[places] for column in self))

    @classmethod
    def joined(cls, parts: Iterable[Bounds]) -> Bounds:
        """Those of several spaces, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class SharedBounds(NamedTuple):
    """Bounds of configurations, most of which share theirs: rows, and each one's place there."""

    rows: Bounds
    places: Integers

    @property
    def columns(self) -> Bounds:
        """Those of each configuration."""
        return self.rows.take(self.places)

    def take(self, places: slice | Places) -> SharedBounds:
        """Those of some configurations, without rows that none of them has."""
        used, numbers = np.unique(self.places[places], return_inverse=True)
        return SharedBounds(self.rows.take(used), numbers.astype(np.int32))


class Distinct(NamedTuple):
    """Configurations with all bounds that a space has, and each one's place among them."""

    space: Space
    places: Integers


def distinct(space: Space) -> Distinct:
    """Some configurations whose bounds are those of all; settings of equal passes stand together.

    Their passes are priced once.
    """
    tables = space.tables
    of_pipeline = Numbered[tuple[object, bool]]().numbers(
        (layout.stages_on_ranks, _may_have_blocks(each.schedule))
        for layout, each in zip(tables.layouts, tables.pipelines, strict=True)
    )
    of_communication = Numbered[tuple[Sharding, bool]]().numbers(
        (each.sharding, each.offload > 0) for each in tables.communications
    )
    of_setting = ranks_of([setting.of_passes for setting in tables.settings])
    columns = (
        of_setting[space.setting],
        of_pipeline[space.pipeline],
        of_communication[space.communication],
    )
    rows = [int(column.max(initial=0)) + 1 for column in columns]
    _, first, places = np.unique(one_number(columns, rows), return_index=True, return_inverse=True)
    return Distinct(space.take(first), places.astype(np.int32))


def bounds_of(known: Evaluation, space: Space) -> Bounds:
    """Bounds of all configurations, whatever the order of their passes."""
    some, places = distinct(space)
    return bounds_one_by_one(known, some).take(places)


def bounds_in_piece(problem: Problem, space: Space) -> Bounds:
    """Bounds of configurations that share none, as a piece of work."""
    return bounds_one_by_one(evaluation_of(problem), space)


def bounds_one_by_one(known: Evaluation, space: Space) -> Bounds:
    """Bounds of configurations that share none."""
    tables = space.tables
    blocks = [_may_have_blocks(each.schedule) for each in tables.pipelines]
    communications = map(tables.communications.__getitem__, space.communication.tolist())
    rows = [
        _bound(known.physical(setting), layout, blocks[pipeline], each.sharding, each.offload > 0)
        for setting, layout, pipeline, each in zip(
            space.settings, space.layouts, space.pipeline.tolist(), communications, strict=True
        )
    ]
    throughput, *parts = np.array(rows).reshape(-1, 1 + len(Memories._fields)).T
    least = Memories(*parts)
    return Bounds(throughput, least.total_gb, least.reserved_gb)


def _may_have_blocks(schedule: Schedule) -> bool:
    """True if a forward and a backward pass may be one block, as in any schedule of a user's."""
    return not is_built_in(schedule) or getattr(schedule, "fused_blocks", False)


def _bound(
    physical: PhysicalCosts, layout: Layout, in_blocks: bool, sharding: Sharding, offloads: bool
) -> tuple[float, ...]:
    """Most samples a second, and the parts of the least memory."""
    throughput = _most_throughput(physical, layout, in_blocks)
    return throughput, *least_memory(physical, layout, sharding, offloads)


@once_for_stages
def _most_throughput(physical: PhysicalCosts, layout: Layout, in_blocks: bool) -> float:
    """Samples a second in which the busiest rank never waits, of any number of micro-batches."""
    return physical.batch(layout) / physical.shortest_step(layout, in_blocks=in_blocks)


Closer = Callable[[Sequence[PhysicalCosts], Bounds], Bounds]
"""Closer bounds by each of some cost models, from those that were known of them."""


def closer_bounds(
    known: Evaluation, step: Configuration, *, in_time: bool = True
) -> Iterator[Closer]:
    """Bounds of a step by cost models, each closer and slower than the last.

    Memory in the step's order, which is what it needs unless all is sharded. If asked for those
    `in_time`, throughput in that order, where it is known for all micro-batches, and with as many
    gathers and reductions as it makes, where all is sharded. Then memory in the step's graph, where
    that decides.
    """
    layout, communication = step.layout, step.communication
    sharded = communication.sharding is Sharding.FULL
    if not sharded:
        yield _by_memory(partial(known.memories, step))
    elif not communication.offload:
        ordered, buffers = known.of_memory(step), one_buffer(layout, Sharding.FULL)
        yield _by_memory(partial(known.memories_in_buffers, ordered, buffers=buffers))
    if in_time and known.of_memory(step) is step:
        steps = known.steps(step.schedule, layout)
        if (steps.block == NONE).all():  # in blocks, two passes may take less than one by one
            yield _in_order(steps, layout, communication.sharding)
            if sharded and not layout.copies:
                yield _in_lanes(steps, layout, communication)
    if sharded:
        yield _by_memory(partial(known.memories, step))


def _by_memory(memories: Callable[[Sequence[PhysicalCosts]], Sequence[Memories]]) -> Closer:
    """Bounds by the memory of the fullest rank."""

    def closer(physicals: Sequence[PhysicalCosts], before: Bounds) -> Bounds:
        needed = fullest_of(memories(physicals))
        return before._replace(memory_gb=needed.total_gb, reserved_gb=needed.reserved_gb)

    return closer


def _by_time(layout: Layout, least: Callable[[Sequence[PhysicalCosts]], Seconds]) -> Closer:
    """Bounds by the seconds that a step takes at least."""

    def closer(physicals: Sequence[PhysicalCosts], before: Bounds) -> Bounds:
        samples = np.array([physical.batch(layout) for physical in physicals])
        most = samples / ((1 - ROUNDING) * least(physicals))
        return before._replace(throughput=np.minimum(before.throughput, most))

    return closer


def _in_order(steps: Steps, layout: Layout, sharding: Sharding) -> Closer:
    """Bounds if communication between ranks took no time, and clocks were full."""

    def ends(physicals: Sequence[PhysicalCosts]) -> Seconds:
        seconds = np.array(
            [
                physical.waiting_factor(layout, sharding)
                * _of_passes(physical.unit_seconds(layout))
                for physical in physicals
            ]
        )
        return time_orders(steps, layout.pp, seconds / layout.slices)

    return _by_time(layout, ends)


def _in_lanes(steps: Steps, layout: Layout, communication: Communication) -> Closer:
    """Bounds by the longest lane: a rank's gathers and reductions, or passes, which these slow.

    Without overlap they take the passes' lane.
    """
    gathers, reductions = count_exchanges(steps, layout, communication)

    def longest(physical: PhysicalCosts) -> float:
        gather, reduction = data_parallel_seconds(physical, layout, communication.sharding)
        data = layout.sums(gathers * gather + reductions * reduction)
        units = physical.unit_seconds(layout)
        passes = layout.sums(units.forward + units.backward_input + units.backward_weight)
        passes *= layout.whole_microbatches * physical.waiting_factor(
            layout, communication.sharding
        )
        share = physical.implementation.collective_slowdown if communication.dp_overlap else 1.0
        return max(float(data.max()), float((passes + share * data).max()))

    return _by_time(layout, lambda physicals: np.array([*map(longest, physicals)]))


def _of_passes(units: UnitSeconds) -> Seconds:
    """Seconds of units' passes: a row for each operation of a pass, by its code."""
    return np.array([units.summed(*PARTS_OF_PASS[code]) for code in sorted(PARTS_OF_PASS)])


PARTS_OF_PASS = {
    Operation.FORWARD: ("forward",),
    Operation.BACKWARD: ("backward_input", "backward_weight"),
    Operation.BACKWARD_INPUT: ("backward_input",),
    Operation.BACKWARD_WEIGHT: ("backward_weight",),
}
"""The parts of passes that orders are made of."""
