"""A step's time in one call, against the same by its parts; and malformed arrays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.period import Stretch, repeats
from bfpp.core.prices import price
from bfpp.core.step import WHOLE, Extension, NotPeriodic, PowerLimit, step_time
from bfpp.schedules import Communication, Operation, build_graph, find_schedule
from bfpp.sim.costs.physical import graph_columns
from bfpp.sim.engines.compiled_engine import times
from bfpp.sim.engines.cost_model import Costs
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, drawn_ports, graphs, order_graphs

PORTS, WIDTH, TOLERANCE, ROUNDING = 5, 2, 0.002, 1e-14
SEEDS = st.integers(0, 2**32 - 1)


def some_kinds(random, count):
    """Kinds that compute, that communicate, or both, and add to the tasks around them."""
    seconds, received, sent = random.exponential(1, (3, count)) * (random.random((3, count)) < 0.6)
    size = random.integers(0, 4, count).astype(float)
    ports = drawn_ports(random, count, PORTS, WIDTH)
    return seconds, size, ports, received * 0.1, sent * 0.1


def some_prices(random, graph):
    """Of a graph's kinds: cells, others and bandwidth; and seconds of tasks, more often none."""
    kinds = graph.kinds.cells, graph.kinds.others
    own = random.exponential(1, len(graph)) if random.random() < 0.2 else None
    bandwidth = random.integers(1, 9, PORTS).astype(float)
    return *(some_kinds(random, len(each.first)) for each in kinds), bandwidth, own


def in_one_call(graph, prices, limit, extension=WHOLE):
    return step_time(
        graph_columns(graph), len(graph.lanes), graph.layout.pp, *prices, limit, extension
    )


def costs_of(graph, cells, others, bandwidth, own):
    seconds, size = np.empty((2, len(graph)))
    ports = np.empty((len(graph), WIDTH), dtype=np.int32)
    price(graph.kinds.of_task, *graph.dependencies, cells, others, own, seconds, size, ports)
    return Costs(seconds, size, ports, bandwidth)


def added(seconds):
    """Their sum, one after the other: numpy adds in pairs."""
    return float(np.append(0.0, seconds).cumsum()[-1])


def extended(graph, found, extension):
    """The sums of these times, and of as many periods as are left out, each as the last one."""
    start, end = found
    sums = float(end.max()), added((end - start)[graph.is_pass])
    if extension is WHOLE:
        return sums
    begin, periods, between, left_out, rounding = extension
    if len(begin) - 1 - between < 0:
        raise NotPeriodic
    begun = start[begin]
    period = float(begun[-1] - begun[len(begin) - 1 - between]) / periods
    tolerance = rounding * sums[0]
    until = float(begun[-1]) - 2 * tolerance
    stretch = Stretch(until - periods * period, until, period, tolerance)
    kinds = graph.kinds
    if not repeats(kinds.of_task, len(kinds.first), *graph.dependencies, start, end, stretch):
        raise NotPeriodic
    within = graph.is_pass & (start >= until - period) & (start < until)
    return sums[0] + left_out * period, sums[1] + left_out * added((end - start)[within])


def by_its_parts(graph, prices, limit, extension=WHOLE):
    """Priced, replayed and summed, at lower clocks again until the power limit is kept."""
    costs, (least, tolerance) = costs_of(graph, *prices), limit
    steps, fastest = graph.is_compute, costs.seconds
    busy = [added(fastest[steps & (graph.rank == rank)]) for rank in range(graph.layout.pp)]
    factor, missing = 1.0, least
    while 0 < max(busy) * factor < least and missing > tolerance * least:
        sums = extended(graph, times(graph, costs), extension)
        missing = least - sums[0]
        if missing <= 0:
            return sums
        factor *= least / sums[0]
        costs = replace(costs, seconds=np.where(steps, fastest * factor, fastest))
    return extended(graph, times(graph, costs), extension)


@compared(300)
@given(graphs() | order_graphs(), SEEDS)
def test_one_call_is_what_its_parts_are(graph, seed):
    """To the last bit, within a power limit or free of it, for several prices of each graph."""
    random = np.random.default_rng(seed)
    for _ in range(6):
        prices = some_prices(random, graph)
        free = in_one_call(graph, prices, PowerLimit(0.0, TOLERANCE))
        assert free == by_its_parts(graph, prices, PowerLimit(0.0, TOLERANCE))
        limit = PowerLimit(free[0] * random.uniform(0.9, 2), TOLERANCE)
        assert in_one_call(graph, prices, limit) == by_its_parts(graph, prices, limit)


@compared(100)
@given(st.sampled_from(["1f1b", "depth-first", "zb-h1", "gpipe"]), st.integers(1, 3), SEEDS)
def test_what_is_left_out_takes_as_long_as_the_last_period(name, pp, seed):
    """Or its length is not known, where times do not repeat."""
    random = np.random.default_rng(seed)
    schedule = find_schedule(name)
    graph = build_graph(schedule, schedule.divided(pp, 12 * pp, 1), Communication())
    begin = np.flatnonzero((graph.operation == Operation.FORWARD) & (graph.unit == 0))
    periods, length = int(random.integers(1, 5)), int(random.choice([1, pp]))
    between = periods * length if random.random() < 0.9 else 100
    extension = Extension(begin.astype(np.int32), periods, between, 7, ROUNDING)
    prices = some_prices(random, graph)
    for least in (0.0, 50.0):
        limit, found = PowerLimit(least, TOLERANCE), []
        for way in (in_one_call, by_its_parts):
            with suppress(NotPeriodic):
                found.append(way(graph, prices, limit, extension))
        assert not found or found[0] == found[1]


def test_periods_are_found_and_missed():
    random, schedule = np.random.default_rng(0), find_schedule("1f1b")
    graph = build_graph(schedule, schedule.divided(2, 24, 1), Communication())
    begin = np.flatnonzero((graph.operation == Operation.FORWARD) & (graph.unit == 0))
    cells, others, bandwidth, _ = some_prices(random, graph)
    limit = PowerLimit(0.0, TOLERANCE)
    extension = Extension(begin.astype(np.int32), 2, 2, 5, 1e-12)
    prices = cells, others, bandwidth, None
    seconds, passes = in_one_call(graph, prices, limit)
    more = in_one_call(graph, prices, limit, extension)
    assert more[0] > seconds
    assert more[1] == pytest.approx(passes * (24 + 5) / 24, rel=0.01)
    with pytest.raises(NotPeriodic):
        in_one_call(graph, prices, limit, extension._replace(between=30))
    differing = cells, others, bandwidth, random.random(len(graph))
    with pytest.raises(NotPeriodic):
        in_one_call(graph, differing, limit, extension)


@pytest.mark.parametrize(
    ("limit", "extension"),
    [
        (PowerLimit(1.0, 0.0), WHOLE),
        (PowerLimit(1.0, float("nan")), WHOLE),
        (PowerLimit(1.0, TOLERANCE), Extension(np.array([-1], np.int32), 1, 0, 1, ROUNDING)),
        (PowerLimit(1.0, TOLERANCE), Extension(np.array([10**6], np.int32), 1, 0, 1, ROUNDING)),
    ],
)
def test_limits_and_tasks_that_there_are_not(limit, extension):
    graph = build_graph("1f1b", find_schedule("1f1b").layout(2, 4), Communication())
    with pytest.raises(ValueError, match="malformed arrays for bfpp_step_time"):
        in_one_call(graph, some_prices(np.random.default_rng(0), graph), limit, extension)


@compared(60)
@given(graphs(3, 2, cells=12), SEEDS)
def test_spoilt_arrays_are_refused_or_taken(graph, seed):
    random = np.random.default_rng(seed)
    cells, others, bandwidth, _ = some_prices(random, graph)
    arrays = [*graph_columns(graph), *cells, *others, bandwidth]
    *columns, bandwidth = spoilt(random, arrays)
    columns, cells, others = columns[:10], tuple(columns[10:15]), tuple(columns[15:])
    with suppress(ValueError):
        step_time(
            type(graph_columns(graph))(*columns),
            len(graph.lanes), graph.layout.pp, cells, others, bandwidth, None,
            PowerLimit(random.choice([0.0, 5.0]), TOLERANCE),
        )  # fmt: skip
