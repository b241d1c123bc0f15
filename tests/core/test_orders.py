"""The core's orders and tables of steps, against generators, objects and the plain checker."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core import orders as core
from bfpp.schedules import InvalidConfiguration, Layout, Order, find_schedule
from bfpp.schedules.columns import NONE
from bfpp.schedules.families.controllable_memory import VHalf, VMin
from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.families.zero_bubble import ZeroBubble
from bfpp.schedules.lowering.step_table import step_table
from bfpp.schedules.orders.steps import Schedule, apart, joined
from bfpp.schedules.orders.validity import order_violations
from tests.helpers.repeated_block import orders_of
from tests.helpers.strategies import compared, layouts, orders

IN_SEQUENCES = ("gpipe", "1f1b", "depth-first", "breadth-first", "zb-h1", "zb-h2", "zb1p")


def require_equal(schedule: Schedule, layout: Layout) -> None:
    for one, other in zip(
        schedule.joined_orders(layout), joined(schedule.orders(layout)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@compared(100)
@given(st.data(), st.sampled_from(IN_SEQUENCES))
def test_rules_in_sequences_make_what_their_generators_yield(
    data: st.DataObject, name: str
) -> None:
    require_equal(*data.draw(layouts(find_schedule(name))))


class Ahead(ZeroBubble):
    """A rule with any numbers."""

    name = "ahead"
    passes: int = 1
    halves: int = 0
    length: int = 1

    def ahead(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        return self.passes + rank

    def late(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        return self.halves + rank

    def sequence(self, layout: Layout) -> int:  # noqa: ARG002
        return self.length


@compared(100)
@given(*[st.integers(low, high) for low, high in ((1, 9), (0, 9), (1, 5), (1, 3), (1, 4))])
def test_halves_come_as_late_as_they_are_told(
    passes: int, halves: int, length: int, ranks: int, microbatches: int
) -> None:
    require_equal(Ahead(passes, halves, length), Layout(ranks, microbatches))


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8])
def test_repeated_blocks_are_those_of_the_reference(name: str, ranks: int) -> None:
    schedule = find_schedule(name)
    assert isinstance(schedule, VHalf | VMin)
    block = tuple(schedule.block(ranks, rank) for rank in range(ranks))
    for microbatches in (1, 2, ranks, 2 * ranks + 1, 20):
        layout = schedule.layout(ranks, microbatches)
        found, expected = schedule.joined_orders(layout), joined(orders_of(block, microbatches))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        assert list(schedule.steps(layout, 0)) == schedule.orders(layout)[0].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_nobody_would_repeat_never_end_the_process(seed: int) -> None:
    draw = Random(seed)
    first = np.array([draw.sample(range(-1, 30), 4) for _ in range(3)], dtype=np.int32)
    with suppress(ValueError):
        core.repeat_block(first, 5)


def test_a_block_whose_legs_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed arrays for bfpp_repeat_block"):
        core.repeat_block(np.array([[0, 6, 7, 8]], dtype=np.int32), 2)


class NoneAhead(InSequences):
    """A user's rule that goes below zero."""

    name = "none-ahead"

    def ahead(self, layout: Layout, rank: int) -> int:
        return -layout.pp - rank


def test_a_warm_up_below_zero_is_none() -> None:
    require_equal(NoneAhead(), Layout(2, 4))
    assert NoneAhead().joined_orders(Layout(2, 4)).operation.tolist() == [0, 1] * 8


class Reversed(InSequences):
    """A user's rule whose steps are its own."""

    name = "reversed"

    def steps(self, layout, rank):
        for microbatch in reversed(range(layout.microbatches)):
            yield (0, rank, microbatch, False)
            yield (1, rank, microbatch, False)


def test_steps_of_a_class_of_its_own_count() -> None:
    require_equal(Reversed(), Layout(2, 4))
    assert Reversed().joined_orders(Layout(2, 4)).microbatch.tolist()[:4] == [3, 3, 2, 2]


@compared(150)
@given(st.data(), orders())
def test_what_the_core_takes_the_plain_checker_takes(
    data: st.DataObject, drawn: tuple[Layout, list[Order]]
) -> None:
    """One step in the place of another, or of another kind: sometimes it can run all the same.

    The plain checker knows no layout: what it takes, the core may refuse for that alone.
    """
    layout, found = drawn
    order = data.draw(st.sampled_from(found))
    to, of = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    if data.draw(st.booleans()):
        order[[to, of]] = order[[of, to]]
    else:
        field = data.draw(st.sampled_from(order.dtype.names))
        order[field][to] = order[field][of] + data.draw(st.integers(-1, 1))
    violations, refusal = order_violations(found), refusal_of(found, layout)
    if refusal is None:
        assert not violations
    elif not violations:
        assert any(words in refusal for words in OF_LAYOUT), refusal


OF_LAYOUT = ("outside the layout", "which rank", "both run", "slices", "no micro-batch of")


def refusal_of(found: list[Order], layout: Layout) -> str | None:
    try:
        step_table(found, layout)
    except InvalidConfiguration as error:
        return error.reason
    return None


@compared(50)
@given(orders(), st.integers(0, 2**32 - 1))
def test_orders_end_when_their_last_step_does(drawn: tuple[Layout, list[Order]], seed: int) -> None:
    """Whatever units take; the reference asks each rank in turn for its next step."""
    layout, found = drawn
    steps = step_table(found, layout)
    seconds = np.random.default_rng(seed).random((2, 4, layout.units))
    expected = [last_end(steps, each) for each in seconds]
    assert core.time_orders(steps, layout.pp, seconds).tolist() == expected


def last_end(steps: core.Steps, seconds: np.ndarray) -> float:
    ends: dict[int, float] = {NONE: 0.0}
    free, following = [0.0] * (len(steps.bounds) - 1), steps.bounds[:-1].tolist()
    while len(ends) <= len(steps.rank):
        for rank, step in enumerate(following):
            if step < steps.bounds[rank + 1] and (before := steps.before[step]) in ends:
                took = seconds[steps.operation[step], steps.unit[step]]
                free[rank] = ends[step] = max(free[rank], ends[before]) + took
                following[rank] += 1
    return max(free)


def test_malformed_arrays_are_refused() -> None:
    found = joined(find_schedule("1f1b").orders(Layout(2, 4)))
    units = np.ones(2, dtype=np.int32)
    with pytest.raises(ValueError, match="microbatch of join_orders has 15 elements, not 16"):
        core.join_orders(found._replace(microbatch=found.microbatch[:-1]), units, 4)
    with pytest.raises(ValueError, match="malformed"):
        core.join_orders(found._replace(microbatch=found.microbatch + 1), units, 4)
    with pytest.raises(ValueError, match="malformed"):
        core.find_fault(found._replace(bounds=found.bounds[::-1].copy()), units[None], 4, 1)
    with pytest.raises(TypeError, match="operation is of int64, not int8"):
        core.find_fault(found._replace(operation=found.operation.astype(int)), units[None], 4, 1)


@pytest.mark.parametrize("seed", range(40))
def test_contents_that_no_caller_would_give_never_end_the_process(seed: int) -> None:
    draw = Random(seed)
    found = joined(find_schedule("1f1b").orders(Layout(2, 4)))
    fields = [column.copy() for column in found]
    column = fields[draw.randrange(len(fields))]
    column[draw.randrange(len(column))] = draw.choice([-(2**6), -1, 0, 1, 2, 5, 100])
    units = np.ones(2, dtype=np.int32)
    columns = [each.copy() for each in step_table(apart(found), Layout(2, 4))]
    steps = columns[draw.choice([0, 1, 2, 4, 6])]
    steps[draw.randrange(len(steps))] = draw.choice([-2, -1, 2, 5, 100])
    for call in (
        lambda: core.find_fault(core.Orders(*fields), np.array([[0, 1]], np.int32), 4, 1),
        lambda: core.join_orders(core.Orders(*fields), units, 4),
        lambda: core.time_orders(core.Steps(*columns), 2, np.ones((1, 4, 2))),
    ):
        with suppress(IndexError, ValueError):
            call()
