"""Orders of many micro-batches, dispatched as is good for few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.schedules import Communication, Layout, lower
from bfpp.schedules.orders.validity import order_violations
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis import synthesize
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.problem.problem import HALVES, OrderingProblem
from bfpp.sim.synthesis.search.annealing import search
from tests.sim.synthesis.test_synthesis import SOME, SOON, OfStages, problems

pytestmark = pytest.mark.usefixtures("cpu_clock")


@settings(SOME, max_examples=8)
@given(problems(3, 1, 6))
def test_what_is_found_with_few_micro_batches_is_right_for_many(problem: OrderingProblem) -> None:
    """It can run, keeps to the limits, and takes as long as the engine says."""
    many = problem.of(14)
    assert many.brief.microbatches == (2 * many.layout.pp if many.layout.pp < 4 else 14)
    for each in search(many, [], 0.0):
        assert many.within(each.words)
        orders = many.orders(each.words)
        assert order_violations(orders) == []
        expected = simulate(lower(orders, many.layout, Communication()), OfStages(many)).step_time
        assert each.seconds == pytest.approx(expected, rel=1e-12)
        assert lower_bound(many).seconds <= expected * (1 + 1e-9)


@pytest.mark.parametrize(("limit", "interval"), [(4, 3.0), (2, 5.0)])
def test_more_micro_batches_take_as_many_periods_more(limit: int, interval: float) -> None:
    """About: the rank with most work has nothing to wait for, or the memory of two passes."""
    few, many = even(4, 16, limit), even(4, 400, limit)
    found, *_ = search(many, [], SOON)
    assert many.within(found.words)
    assert found.seconds <= 1.05 * search(few, [], SOON)[0].seconds + 384 * interval


def even(pp: int, microbatches: int, limit: float) -> OrderingProblem:
    return OrderingProblem(
        Layout(pp, microbatches), HALVES, np.ones((3, pp)), np.zeros((2, pp)), np.zeros(pp),
        np.ones(pp), np.full(pp, limit),
    )  # fmt: skip


def test_many_micro_batches_are_no_slower_than_the_best_rule() -> None:
    experiment = Experiment("1f1b", pp=4, microbatches=24, forward=2.0, transfer=0.5)
    found = synthesize(experiment, memory_limit=4, seconds=SOON)
    assert found.rule_seconds is not None
    assert found.bound.seconds <= found.step_time <= found.rule_seconds
    assert simulate(found.experiment.graph(), experiment.costs).step_time == found.step_time
