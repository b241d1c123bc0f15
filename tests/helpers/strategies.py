"""Hypothesis strategies for what the project's properties range over.

- `configurations()`: a schedule's name, a layout that it can run on, and what
  is communicated, over every registered schedule.
- `graphs()`: the task graph of one.
- `orders()`: compute orders that no schedule would think of, halves of backward
  passes, fused blocks and copies of stages among them, all of which can run.
- `order_graphs()`: their task graphs.

All stay small: a few hundred tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Order,
    Per,
    Schedule,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
    registered_schedules,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.lowering.operation_tables import PAIR
from bfpp.schedules.orders.steps import (
    STEP,
    Step,
    backward,
    backward_input,
    backward_weight,
    forward,
)
from bfpp.schedules.orders.validity import order_violations

FRESH = 1000
"""Examples of each comparison of two implementations where new ones are drawn."""

CELLS = 48
"""About how many (stage, micro-batch) pairs a drawn layout has at most."""


class Configuration(NamedTuple):
    schedule: Schedule
    layout: Layout
    communication: Communication

    def graph(self) -> TaskGraph:
        return build_graph(*self)


def compared(examples: int) -> settings:
    """So many examples, the same each time; with HYPOTHESIS_PROFILE=fresh, a thousand new ones."""
    drawn_anew = os.environ.get("HYPOTHESIS_PROFILE") == "fresh"
    return settings(max_examples=FRESH if drawn_anew else examples)


def communications() -> st.SearchStrategy[Communication]:
    """Of any kind."""
    flag = st.booleans()
    return st.sampled_from(Sharding).flatmap(
        lambda sharding: st.builds(
            Communication,
            st.just(sharding),
            flag,
            flag,
            flag,
            hybrid=st.just(False) if sharding is Sharding.NONE else flag,
            offload=st.sampled_from([0, 0, 0, 1, 1, 2, 4]),
            offload_ahead=st.integers(1, 3),
            tied_embeddings=flag,
            **policies(sharding),
        )
    )


def that_fits(
    layout: Layout, communication: Communication, orders: Sequence[Order]
) -> Communication:
    """The same, but once a step where copies are used too far apart to meet for each run.

    And in one group of replicas where there are copies, with nothing tied between four ranks.
    """
    if layout.copies:
        tied = communication.tied_embeddings and len(layout.ends) == PAIR
        communication = replace(communication, hybrid=False, tied_embeddings=tied)
    if not layout.copies or communication.sharding is not Sharding.FULL:
        return communication
    try:
        lower(orders, layout, communication)
    except InvalidConfiguration:
        return replace(communication, gather_per=Per.STEP, reduce_per=Per.STEP)
    return communication


def policies(sharding: Sharding) -> dict[str, st.SearchStrategy[Any]]:
    """Rates and prefetch distances of gathers and reductions of fully sharded units."""
    if sharding is not Sharding.FULL:
        return {}
    return {
        "gather_per": st.sampled_from(Per),
        "reduce_per": st.sampled_from(Per),
        "run_length": st.none() | st.integers(1, 3),
        "weight_buffers": st.integers(1, 3),
        "prefetch": st.none() | st.integers(1, 3),
    }


@st.composite
def layouts(
    draw: st.DrawFn,
    schedule: Schedule,
    ranks: int = 5,
    parts: int = 4,
    cells: int = CELLS,
) -> tuple[Schedule, Layout]:
    """A layout that the schedule can run on, ranks and micro-batches rounded up if it must be."""
    pp = draw(st.sampled_from([pp for pp in range(1, ranks + 1) if can_be_placed(schedule, pp)]))
    loops = draw(st.integers(1, parts)) if schedule.looped else schedule.loops
    units = draw(_units(pp * loops, parts // loops))
    microbatches = draw(st.integers(1, max(2, cells // sum(units))))
    multiple = pp
    if "sequence" in schedule.parameters:
        sequence = draw(st.none() | st.integers(pp, pp + 2))
        schedule, multiple = replace(schedule, sequence=sequence), sequence or pp
    if "lead" in schedule.parameters:
        schedule = replace(schedule, lead=draw(st.integers(1, 3)))
    layout = schedule.layout(pp, microbatches, loops, units)
    rounded_up = [
        replace(layout, microbatches=-(-microbatches // each) * each)
        for each in (multiple, 2 * multiple)
    ]
    runnable = [choice for choice in (layout, *rounded_up) if schedule.can_run(choice)]
    assume(runnable)
    return schedule, runnable[0]


def _units(stages: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Units of each stage: alike, more often than not."""
    alike = st.integers(1, most).map(lambda units: (units,) * stages)
    return alike | st.tuples(*[st.integers(1, most)] * stages)


def some_configuration(
    schedule: Schedule, ranks: int, communication: Communication
) -> Configuration:
    """Of two parts a rank where there may be, else of one; raises what that is refused with."""
    for parts in (2, 1):
        try:
            layout = schedule.divided(ranks, 2 * ranks, parts)
            found = Configuration(schedule, layout, communication)
            found.graph()
        except InvalidConfiguration:
            if parts == 1:
                raise
        else:
            return found
    raise AssertionError(schedule)


def can_be_placed(schedule: Schedule, pp: int) -> bool:
    """True if the schedule has a place for its stages on that many ranks."""
    try:
        schedule.layout(pp, 1)
    except InvalidConfiguration:
        return False
    return True


@st.composite
def configurations(
    draw: st.DrawFn,
    ranks: int = 5,
    parts: int = 4,
    cells: int = CELLS,
) -> Configuration:
    name = draw(st.sampled_from(list(registered_schedules())))
    schedule, layout = draw(layouts(find_schedule(name), ranks, parts, cells))
    communication = draw(communications())
    return Configuration(
        schedule, layout, that_fits(layout, communication, schedule.orders(layout))
    )


def graphs(ranks: int = 5, parts: int = 4, cells: int = CELLS) -> st.SearchStrategy[TaskGraph]:
    return configurations(ranks, parts, cells).map(Configuration.graph)


@st.composite
def orders(draw: st.DrawFn, ranks: int = 4, parts: int = 3) -> tuple[Layout, list[Order]]:
    """A layout of any placement, and each rank's part of one order in which all could run."""
    pp = draw(st.integers(1, ranks))
    more = draw(st.lists(st.integers(0, pp - 1), max_size=pp * (parts - 1)))
    placement = draw(st.permutations([*range(pp), *more]))
    units = draw(_units(len(placement), 2))
    layout = Layout(pp, draw(st.integers(1, 4)), placement=placement, units_per_stage=units)
    if 2 * pp <= ranks and draw(st.booleans()):
        layout = draw(_copied(layout))
    shuffle = draw(st.randoms(use_true_random=False))
    halves, haste = draw(st.booleans()), draw(st.sampled_from([0.0, 0.5, 0.9]))
    by_rank: list[list[Step]] = [[] for _ in range(layout.pp)]
    ready = [forward(0, microbatch) for microbatch in range(layout.microbatches)]
    while ready:
        latest = shuffle.random() < haste
        step = ready.pop(-1 if latest else shuffle.randrange(len(ready)))
        by_rank[_rank_of(step, layout)].append(step)
        split = halves and shuffle.random() < 0.7
        ready += _released(step, layout, split=split)
    found = [np.array(steps, dtype=STEP) for steps in by_rank]
    if draw(st.booleans()):
        _fuse(found, shuffle)
    return layout, found


def _fuse(found: list[Order], shuffle: Random) -> None:
    """Make blocks of some neighbouring passes, as far as all can still run."""
    for order in found:
        for at in range(len(order) - 1):
            if shuffle.random() < 0.6:
                order["fused"][at] = True
                if order_violations(found):
                    order["fused"][at] = False


@st.composite
def _copied(draw: st.DrawFn, layout: Layout) -> Layout:
    """Twice the ranks, so that each shares its stages with another; either may be the first."""
    pp = 2 * layout.pp
    ranks = draw(st.permutations(range(pp)))
    pairs = [(ranks[2 * rank], ranks[2 * rank + 1]) for rank in layout.placement]
    turned = [pair[:: draw(st.sampled_from((1, -1)))] for pair in pairs]
    first, second = zip(*turned, strict=True)
    return Layout(
        pp,
        layout.microbatches + 1,
        placement=first,
        copies=[second],
        units_per_stage=layout.units_per_stage,
    )


def _rank_of(step: Step, layout: Layout) -> int:
    """Of two copies of a stage, micro-batches go through both in turn: stages differ in which."""
    _, stage, microbatch, _ = step
    placements = [layout.placement, *layout.copies]
    return placements[(stage * stage // 2 + microbatch) % len(placements)][stage]


def _released(step: Step, layout: Layout, *, split: bool) -> list[Step]:
    """The steps that can run once this one has."""
    operation, stage, microbatch, _ = step
    back = backward_input if split else backward
    if operation == forward(0, 0)[0]:
        last = stage == layout.stages - 1
        return [back(stage, microbatch) if last else forward(stage + 1, microbatch)]
    if operation == backward_weight(0, 0)[0]:
        return []
    released = [back(stage - 1, microbatch)] if stage else []
    if operation == backward_input(0, 0)[0]:
        released.append(backward_weight(stage, microbatch))
    return released


@st.composite
def order_graphs(draw: st.DrawFn, ranks: int = 4, parts: int = 3) -> TaskGraph:
    layout, steps = draw(orders(ranks, parts))
    return lower(steps, layout, that_fits(layout, draw(communications()), steps))


def drawn_ports(random, tasks, ports, width):
    """One port at least for each task, none of them twice."""
    drawn = random.integers(0, ports, (tasks, width)).astype(np.int32)
    for place in range(1, width):
        again = (drawn[:, :place] == drawn[:, place, None]).any(axis=1)
        drawn[again, place] = NONE
    return drawn


@st.composite
def joint_steps(draw: st.DrawFn) -> tuple[list[TaskGraph], int]:
    """Graphs of some replicas, alike or with their micro-batches in other orders; their groups."""
    configuration = draw(configurations(4, 3, cells=16))
    graph = configuration.graph()
    groups = draw(st.sampled_from([1, 2, 3])) if graph.communication.hybrid else 1
    replicas = groups * draw(st.integers(1, 3))
    others = [graph, *(draw(_renumbered(graph)) for _ in range(draw(st.integers(0, 2))))]
    return [draw(st.sampled_from(others)) for _ in range(replicas)], groups


@st.composite
def _renumbered(draw: st.DrawFn, graph: TaskGraph) -> TaskGraph:
    """The same with its micro-batches in another order."""
    if graph.layout.slices > 1 or graph.layout.copies:
        return graph
    order = np.array([*draw(st.permutations(range(graph.layout.microbatches))), NONE])
    return replace(graph, microbatch=order[graph.microbatch]).checked()
