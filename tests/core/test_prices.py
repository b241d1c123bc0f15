"""Prices of tasks, against a few lines of numpy; and malformed arrays, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import ArgumentError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.prices import busiest, find_loads, hand_over, price
from bfpp.schedules import Layout, TaskGraph, build_graph
from tests.helpers.strategies import compared, graphs, order_graphs

PORTS, WIDTH = 6, 3
SEEDS = st.integers(0, 2**32 - 1)


def some_kinds(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """Columns over kinds of tasks: what they take, where they pass, what they add to others."""
    seconds, size, received, sent = random.random((4, count)) * 10.0 ** random.integers(-6, 6)
    ports = random.integers(-1, PORTS, (count, WIDTH), dtype=np.int32)
    return seconds, size, ports, received, sent


def priced(graph: TaskGraph, *columns: Any) -> tuple[np.ndarray, ...]:
    seconds, size = np.empty((2, len(graph)))
    ports = np.empty((len(graph), WIDTH), dtype=np.int32)
    price(graph.kinds.of_task, *graph.dependencies, *columns, seconds, size, ports)
    return seconds, size, ports


@compared(100)
@given(graphs() | order_graphs(), SEEDS, st.booleans())
def test_a_task_costs_what_its_kind_does_and_what_its_neighbours_add(graph, seed, differ):
    random, kinds = np.random.default_rng(seed), graph.kinds
    cells, others = (some_kinds(random, len(each.first)) for each in (kinds.cells, kinds.others))
    own = random.random(len(graph)) if differ else None
    seconds, size, ports = priced(graph, cells, others, own)
    table = [np.concatenate(both)[kinds.of_task] for both in zip(cells, others, strict=True)]
    np.testing.assert_array_equal(size, table[1])
    np.testing.assert_array_equal(ports, table[2])
    start, before = graph.dependencies
    after = np.repeat(np.arange(len(graph)), np.diff(start))
    expected = table[0].copy() if own is None else own.copy()
    np.add.at(expected, after, table[3][before])
    np.add.at(expected, before, table[4][after])
    np.testing.assert_allclose(seconds, expected, rtol=1e-12)


@compared(100)
@given(SEEDS, st.integers(1, 20), st.booleans())
def test_communication_costs_its_neighbours_a_share_of_its_time(seed, count, blocks):
    random = np.random.default_rng(seed)
    seconds, size, ports, received, sent = some_kinds(random, count)
    bandwidth, is_transfer = random.random(PORTS), random.random(count) < 0.5
    narrowest = np.where(ports < 0, np.inf, bandwidth[ports]).min(axis=1)
    taken = seconds + size / narrowest
    expected = (
        np.where(is_transfer & blocks, 0.0, seconds),
        np.where(is_transfer & blocks, 0.0, size),
        received * taken + 0.25 * is_transfer,
        sent * taken,
    )
    hand_over(is_transfer, blocks, 0.25, (seconds, size, ports), bandwidth, received, sent)
    for found, each in zip((seconds, size, received, sent), expected, strict=True):
        np.testing.assert_array_equal(found, each)


@compared(50)
@given(SEEDS, st.integers(0, 50), st.integers(1, 5))
def test_the_busiest_rank_is_that_of_most_seconds(seed, tasks, ranks):
    random = np.random.default_rng(seed)
    rank = random.integers(0, ranks, tasks, dtype=np.int32)
    chosen, seconds = random.random(tasks) < 0.5, random.random(tasks)
    by_rank = np.bincount(rank, chosen * seconds, ranks)
    assert busiest(rank, chosen, seconds, ranks) == by_rank.max()


def some_collectives(random: np.random.Generator) -> tuple[Any, ...]:
    """All that the loads of a few tasks with collectives follow from."""
    tasks, rows, places, levels, ranks, width = random.integers(1, 6, 6).tolist()
    begin = np.cumsum([0, *random.integers(0, 4, places)], dtype=np.int32)
    count = begin[-1]
    level = random.integers(0, levels, count, dtype=np.int32)
    options = begin, random.random(count), random.random(count), level
    sizes = random.random((rows, tasks)) * random.integers(0, 3, (rows, tasks))
    place = random.integers(0, places, (rows, tasks), dtype=np.int32)
    ends = tuple(random.integers(0, ranks, (2, tasks), dtype=np.int32))
    ports = tuple(random.integers(-1, 9, (2, levels + 1, ranks, width), dtype=np.int32))
    return sizes, place, options, random.random(levels), ends, ports


def loads_of(sizes: Any, place: Any, options: Any, rates: Any, ends: Any, ports: Any) -> Any:
    tasks, width = sizes.shape[1], ports[0].shape[2]
    latency, moved = np.empty((2, tasks))
    passed = np.empty((tasks, 2 * width), dtype=np.int32)
    find_loads(sizes, place, options, rates, ends, ports, latency, moved, passed)
    return latency, moved, passed


@compared(200)
@given(SEEDS)
def test_collectives_take_the_quickest_option_and_the_ports_of_the_outermost_level(seed):
    sizes, place, options, rates, ends, ports = given_ = some_collectives(
        np.random.default_rng(seed)
    )
    for task, load in enumerate(zip(*loads_of(*given_), strict=True)):
        latency = seconds = 0.0
        outermost = -1
        for size, where in zip(sizes[:, task], place[:, task], strict=True):
            here = slice(options[0][where], options[0][where + 1])
            known = list(zip(*(each[here] for each in options[1:]), strict=True))
            if size and known:
                least = min(known, key=lambda each: each[0] + each[1] * size)
                latency, seconds = latency + least[0], seconds + least[1] * size
                outermost = max(outermost, least[2])
        assert load[0] == latency
        if outermost < 0:
            assert load[1] == 0
            assert (load[2] == -1).all()
            continue
        assert load[1] == rates[outermost] * seconds
        passed = [each[outermost + 1, end[task]] for each, end in zip(ports, ends, strict=True)]
        np.testing.assert_array_equal(load[2], np.concatenate(passed))


GRAPH = build_graph("1f1b", Layout(2, 3))


@pytest.mark.parametrize("far", [-1, 10**6])
@pytest.mark.parametrize("which", ["kind", "dependency"])
def test_a_price_of_what_there_is_not_is_refused(which, far):
    random, kinds = np.random.default_rng(0), GRAPH.kinds
    costs = [some_kinds(random, len(each.first)) for each in (kinds.cells, kinds.others)]
    start, dependency = (each.copy() for each in GRAPH.dependencies)
    kind = kinds.of_task.copy()
    {"kind": kind, "dependency": dependency}[which][-1] = far
    seconds, size = np.empty((2, len(GRAPH)))
    ports = np.empty((len(GRAPH), WIDTH), dtype=np.int32)
    with pytest.raises(ValueError, match="malformed arrays for bfpp_price"):
        price(kind, start, dependency, *costs, None, seconds, size, ports)
    with pytest.raises(ValueError, match="ports of price has"):
        price(kind, start, dependency, *costs, None, seconds, size, ports[1:])


def test_groups_of_dependencies_out_of_bounds_are_refused():
    random, kinds = np.random.default_rng(0), GRAPH.kinds
    costs = [some_kinds(random, len(each.first)) for each in (kinds.cells, kinds.others)]
    outputs = *np.empty((2, len(GRAPH))), np.empty((len(GRAPH), WIDTH), dtype=np.int32)
    for place, value in ((0, -5), (-1, 10**9)):
        start, dependency = (each.copy() for each in GRAPH.dependencies)
        start[place] = value
        with pytest.raises(ValueError, match="malformed"):
            price(kinds.of_task, start, dependency, *costs, None, *outputs)


def test_ports_and_ranks_that_there_are_not_are_refused():
    seconds, size, ports, received, sent = some_kinds(np.random.default_rng(0), 4)
    ports[2, 1] = PORTS
    flags = np.ones(4, dtype=bool)
    with pytest.raises(ValueError, match="malformed"):
        hand_over(flags, True, 0.0, (seconds, size, ports), np.ones(PORTS), received, sent)
    for rank in (-1, 3):
        with pytest.raises(ValueError, match="malformed"):
            busiest(np.array([0, rank], dtype=np.int32), flags[:2], seconds[:2], 3)
    with pytest.raises((TypeError, ArgumentError), match="rank is of int64, not int32"):
        busiest(np.zeros(2, dtype=np.int64), flags[:2], seconds[:2], 3)


def _place(given_: Any, far: int) -> None:
    given_[1][0, 0] = far


def _begin(given_: Any, far: int) -> None:
    given_[2][0][:] = far


def _level(given_: Any, far: int) -> None:
    given_[2][3][:] = far


def _rank(given_: Any, far: int) -> None:
    given_[4][0][:] = far


def _peer(given_: Any, far: int) -> None:
    given_[4][1][:] = far


@pytest.mark.parametrize(
    ("harm", "far"),
    [(each, far) for each in (_place, _rank, _peer) for far in (-1, 10**6)]
    + [(_begin, -1), (_begin, 10**6), (_level, 10**6)],
)
def test_loads_of_collectives_that_are_nowhere_are_refused(
    harm: Callable[[Any, int], None], far: int
) -> None:
    one = np.zeros(1, dtype=np.int32)
    options = np.array([0, 1], dtype=np.int32), np.ones(1), np.ones(1), one.copy()
    ports = np.zeros((2, 1, 1), dtype=np.int32)
    place, ends = one[None].copy(), (one.copy(), one.copy())
    given_ = np.ones((1, 1)), place, options, np.ones(1), ends, (ports, ports)
    assert [each.tolist() for each in loads_of(*given_)] == [[1.0], [1.0], [[0, 0]]]
    harm(given_, far)
    with pytest.raises(ValueError, match="malformed"):
        loads_of(*given_)
