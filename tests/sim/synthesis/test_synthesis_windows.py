"""Windows of orders that CP-SAT solves: of a time, and of some ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Layout
from bfpp.sim.synthesis.cp_sat import exact
from bfpp.sim.synthesis.cp_sat.exact import improved, solve, stretches
from bfpp.sim.synthesis.cp_sat.window import Window
from bfpp.sim.synthesis.problem.problem import HALVES, OrderingProblem, Words
from bfpp.sim.synthesis.search.annealing import TimedWords, replayed, search
from tests.sim.synthesis.test_synthesis import SOME, problems, rows_of


@pytest.mark.parametrize("most_free", [12, 1000])
def test_windows_of_an_order_are_improved(monkeypatch, most_free: int) -> None:
    """From one micro-batch after the other; in a window that is the whole step, to the best."""
    problem = OrderingProblem(
        Layout(2, 4), HALVES, np.array([[1.0, 2], [2, 1], [1, 1]]), np.eye(2) / 2,
        np.zeros(2), np.ones(2), np.full(2, 2.0),
    )  # fmt: skip
    words = [[0, 2, 4] * 4, [1, 3, 5] * 4]
    known = TimedWords(replayed(problem, words), words)
    monkeypatch.setattr(exact, "MOST_FREE", most_free)
    found = improved(problem, known, 5.0, lambda: 0.0)
    assert problem.within(found.words)
    assert replayed(problem, found.words) == found.seconds < known.seconds
    if most_free == 1000:
        least = solve(problem, known, 5.0)[0].seconds
        assert found.seconds == least
        made = list[float]()
        monkeypatch.setattr(exact, "Window", lambda *given: made.append(given[2]) or Window(*given))
        assert improved(problem, known, 5.0, lambda: least).seconds == least
        assert made == [0.0], "no window after the bound is reached"


def one_by_one(problem: OrderingProblem) -> Words:
    """One micro-batch after the other, each weight half right after its input half."""
    codes = np.arange(problem.seconds.size).reshape(problem.seconds.shape)
    passes = [*codes[0], *codes[1:, ::-1].T.ravel()]
    rank = problem.arrays.rank
    return [
        [int(code) for code in passes if rank[code] == here] * problem.microbatches
        for here in range(problem.layout.pp)
    ]


@settings(SOME, max_examples=20)
@given(problems(3, 3), st.booleans(), st.sampled_from([(0.0, np.inf), (0.2, 0.7)]))
def test_a_known_order_is_a_solution_of_its_window(
    problem: OrderingProblem, dispatched: bool, share: tuple[float, float]
) -> None:
    """So no bound is above an order that can run."""
    words = search(problem, [], 0.0)[0].words if dispatched else one_by_one(problem)
    known = TimedWords.of(problem, words)
    begin, until = (each * known.seconds for each in share)
    window = Window(problem, known, begin, until, range(problem.layout.pp))
    for each, start in window.start.items():
        window.model.add(start == window.grain.whole(window.known[each]))
    bound, found = window.solved(5.0)
    assert found == words
    assert bound <= known.seconds * (1 + 1e-9)


@settings(SOME, max_examples=15)
@given(problems(2, 2, 2), st.integers(0, 1), st.integers(0, 99))
def test_a_rank_alone_gets_its_best_order(problem: OrderingProblem, free: int, seed: int) -> None:
    """Against all orders of it, where the other keeps its own."""
    rank = free % problem.layout.pp
    known = search(problem, [], 0.0, seed=seed)[-1]
    _, words = Window(problem, known, 0.0, np.inf, [rank]).solved(5.0)
    assert words
    assert [word for each, word in enumerate(words) if each != rank] == [
        word for each, word in enumerate(known.words) if each != rank
    ]
    orders = (
        [*known.words[:rank], row, *known.words[rank + 1 :]] for row in rows_of(problem, rank)
    )
    best = min(replayed(problem, each) for each in orders if problem.within(each))
    assert replayed(problem, words) == pytest.approx(best, rel=0.01)


def test_two_ranks_are_free_for_longer_than_all(monkeypatch) -> None:
    """Of 48 passes, 24 at once: half the step of all ranks, the whole step of two."""
    problem = OrderingProblem(
        Layout(4, 4), HALVES, np.ones((3, 4)), np.zeros((2, 4)), np.zeros(4), np.ones(4),
        np.full(4, 4.0),
    )  # fmt: skip
    monkeypatch.setattr(exact, "MOST_FREE", 24)
    begins, untils, ranks = zip(*stretches(problem), strict=True)
    pairs = [each for each in ranks if len(each) == 2]
    assert pairs == [[0, 1]] * 2 + [[1, 2]] * 2 + [[2, 3]] * 2
    assert list(zip(begins, untils, ranks, strict=True))[:4] == [
        (begin / 4, begin / 4 + 0.5, [0, 1, 2, 3]) for begin in range(4)
    ]
    assert (0.0, 1.0, [1, 2]) in zip(begins, untils, ranks, strict=True)
