"""A gather that is prefetched begins no earlier than the run so many runs before its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bfpp.schedules import (
    P2P,
    Communication,
    Deadlock,
    InvalidConfiguration,
    Layout,
    Operation,
    Per,
    Sharding,
    TaskGraph,
    build_graph,
    lower,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.schedules.orders.steps import backward, forward, order_of
from bfpp.schedules.validity import violations
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from tests.helpers.live_counts import weight_buffers_over_time
from tests.helpers.strategies import Configuration, compared, configurations

LAYOUT = Layout(2, 4, 4)


def fully_sharded(buffers: int = 4, prefetch: int | None = None) -> Communication:
    return Communication(Sharding.FULL, weight_buffers=buffers, prefetch=prefetch)


def firsts_of_runs(graph: TaskGraph, rank: int) -> list[int]:
    """The first step of each run of a rank, in their order."""
    first: list[int] = []
    under_way: dict[bool, tuple[int, int]] = {}
    for step in graph.compute_tasks.of(rank).tolist():
        forward, unit = bool(graph.operation[step] == Operation.FORWARD), int(graph.unit[step])
        last, length = under_way.get(forward, (NONE, 0))
        if last != unit or length == graph.communication.run_length:
            first.append(step)
            length = 0
        under_way[forward] = unit, length + 1
    return first


def gather_of(graph: TaskGraph, step: int) -> int:
    """The gather of a run, by its first step: that of its unit and buffer."""
    block = int(graph.block[step])
    found = graph.dependencies.of(step if block == NONE else block)
    own = (graph.operation[found] == Operation.GATHER) & (graph.unit[found] == graph.unit[step])
    own &= graph.weight_buffer[found] == graph.weight_buffer[step]
    (gather,) = found[own].tolist()
    return int(gather)


@compared(100)
@given(configurations(4, 3, 24), st.integers(1, 4), st.sampled_from(P2P), st.booleans(), st.data())
def test_no_gather_begins_before_its_bound(
    drawn: Configuration, prefetch: int, p2p: P2P, eager: bool, data: st.DataObject
) -> None:
    drawn = drawn._replace(
        communication=replace(
            drawn.communication,
            sharding=Sharding.FULL,
            gather_per=Per.RUN,
            prefetch=prefetch,
            p2p=p2p,
            eager=eager and p2p not in (P2P.CHANNELS, P2P.POSTED),
            pp_overlap=drawn.communication.pp_overlap or p2p is not P2P.CHANNELS,
        )
    )
    try:
        graph = drawn.graph()
    except (Deadlock, WrongPosts):
        assume(False)
    except InvalidConfiguration as error:  # refused where copies of a stage are too far apart
        assume(error.field not in ("prefetch", "weight_buffers"))
        raise
    assert violations(graph) == []
    some = st.sampled_from([0.0, 0.3, 1.0, 4.0])
    costs = AbstractCosts(transfer=data.draw(some), gather=data.draw(some), reduce=data.draw(some))
    start = simulate(graph, costs).start
    for rank in range(graph.layout.pp):
        first = firsts_of_runs(graph, rank)
        for run, ahead in zip(first[prefetch:], first, strict=False):
            begin = ahead if graph.block[ahead] == NONE else graph.block[ahead]
            if begin != graph.block[run]:
                assert start[gather_of(graph, run)] >= start[begin] - 1e-9


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_gathers_begin_with_the_run_that_many_runs_ahead(prefetch: int) -> None:
    """Where only the bound holds them back, they begin with it, and more are not held at once."""
    graph = build_graph("breadth-first", LAYOUT, fully_sharded(prefetch=prefetch))
    timeline = simulate(graph, AbstractCosts(gather=0.1, transfer=0.1))
    first = firsts_of_runs(graph, 0)
    gathers = [gather_of(graph, step) for step in first]
    begins = timeline.start[first]
    bounds = np.append(np.zeros(prefetch), begins[:-prefetch])
    ends = np.append(0, timeline.end[gathers][:-1])
    np.testing.assert_allclose(timeline.start[gathers], np.maximum(bounds, ends))
    assert weight_buffers_over_time(timeline, 0).peak == prefetch + 1


def test_buffers_alone_bound_what_is_not_asked_for() -> None:
    free = simulate(
        build_graph("breadth-first", LAYOUT, fully_sharded()), AbstractCosts(gather=0.1)
    )
    gathers = (free.graph.operation == Operation.GATHER) & (free.graph.rank == 0)
    np.testing.assert_allclose(free.start[gathers][:4], [0, 0.1, 0.2, 0.3])
    assert weight_buffers_over_time(free, 0).peak == 4


def test_copies_that_are_too_far_apart_are_refused() -> None:
    """Ranks 0 and 1 share stages 0 and 2, whose second backward run begins apart."""
    layout = Layout(4, 4, placement=(0, 2, 0), copies=[(1, 3, 1)], units_per_stage=(1, 1, 2))
    texts = (
        "0F0 0F2 2F0 2F2 2B0 2B2 0B0 0B2",
        "0F1 0F3 2F1 2B1 2F3 2B3 0B1 0B3",
        "1F0 1F2 1B0 1B2",
        "1F1 1F3 1B1 1B3",
    )
    passes = {"F": forward, "B": backward}
    orders = [
        order_of(passes[word[1]](int(word[0]), int(word[2])) for word in text.split())
        for text in texts
    ]
    with pytest.raises(InvalidConfiguration) as refused:
        lower(orders, layout, fully_sharded(9, prefetch=1))
    assert str(refused.value) == (
        "prefetch: the copies of stage 2 are used too far apart for gathers that begin no earlier "
        "than 1 run before"
    )
    assert violations(lower(orders, layout, fully_sharded(9))) == []


def test_graphs_of_files_that_say_1_where_nothing_is_gathered() -> None:
    graph = build_graph("1f1b", Layout(2, 2))
    text = write_graph(graph)
    assert '"prefetch": null' in text
    assert read_graph(text.replace('"prefetch": null', '"prefetch": 1')).digest == graph.digest
