"""Orders of many micro-batches, made of the periods that orders of few of them have."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.schedules import Communication, Layout, find_schedule, lower
from bfpp.schedules.order_validity import order_violations
from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis import synthesize
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.periodic import few_of, repeated, search_periods
from bfpp.sim.synthesis.problem import HALVES, WHOLE, Problem, of_first
from bfpp.sim.synthesis.search import replayed, search
from tests.test_synthesis import SOME, SOON, OfStages, problems


@settings(SOME, max_examples=30)
@given(problems(3, 1, 6))
def test_periods_that_are_repeated_can_run(problem: Problem) -> None:
    """They keep to the limits, and take as long as the engine says."""
    few, many = problem.of(12), problem.of(24)
    known = search(few, [], 0.0)[0]
    for words in repeated(few, known.words, many):
        for word, short in zip(words, known.words, strict=True):
            assert Counter(word) == {code: 2 * count for code, count in Counter(short).items()}
        assert many.within(words)
        orders = many.orders(words)
        assert order_violations(orders) == []
        expected = simulate(lower(orders, many.layout, Communication()), OfStages(many)).step_time
        assert replayed(many, words) == pytest.approx(expected, rel=1e-12)
        assert lower_bound(many).seconds <= expected * (1 + 1e-9)


@settings(SOME, max_examples=30)
@given(problems(3, 4, 6))
def test_the_first_micro_batches_of_an_order_are_one(problem: Problem) -> None:
    known = search(problem, [], 0.0)[0]
    fewer = problem.of(1)
    words = of_first(known.words, 1)
    assert fewer.within(words)
    assert replayed(fewer, words) <= known.seconds


def even(pp: int, microbatches: int, limit: float) -> Problem:
    return Problem(
        Layout(pp, microbatches), HALVES, np.ones((3, pp)), np.zeros((2, pp)), np.zeros(pp),
        np.ones(pp), np.full(pp, limit),
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "interval"), [(4, 3.0), (2, 5.0)])
def test_the_period_of_many_is_that_of_few(limit: int, interval: float) -> None:
    """About: what is searched has four micro-batches a rank, and a whole period of them."""
    many = even(4, 403, limit)
    assert few_of(many).microbatches == 16 + 3
    [found, *_] = search_periods(many, [], SOON)
    few = search(few_of(many), [], SOON)[0]
    assert found.seconds <= 1.02 * (few.seconds + (403 - 19) * interval)
    assert many.within(found.words)


def test_periods_of_1f1b_are_1f1b() -> None:
    few, many = (
        Problem(
            Layout(4, microbatches), WHOLE, np.ones((2, 4)), np.zeros((2, 4)), np.zeros(4),
            np.ones(4), np.full(4, 4.0),
        )
        for microbatches in (16, 40)
    )  # fmt: skip
    words, expected = (
        each.words(find_schedule("1f1b").orders(each.layout)) for each in (few, many)
    )
    assert words is not None
    assert expected in list(repeated(few, words, many))


def test_of_few_micro_batches_all_are_searched() -> None:
    assert few_of(few := even(4, 19, 4)) is few


def test_many_micro_batches_are_no_slower_than_the_best_rule() -> None:
    experiment = Experiment("1f1b", pp=4, microbatches=100, forward=2.0, transfer=0.5)
    found = synthesize(experiment, memory_limit=4, seconds=SOON)
    assert found.rule_seconds is not None
    assert found.bound.seconds <= found.step_time <= found.rule_seconds
    assert simulate(found.experiment.graph(), experiment.costs).step_time == found.step_time
