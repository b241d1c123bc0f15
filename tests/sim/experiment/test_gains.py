"""Gains of a step without one of its waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from bfpp.schedules import Communication, Layout, Sharding, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.measured.wait_gains import waits_with_gains
from bfpp.sim.engines.engines import simulate
from bfpp.traces.explain.causes import Causes
from tests.helpers.strategies import graphs

COSTS = AbstractCosts(forward=2, backward=3, transfer=1, gather=2, reduce=1)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(graphs())
def test_no_wait_costs_more_than_it_lasts(graph):
    causes = Causes(simulate(graph, COSTS))
    for wait, known in zip(waits_with_gains(causes), causes.waits, strict=True):
        assert (wait.begin, wait.end, wait.seconds) == (known.begin, known.end, known.seconds)
        if wait.task >= 0:
            assert 0 <= wait.gain <= wait.end - wait.begin + 1e-9
        else:
            assert wait.gain is None


def test_gains_by_hand():
    """Rank 0 runs F0 F1 until 2, waits for B0 until 16 and, after it, from 18 to 20 for B1.

    The gradient of micro-batch 1 comes at 20 whatever B0 does: the long wait
    gains nothing, the short one all of it.
    """
    graph = build_graph("gpipe", Layout(2, 2))
    causes = Causes(simulate(graph, AbstractCosts(transfer=4)))
    gains = [
        (wait.begin, wait.end, wait.gain)
        for wait in waits_with_gains(causes)
        if wait.rank == 0 and wait.task >= 0
    ]
    assert gains == [(2, 16, 0), (18, 20, 2)]


def test_blocking_transfers_can_be_excused():
    graph = build_graph("gpipe", Layout(2, 2), Communication(pp_overlap=False))
    causes = Causes(simulate(graph, AbstractCosts(transfer=1)))
    waits = [wait for wait in waits_with_gains(causes) if wait.rank == 1 and wait.task >= 0]
    assert waits[0].begin == 0
    assert waits[0].gain == pytest.approx(1)


def test_a_blocking_transfer_gains_no_more_on_one_rank_than_it_takes_there():
    layout = Layout(2, 3)
    graph = build_graph("gpipe", layout, Communication(Sharding.FULL, False, False))
    for wait in waits_with_gains(Causes(simulate(graph, COSTS))):
        assert wait.gain is None or wait.gain <= wait.end - wait.begin


def test_only_the_longest_are_looked_into():
    graph = build_graph("1f1b", Layout(4, 8))
    causes = Causes(simulate(graph, COSTS))
    found = waits_with_gains(causes, most=3)
    known = [wait for wait in found if wait.gain is not None]
    assert len(known) <= 3
    shortest = min(wait.end - wait.begin for wait in known)
    assert shortest >= sorted(wait.end - wait.begin for wait in found)[-3]
