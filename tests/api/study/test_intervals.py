"""Intervals and rankings, against scipy's own and a plain count."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bfpp.api.study.intervals import interval, rank_agreement

times = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@given(times)
def test_an_interval_is_students(values):
    known = interval(values)
    mean, error = float(stats.tmean(values)), float(stats.sem(values))
    if error > 1e-9:
        expected = stats.t.interval(0.95, len(values) - 1, mean, error)
        assert (known.low, known.high) == pytest.approx(expected)
    assert known.low <= known.mean <= known.high


def test_of_one_value_nothing_is_known_but_itself():
    assert interval([2.0]) == (2.0, 2.0, 2.0)


@given(st.permutations(range(6)))
def test_agreement_is_the_share_of_pairs_in_order_less_that_of_others(order):
    pairs = [(one < other) - (one > other) for one, other in combinations(order, 2)]
    assert rank_agreement(range(6), order) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0]])
def test_what_has_no_order_has_no_agreement(values):
    assert rank_agreement(values, values) is None
