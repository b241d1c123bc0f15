"""The compiled lowering makes what the other one does, array by array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import Communication, InvalidConfiguration, Layout, Order, TaskGraph
from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.lowering import lower_steps
from bfpp.schedules.lowering.step_table import Steps, step_table
from bfpp.sim.engines import compiled_lowering
from bfpp.sim.engines.loops import compiling
from bfpp.sim.experiment.experiment import Experiment
from tests.helpers.strategies import (
    Configuration,
    communications,
    compared,
    configurations,
    orders,
    that_fits,
)

SOME = compared(25)


@pytest.fixture(scope="module", autouse=True)
def compiled_already():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "COMPILE_FROM", 0)
        yield


def require_equal_steps(steps: Steps, found: list[Order], layout: Layout) -> None:
    for name, expected in step_table(found, layout)._asdict().items():
        np.testing.assert_array_equal(getattr(steps, name), expected, name)


def require_same(found: list[Order], layout: Layout, communication: Communication) -> None:
    by_columns = step_table(found, layout)
    steps = compiled_lowering.join(found, layout)
    require_equal_steps(steps, found, layout)
    expected = lower_steps(by_columns, layout, communication, "one")
    graph = compiled_lowering.lower_steps(steps, layout, communication, "one")
    require_equal(graph, expected)


def require_equal(graph: TaskGraph, expected: TaskGraph) -> None:
    assert graph.lanes == expected.lanes
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(graph, name), getattr(expected, name), name)
        assert getattr(graph, name).dtype == getattr(expected, name).dtype
    assert graph.digest == expected.digest


@SOME
@given(configurations())
def test_every_schedule(drawn: Configuration) -> None:
    schedule, layout, communication = drawn
    require_same(schedule.orders(layout), layout, communication)
    require_equal_steps(
        compiled_lowering.steps_of(schedule, layout), schedule.orders(layout), layout
    )


class NoneAhead(InSequences):
    """A rule of a user's own that goes below zero."""

    def ahead(self, layout: Layout, rank: int) -> int:
        return -layout.pp - rank


def test_a_rule_of_ones_own() -> None:
    schedule, layout = NoneAhead(), Layout(2, 4)
    orders = schedule.orders(layout)
    assert orders[0]["operation"].tolist() == [0, 1] * 4
    require_equal_steps(compiled_lowering.steps_of(schedule, layout), orders, layout)


@SOME
@given(st.data(), orders())
def test_orders_that_no_schedule_would_think_of(
    data: st.DataObject, drawn: tuple[Layout, list[Order]]
) -> None:
    layout, found = drawn
    communication = that_fits(layout, data.draw(communications()), found)
    require_same(found, layout, communication)


@SOME
@given(st.data(), orders())
def test_what_cannot_run_is_refused_in_the_same_words(
    data: st.DataObject, drawn: tuple[Layout, list[Order]]
) -> None:
    """One step in the place of another, or of another kind: sometimes it can run all the same."""
    layout, found = drawn
    order = data.draw(st.sampled_from(found))
    to, of = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    if data.draw(st.booleans()):
        order[[to, of]] = order[[of, to]]
    else:
        field = data.draw(st.sampled_from(order.dtype.names))
        order[field][to] = order[field][of] + data.draw(st.integers(-1, 1))
    if (reason := refusal(step_table, found, layout)) is None:
        require_same(found, layout, Communication())
    else:
        assert refusal(compiled_lowering.join, found, layout) == reason


EXPERIMENTS = [
    Experiment("breadth-first", pp=4, loops=2, microbatches=8, sharding="full", run_length=2),
    Experiment("1f1b", pp=4, microbatches=8, sharding="partial", dp_overlap=False),
    Experiment("1f1b", pp=4, microbatches=8, offload=2, offload_ahead=2),
    Experiment("depth-first", pp=4, loops=2, microbatches=8, p2p="batched", eager=True),
    Experiment("1f1b", pp=4, microbatches=8, p2p="fifo"),
    Experiment("zb-h1", pp=4, microbatches=8, tied_embeddings=True, pp_overlap=False),
    Experiment("chimera", pp=4, microbatches=8),
    Experiment("dualpipe", pp=4, microbatches=8, sharding="full"),
    Experiment("dualpipev", pp=4, microbatches=8),
]
"""Of every mechanism: offload, queues of transfers, halves, copies of stages, blocks."""


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=repr)
def test_experiments(experiment: Experiment) -> None:
    graph, expected = experiment.graph(), experiment.configuration.graph()
    assert graph.schedule == expected.schedule
    require_equal(graph, expected)


def refusal(
    join: Callable[[list[Order], Layout], Steps], found: list[Order], layout: Layout
) -> str | None:
    try:
        join(found, layout)
    except InvalidConfiguration as error:
        return str(error)
    return None
