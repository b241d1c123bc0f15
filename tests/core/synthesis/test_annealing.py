"""Replay and annealing of words, against all passes replayed anew in plain Python."""

from __future__ import annotations

from ctypes import ArgumentError
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.synthesis.annealing import anneal, replay_words
from bfpp.schedules import Layout
from bfpp.sim.synthesis.problem.problem import WHOLE, OrderingProblem
from bfpp.sim.synthesis.search.annealing import search, table_of
from tests.helpers import reference_annealing as reference
from tests.sim.synthesis.test_synthesis import SOME, problems

SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def uneven(draw) -> OrderingProblem:
    """A problem whose times have rounding errors, or are whole numbers with many ties."""
    problem = draw(problems(spans=draw(st.booleans())))
    factor = draw(st.sampled_from([1.0, 0.7, 1e-3]))
    return replace(
        problem, seconds=problem.seconds * factor, transfers=problem.transfers * factor / 3
    )


def words_of(problem: OrderingProblem) -> list[list[int]]:
    return search(problem, [], 0.0)[0].words


@SOME
@given(uneven(), SEEDS)
def test_annealing_takes_the_steps_of_its_reference(problem: OrderingProblem, seed: int) -> None:
    """To the last bit: it draws NumPy's numbers, and what it does not replay anew is as it was."""
    words = words_of(problem)
    table, lengths = table_of(problem, words)
    hot = 0.3 * float(problem.seconds.mean())
    taken = anneal(problem.arrays, table, lengths, 40, hot, hot / 20, seed)
    best, expected = reference.anneal(problem.arrays, words, 40, hot, hot / 20, seed)
    assert taken == best
    assert [word[:length].tolist() for word, length in zip(table, lengths, strict=True)] == expected


@SOME
@given(uneven(), st.randoms(use_true_random=False))
def test_passes_start_as_soon_as_they_may(problem: OrderingProblem, chance: Random) -> None:
    """Or never: a few passes of each rank are shuffled, and many such words cannot run."""
    words = words_of(problem)
    for word in words:
        at = chance.randrange(len(word))
        some = word[at : at + 3]
        word[at : at + 3] = chance.sample(some, len(some))
    table, lengths = table_of(problem, words)
    start = np.full(table.shape, -1.0)
    expected = reference.replay(problem.arrays, words)
    assert replay_words(problem.arrays, table, lengths, start) == expected.seconds
    assert {place: start[place] for place in expected.start} == expected.start


def on_two_ranks() -> OrderingProblem:
    return OrderingProblem(
        Layout(2, 2), WHOLE, np.ones((2, 2)), np.zeros((2, 2)), np.zeros(2), np.ones(2),
        np.full(2, 2.0),
    )  # fmt: skip


def test_words_that_cannot_run_are_left() -> None:
    problem = on_two_ranks()
    table, lengths = table_of(problem, [[2, 0, 0, 2], [1, 3, 1, 3]])
    before = table.copy()
    assert anneal(problem.arrays, table, lengths, 9, 1.0, 0.1, 1) == inf
    assert table.tolist() == before.tolist()


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ([[0, 0, 2, 2], [1, 3, 1, 4]], 4),
        ([[0, 0, 2, 2], [1, 3, 1, -1]], 4),
        ([[0, 0, 0, 2], [1, 3, 1, 3]], 4),
        ([[0, 0, 1, 2], [1, 3, 2, 3]], 4),
        ([[0, 0, 2, 2], [1, 3, 1, 3]], 5),
        ([[0, 0, 2, 2], [1, 3, 1, 3]], 0),
    ],
)
def test_other_passes_than_the_problem_s_are_refused(words: list[list[int]], length: int) -> None:
    """No pass, more often than there are micro-batches, on another rank; more than there are."""
    problem = on_two_ranks()
    table, lengths = table_of(problem, words)
    lengths[1] = length
    with pytest.raises(ValueError, match="malformed"):
        replay_words(problem.arrays, table, lengths, np.zeros(table.shape))
    with pytest.raises(ValueError, match="malformed"):
        anneal(problem.arrays, table, lengths, 9, 1.0, 0.1, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 2), ("channel", 4), ("channel", -2), ("stage", 2), ("first", -1), ("first", 3)],
)
def test_problems_with_indices_out_of_range_are_refused(field: str, value: int) -> None:
    problem = on_two_ranks()
    table, lengths = table_of(problem, [[0, 0, 2, 2], [1, 3, 1, 3]])
    array = getattr(problem.arrays, field).copy()
    array[1] = value
    with pytest.raises(ValueError, match="malformed"):
        replay_words(
            problem.arrays._replace(**{field: array}), table, lengths, np.zeros(table.shape)
        )


def test_arrays_of_other_lengths_are_refused() -> None:
    problem = on_two_ranks()
    table, lengths = table_of(problem, [[0, 0, 2, 2], [1, 3, 1, 3]])
    with pytest.raises(ValueError, match="start of replay_words has 2 elements, not 8"):
        replay_words(problem.arrays, table, lengths, np.zeros(2))
    with pytest.raises((TypeError, ArgumentError), match="words is of int64, not int32"):
        replay_words(problem.arrays, table.astype(np.int64), lengths, np.zeros(8))
