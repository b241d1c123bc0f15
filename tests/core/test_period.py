"""The period against Karp's theorem on the whole matrix, and repetition against its definition."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.period import Stretch, period, repeats
from bfpp.schedules.columns import NONE, Groups
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, graphs, order_graphs

seeds = st.integers(0, 2**32 - 1)


def columns_of(graph):
    return [graph.lane, graph.peer_lane, graph.rank, graph.peer, *graph.dependencies]


def path_lengths(lanes, ranks, lane, peer_lane, rank, peer, start, member, duration):
    """The longest path from the begin of each rank to the end of each (row)."""
    lengths, on_lane = np.full((2, len(lane), ranks), -np.inf)
    on_lane, ends = np.full((lanes, ranks), -np.inf), np.full((ranks, ranks), -np.inf)
    for task in range(len(lane)):
        lengths[task, [each for each in (rank[task], peer[task]) if each != NONE]] = 0
        queues = [each for each in (lane[task], peer_lane[task]) if each != NONE]
        for before in (*lengths[member[start[task] : start[task + 1]]], *on_lane[queues]):
            lengths[task] = np.maximum(lengths[task], before)
        lengths[task] += duration[task]
        on_lane[queues] = lengths[task]
        if peer[task] == NONE:
            ends[rank[task]] = np.maximum(ends[rank[task]], lengths[task])
    return ends


def karp(lengths):
    """The largest mean of a cycle: max over ranks of min over k of (D_n - D_k) / (n - k).

    D_k is the longest walk of k steps that ends at a rank, n the number of ranks. (Karp, A
    characterization of the minimum cycle mean, 1978.)
    """
    steps = len(lengths)
    walks = [np.zeros(steps)]
    for _ in range(steps):
        walks.append((lengths + walks[-1]).max(axis=1))
    gains = (walks[-1] - np.array(walks[:-1])) / (steps - np.arange(steps)[:, None])
    return gains.min(axis=0).max()


def seconds(random, tasks):
    """Seconds of each task: whole ones, of one size, of many sizes, or mostly none."""
    return [
        random.integers(0, 5, tasks).astype(float),
        random.exponential(1, tasks),
        np.exp(3 * random.normal(size=tasks)),
        np.where(random.random(tasks) < 0.8, 0.0, random.random(tasks)),
    ][random.integers(4)]


@compared(100)
@given(graphs(6, 3, cells=40) | order_graphs(), seeds)
def test_the_period_is_the_largest_mean_of_a_cycle(graph, seed):
    given = *columns_of(graph), seconds(np.random.default_rng(seed), len(graph))
    sizes = len(graph.lanes), graph.layout.pp
    assert period(*sizes, *given) == pytest.approx(karp(path_lengths(*sizes, *given)), rel=1e-12)


def ring(random, ranks, transfers):
    """Ranks with two tasks each, and transfers from the first of some to the second of others."""
    sender, receiver = random.integers(0, ranks, (2, transfers))
    own, moves = np.arange(ranks), np.arange(transfers)
    by_receiver = np.argsort(receiver, kind="stable")
    waits = np.concatenate(
        (np.zeros(ranks), np.ones(transfers), np.bincount(receiver, None, ranks))
    )
    none = np.full(ranks, NONE)
    lane = np.concatenate((own, ranks + moves, own))
    columns = (lane, np.full(len(lane), NONE), np.concatenate((own, sender, own)))
    dependencies = Groups(
        np.append(0, waits.cumsum()).astype(np.int64),
        np.concatenate((sender, ranks + by_receiver)).astype(np.int32),
    )
    peer = np.concatenate((none, receiver, none))
    return ranks + transfers, [each.astype(np.int32) for each in (*columns, peer)], dependencies


@compared(100)
@given(st.integers(1, 30), st.integers(0, 90), seeds)
def test_cycles_through_many_ranks(ranks, transfers, seed):
    """Where ranks wait for any others, as they do in no pipeline."""
    random = np.random.default_rng(seed)
    lanes, columns, dependencies = ring(random, ranks, transfers)
    given = lanes, ranks, *columns, *dependencies, seconds(random, len(columns[0]))
    assert period(*given) == pytest.approx(karp(path_lengths(*given)), rel=1e-12)


def test_many_ranks_are_soon_done():
    """The square of as many ranks would be of 80 GB."""
    random = np.random.default_rng(0)
    lanes, columns, dependencies = ring(random, 100_000, 200_000)
    found = period(lanes, 100_000, *columns, *dependencies, random.exponential(1, 400_000))
    assert 10 < found < 40


def test_a_rank_without_tasks_of_its_own_is_waited_for_by_none():
    number = np.zeros(1, np.int32)
    waits = np.zeros(2, np.int64), number[:0]
    sizes = 1, 2
    assert period(*sizes, number, number - 1, number, number - 1, *waits, np.full(1, 3.0)) == 3


def by_definition(graph, start, end, stretch):
    """All that starts within the stretch but for its last period starts again, and nothing else."""
    begin, until, length, tolerance = stretch
    late = (until - length <= start) & (start < until)
    if ((start < begin) & (end > until - length)).any():
        return False
    if any((start[graph.dependencies.of(task)] < begin).any() for task in np.flatnonzero(late)):
        return False
    for kind in range(len(graph.kinds.first)):
        own = np.flatnonzero(graph.kinds.of_task == kind)
        first = own[(start[own] >= begin) & (start[own] < until - length)]
        again = own[(start[own] >= begin + length) & (start[own] < until)]
        if len(first) != len(again):
            return False
        for times in (start, end):
            if (abs(times[again] - times[first] - length) > tolerance).any():
                return False
    return True


@compared(100)
@given(graphs(3, 3, cells=30), seeds)
def test_repetition_by_its_definition(graph, seed):
    """Of micro-batches one after the other in steady state, and of a few that are a bit later."""
    random = np.random.default_rng(seed)
    kind = graph.kinds.of_task
    turn = np.array([np.count_nonzero(kind[:task] == kind[task]) for task in range(len(graph))])
    start = turn + random.random(len(graph.kinds.first))[kind]
    start[random.random(len(graph)) < random.choice([0, 0.02])] += 0.01
    end = start + random.choice([0.1, 1.5])
    begin, periods = float(random.choice([0, 0.5, 1])), int(random.integers(1, 4))
    stretch = Stretch(begin, begin + periods, 1.0, float(random.choice([1e-9, 0.02])))
    given = kind, len(graph.kinds.first), *graph.dependencies, start, end, stretch
    assert repeats(*given) == by_definition(graph, start, end, stretch)


def test_malformed_arrays():
    number, nothing = np.zeros(1, np.int32), np.empty(0, np.int32)
    waits, time = (np.zeros(2, np.int64), nothing), np.zeros(1)
    columns = [number, number - 1, number, number - 1]
    assert period(1, 1, *columns, *waits, time) == 0
    for at in range(4):
        wrong = [each + np.int32(2) if at == place else each for place, each in enumerate(columns)]
        with pytest.raises(ValueError, match="malformed arrays for bfpp_period"):
            period(1, 1, *wrong, *waits, time)
    itself = np.array([0, 1]), number
    with pytest.raises(ValueError, match="malformed"):
        period(1, 1, *columns, *itself, time)
    stretch = Stretch(0.0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="malformed arrays for bfpp_repeats"):
        repeats(number, 0, *waits, time, time, stretch)
    with pytest.raises(ValueError, match="malformed"):
        repeats(number, 1, np.array([0, 1]), number + np.int32(1), time, time, stretch)
    with pytest.raises(ValueError, match="end of repeats has 2 elements, not 1"):
        repeats(number, 1, *waits, time, np.zeros(2), stretch)


@compared(60)
@given(graphs(3, 2, cells=12), seeds)
def test_spoilt_arrays_are_refused_or_taken(graph, seed):
    random = np.random.default_rng(seed)
    duration = random.exponential(1, len(graph))
    with suppress(ValueError):
        given = spoilt(random, [*columns_of(graph), duration])
        period(len(graph.lanes), graph.layout.pp, *given)
    with suppress(ValueError):
        arrays = [graph.kinds.of_task, *graph.dependencies, duration, duration + 1]
        kind, *others = spoilt(random, arrays)
        repeats(kind, len(graph.kinds.first), *others, Stretch(0.5, 2.5, 1.0, 0.1))
