"""Orders by a rule in numbers, against their reference in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.core.synthesis.dispatching import PACES, dispatch
from bfpp.sim.synthesis.problem.problem import OrderingProblem
from bfpp.sim.synthesis.search.annealing import table_of
from tests.core.synthesis.test_annealing import SEEDS, on_two_ranks, uneven
from tests.helpers.reference_dispatch import best_dispatch
from tests.sim.synthesis.test_synthesis import SOME


@settings(SOME, max_examples=40)
@given(uneven(), SEEDS)
def test_the_best_of_varied_rules_is_that_of_the_reference(
    problem: OrderingProblem, seed: int
) -> None:
    """To the last bit: the numbers of the rule, its words, and how long they take."""
    arrays, random = problem.arrays, np.random.default_rng(seed)
    scale = float(problem.seconds.mean())
    parts = [
        scale * random.uniform(-1, 2, arrays.seconds.size),
        random.uniform(0.5, 2, arrays.ranks),
    ]
    rule = np.concatenate([*parts, random.integers(0, 2, arrays.stages + PACES)])
    expected, words, numbers = best_dispatch(arrays, rule, 6, scale, seed)
    table, lengths = table_of(problem, None)
    assert dispatch(arrays, rule, table, 6, scale, seed) == expected
    assert rule.tolist() == numbers.tolist()
    if expected < np.inf:
        found = [word[:length].tolist() for word, length in zip(table, lengths, strict=True)]
        assert found == words


def test_words_without_room_for_all_passes_are_refused() -> None:
    problem = on_two_ranks()
    rule = np.zeros(4 + 2 + 2 + PACES)
    with pytest.raises(ValueError, match="malformed"):
        dispatch(problem.arrays, rule, np.zeros((2, 3), dtype=np.int32), 1, 1.0, 0)
    with pytest.raises(ValueError, match="rule of dispatch has 9 elements, not 10"):
        dispatch(problem.arrays, rule[1:], np.zeros((2, 4), dtype=np.int32), 1, 1.0, 0)


def test_ranks_without_stages_are_refused() -> None:
    arrays = on_two_ranks().arrays._replace(first=np.array([0, 0, 2], dtype=np.int32))
    with pytest.raises(ValueError, match="malformed"):
        dispatch(arrays, np.zeros(10), np.zeros((2, 8), dtype=np.int32), 1, 1.0, 0)
