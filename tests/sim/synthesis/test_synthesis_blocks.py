"""Building blocks of one micro-batch, repeated every period."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.schedules import Layout, find_schedule
from bfpp.schedules.orders.validity import order_violations
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.problem.problem import HALVES, OrderingProblem
from bfpp.sim.synthesis.search.annealing import replayed
from bfpp.sim.synthesis.search.building_blocks import repeated_blocks
from tests.sim.synthesis.test_synthesis import SOME, problems


@settings(SOME, max_examples=15)
@given(problems(3, 4))
def test_repeated_blocks_can_run_within_the_limits(problem: OrderingProblem) -> None:
    """A last resort is always there: one micro-batch after the other."""
    found = repeated_blocks(problem)
    assert found
    for words in found:
        assert problem.within(words)
        assert order_violations(problem.orders(words)) == []
        assert lower_bound(problem).seconds <= replayed(problem, words) * (1 + 1e-9) < np.inf


def on_a_v(pp: int, microbatches: int, limit: float, passes: tuple[float, ...]) -> OrderingProblem:
    down = tuple(range(pp))
    layout = Layout(pp, microbatches, placement=down + down[::-1])
    seconds = np.repeat(np.array(passes)[:, None], 2 * pp, axis=1)
    return OrderingProblem(
        layout, HALVES, seconds, np.zeros((2, 2 * pp)), np.zeros(pp),
        np.full(2 * pp, 0.5), np.full(pp, limit),
    )  # fmt: skip


def best(problem: OrderingProblem) -> float:
    return min(replayed(problem, words) for words in repeated_blocks(problem))


def of_v_min(problem: OrderingProblem) -> float:
    words = problem.words(find_schedule("v-min").orders(problem.layout))
    assert words is not None
    assert problem.within(words)
    return replayed(problem, words)


@pytest.mark.parametrize("pp", [4, 6, 8])
def test_equal_passes_on_a_v_repeat_as_often_as_their_work_allows(pp: int) -> None:
    """In V-Min's memory."""
    few, many = (on_a_v(pp, times * pp, (pp + 4) // 3, (1.0, 1.0, 1.0)) for times in (3, 30))
    assert best(many) - best(few) == of_v_min(many) - of_v_min(few) == 27 * pp * 6


def test_other_passes_repeat_sooner_than_in_v_min() -> None:
    few, many = (on_a_v(4, count, 2.0, (10.0, 12.0, 8.0)) for count in (12, 112))
    assert best(many) - best(few) < 0.96 * (of_v_min(many) - of_v_min(few))
