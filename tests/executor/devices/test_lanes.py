"""Lanes on a CPU keep their order and their waits, with any number of threads."""

from __future__ import annotations

from functools import partial
from random import Random
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.executor.devices.lanes import Mark, Threads
from bfpp.executor.devices.thread_lanes import ThreadMark
from bfpp.executor.dispatch.waits import Clocks

LANES = 4


@pytest.mark.parametrize("most", [1, 2, None])
@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_what_is_waited_for_comes_first(most: int | None, seed: int) -> None:
    chance, device = Random(seed), Threads(most)
    done: list[int] = []
    lanes = [device.lane("") for _ in range(LANES)]
    marks: list[Mark] = []
    before: list[list[int]] = []
    lane_of: list[int] = []
    for number in range(60):
        lane = chance.randrange(LANES)
        awaited = chance.sample(range(number), min(number, chance.randrange(3)))
        for each in awaited:
            lanes[lane].wait(marks[each])
        before.append([*awaited, *(each for each, at in enumerate(lane_of) if at == lane)])
        lane_of.append(lane)
        lanes[lane].run(partial(done.append, number))
        marks.append(lanes[lane].mark())
    device.finish(marks)
    for lane in lanes:
        lane.close()
    place = {number: each for each, number in enumerate(done)}
    assert len(place) == 60
    assert all(place[each] < place[number] for number in place for each in before[number])
    assert all(mark.passed() for mark in marks)


def test_a_lane_that_waits_holds_no_thread() -> None:
    device, done = Threads(1), Event()
    first, second = device.lane(""), device.lane("")
    mark = ThreadMark()
    first.wait(mark)
    second.run(done.set)
    assert done.wait(30)
    assert [thread.is_alive() for thread in device.crew.threads] == [True]
    for lane in (first, second):
        lane.close()
    device.crew.threads[0].join(30)
    assert not device.crew.threads[0].is_alive()


@pytest.mark.parametrize("most", [1, None])
def test_what_fails_first_ends_all(most: int | None) -> None:
    device = Threads(most)
    done: list[int] = []
    first, second = device.lane(""), device.lane("")
    first.run(lambda: 1 / 0)
    second.wait(first.mark())
    second.run(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        device.finish([second.mark()])
    assert done == []


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_the_waits_that_are_left_imply_all_others(seed: int) -> None:
    """By a search: who meets comes after all that each of them, or whom it waited for, came to."""
    chance, clocks = Random(seed), Clocks(LANES)
    before: list[set[int]] = []
    known: list[set[int]] = [set() for _ in range(LANES)]
    for number in range(40):
        lanes = chance.sample(range(LANES), chance.randrange(1, LANES))
        waits = [tuple(chance.sample(range(number), min(number, 3))) for _ in lanes]
        needed = clocks.add(lanes, waits)
        over = {number}
        for lane, all_waits, kept in zip(lanes, waits, needed, strict=True):
            assert {*kept} <= {*all_waits}
            due = known[lane].union(*(before[each] for each in all_waits))
            assert due == known[lane].union(*(before[each] for each in kept))
            for each in kept:  # none of them is implied
                others = (before[other] for other in kept if other != each)
                assert each not in known[lane].union(*others)
            over |= due
        before.append(over)
        for lane in lanes:
            known[lane] = over
