"""Whose turn it is: blocks, the stop rule, and how a study goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.api.study.study import Measuring
from bfpp.api.study.turns import StudyTurns, is_enough
from bfpp.executor.settings import CALIBRATION

rules = st.builds(
    lambda least, more, width, seed: Measuring(
        least=least, most=least + more, width=width, seed=seed
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(0.001, 0.5),
    st.integers(0, 9),
)


def all_turns(measuring, count, noise, done=None):
    """Turns until the end, where the n-th repetition of a cell takes `noise` by cell and n."""
    seconds = [[*each] for each in done or [[]] * count]
    blocks, order = StudyTurns(measuring, seconds, True), []
    while (cell := blocks.next()) is not None:
        order.append(cell)
        seconds[cell].append(noise[cell][len(seconds[cell])])
        blocks.taken(cell, [seconds[cell][-1]] * 3)
    return order, seconds


noises = st.lists(st.lists(st.floats(0.9, 1.1), min_size=7, max_size=7), min_size=1, max_size=5)


@given(rules, noises)
def test_each_cell_is_run_until_its_interval_is_narrow_or_as_often_as_may_be(measuring, noise):
    _, seconds = all_turns(measuring, len(noise), noise)
    for each in seconds:
        assert measuring.least <= len(each) <= measuring.most
        assert is_enough(measuring, each)
        assert len(each) == measuring.least or not is_enough(measuring, each[:-1])


@given(rules, noises, st.data())
def test_a_study_that_was_cut_off_goes_on_in_the_same_order(measuring, noise, data):
    order, seconds = all_turns(measuring, len(noise), noise)
    cut = data.draw(st.integers(0, len(order)))
    done = [noise[cell][: order[:cut].count(cell)] for cell in range(len(noise))]
    rest, whole = all_turns(measuring, len(noise), noise, done)
    assert (order[:cut] + rest, whole) == (order, seconds)


@given(noises)
def test_a_block_has_every_cell_once_and_blocks_differ_in_order(noise):
    count = len(noise)
    order, _ = all_turns(Measuring(least=4, most=4), count, noise)
    blocks = [order[at : at + count] for at in range(0, len(order), count)]
    assert all(sorted(block) == [*range(count)] for block in blocks)
    assert count < 4 or len({*map(tuple, blocks)}) > 1


def test_a_calibration_comes_first_unless_nothing_is_left():
    blocks = StudyTurns(Measuring(least=1, most=1), [[]], False)
    assert blocks.next() == CALIBRATION
    blocks.taken(CALIBRATION, [])
    assert blocks.next() == 0
    assert StudyTurns(Measuring(least=1, most=1), [[1.0]], False).next() is None


@pytest.mark.parametrize(("width", "enough"), [(0.01, False), (0.5, True)])
def test_the_width_is_that_of_half_an_interval(width, enough):
    # Student's 97.5 % quantile with two degrees of freedom is 4.303: half of it is 24.8 %.
    seconds = [0.9, 1.0, 1.1]
    assert is_enough(Measuring(least=3, most=9, width=width), seconds) is enough
    assert is_enough(Measuring(least=3, most=9, width=0.2485), seconds)
    assert not is_enough(Measuring(least=3, most=9, width=0.2483), seconds)
