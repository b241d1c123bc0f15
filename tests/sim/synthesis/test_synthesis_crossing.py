"""Micro-batches that cross, where the first rank has room for few: what CP-SAT proves of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Layout
from bfpp.sim.synthesis.bounds import kept_at_least, lower_bound
from bfpp.sim.synthesis.cp_sat import exact
from bfpp.sim.synthesis.cp_sat.crossing import lap
from bfpp.sim.synthesis.cp_sat.exact import solve
from bfpp.sim.synthesis.cp_sat.window import Window
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.problem.problem import HALVES, WHOLE, OrderingProblem
from bfpp.sim.synthesis.search.annealing import replayed, search, starts_of
from bfpp.sim.synthesis.search.building_blocks import repeated_blocks
from tests.sim.synthesis.test_synthesis import SOME, least

FEW = [(2, 3, HALVES), (3, 4, WHOLE), (2, 5, WHOLE)]
"""Ranks, micro-batches and passes, of which all orders can be tried."""


@st.composite
def short_of_room(draw, sizes=FEW) -> OrderingProblem:
    """One stage a rank, with room for two micro-batches in the first."""
    pp, microbatches, operations = draw(st.sampled_from(sizes))
    number = st.integers(1, 5).map(float)
    seconds = draw(st.lists(number, min_size=len(operations) * pp, max_size=len(operations) * pp))
    transfers = np.zeros((2, pp))
    transfers[0, :-1] = draw(st.sampled_from([0.0, 0.5, 2.0]))
    transfers[1, 1:] = draw(st.sampled_from([0.0, 1.0]))
    limits = np.array([2.0, *[draw(st.sampled_from([2.0, 99.0]))] * (pp - 1)])
    table = np.array(seconds).reshape(len(operations), pp)
    return OrderingProblem(
        Layout(pp, microbatches), operations, table, transfers, np.zeros(pp), np.ones(pp), limits
    )


@settings(SOME, max_examples=12)
@given(short_of_room())
def test_what_is_proven_of_crossings_holds(problem: OrderingProblem) -> None:
    """Against all orders: of all micro-batches, and of the last ones where there are five."""
    best = least(problem)
    known = search(problem, [], 0.0)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "TOO_MANY", 0)
        proven = solve(problem, known, 4.0)[0].seconds
        patch.setattr(exact, "MOST_CROSSINGS", 3 * (problem.layout.stages + 1))
        few = solve(problem, known, 4.0)[0].seconds
    assert lower_bound(problem).seconds <= few * (1 + 1e-9)
    assert few <= proven * (1 + 1e-9)
    assert proven <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("profile", "microbatches", "least", "by"),
    [
        ((1, 1, 1, 0), 8, 41, ""),
        ((18, 18, 9, 1), 8, 695, ""),
        ((1, 1, 1, 0), 12, 41 + 2 * 9, " (last 8 micro-batches) and the memory of rank 0"),
    ],
)
def test_crossings_prove_more_than_memory_does(
    monkeypatch, profile, microbatches: int, least: float, by: str
) -> None:
    """Of half of 1F1B's activations; memory alone says 37, 649.5 and 55."""
    *passes, transfer = profile
    transfers = np.zeros((2, 4))
    transfers[0, :-1] = transfers[1, 1:] = transfer
    problem = OrderingProblem(
        Layout(4, microbatches), HALVES, np.repeat(np.array(passes, dtype=float)[:, None], 4, 1),
        transfers, np.zeros(4), np.ones(4), np.full(4, 2.0),
    )  # fmt: skip
    monkeypatch.setattr(exact, "TOO_MANY", 0)
    monkeypatch.setattr(exact, "MOST_CROSSINGS", 8 * 5)
    bound, _ = solve(problem, search(problem, [], 0.0)[0], 20.0)
    assert bound == (least, "the crossing of micro-batches" + by)


@settings(SOME, max_examples=5)
@given(
    short_of_room([(2, 12, HALVES), (3, 12, HALVES), (4, 14, WHOLE)]),
    st.integers(2, 3),
    st.booleans(),
)
def test_no_lap_is_shorter_than_is_proven(
    problem: OrderingProblem, room: int, is_exact: bool
) -> None:
    """Anywhere in orders that can run, of all micro-batches that are kept at once, or of some."""
    problem = problem.limited(np.maximum(problem.limits, room))
    if not is_exact:
        problem = replace(problem, seconds=np.sqrt(problem.seconds))
    found = [each.words for each in search(problem, [], 0.0)] + repeated_blocks(problem)
    for first, laps in ((2, 2), (room, 2), (2, 3)):
        proven, is_all = lap(problem, first, laps, 1e3, 0.5)
        assert not is_all or proven >= laps * kept_at_least(problem)[0] * 0.999
        for words in found:
            start = starts_of(problem, words)[0]
            out = np.array([start[0, each] for each in range(problem.microbatches)])
            taken = out[room * laps :] - out[: -room * laps]
            means = np.convolve(taken, np.full(first, 1 / first), "valid")
            assert proven <= means.min() * (1 + 1e-9)


@settings(SOME, max_examples=8)
@given(short_of_room([(2, 8, HALVES), (3, 8, WHOLE), (2, 9, WHOLE)]))
def test_what_is_proven_of_laps_holds(problem: OrderingProblem) -> None:
    """Against the best order, where CP-SAT finds it, or a good one."""
    known = search(problem, [], 0.0)[0]
    bound = exact._of_laps(problem, known, Deadline(4.0))
    every = range(problem.layout.pp)
    _, words = Window(problem, known, 0.0, np.inf, every).solved(2.0)
    assert bound.seconds <= replayed(problem, words or known.words) * (1 + 1e-9)
