"""The schedules' orders: their own rules, and their grids."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    InvalidConfiguration,
    Layout,
    Schedule,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.families import (
    breadth_first,
    dual_pipe,
    gpipe,
    one_forward_one_backward,
    zero_bubble_vee,
)
from bfpp.schedules.formats.torch_csv import layout_of
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.actions import action
from bfpp.schedules.orders.steps import Step, backward, forward, in_units
from bfpp.schedules.orders.validity import order_violations
from tests.helpers.orders import action_rows
from tests.helpers.strategies import layouts

deterministic = settings(derandomize=True, deadline=None, max_examples=60)


# Rules that every schedule keeps


@pytest.mark.parametrize("name", registered_schedules())
@deterministic
@given(data=st.data())
def test_every_stage_runs_every_microbatch_once_each_way(name: str, data: st.DataObject) -> None:
    schedule, layout = data.draw(layouts(find_schedule(name), ranks=6))
    orders = schedule.orders(layout)
    for rank, order in enumerate(orders):
        times = Counter(step[:3] for step in order.tolist())
        assert set(times.values()) == {1}
        for stage in layout.stages_of(rank):
            for microbatch in range(layout.microbatches):
                kinds = [kind for kind in range(4) if times[kind, stage, microbatch]]
                placement = (layout.placement, *layout.copies)[schedule.copy_of(layout, microbatch)]
                assert kinds in ([[0, 1], [0, 2, 3]] if placement[stage] == rank else [[]])
        assert {stage for _, stage, _ in times} == set(layout.stages_of(rank))
    assert order_violations(orders) == []
    unsaid = {"units_per_stage": layout.units_per_stage, "slices": layout.slices}
    assert replace(layout_of(orders), **unsaid) == layout


@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_on_one_rank_gpipe_accumulates_all_forwards_first(microbatches: int) -> None:
    (order,) = action_rows("gpipe", Layout(1, microbatches))
    forwards = [f"0F{microbatch}" for microbatch in range(microbatches)]
    assert order == forwards + [step.replace("F", "B") for step in forwards]


@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_on_one_rank_1f1b_finishes_each_microbatch_in_turn(microbatches: int) -> None:
    (order,) = action_rows("1f1b", Layout(1, microbatches, units_per_stage=2))
    assert order == [f"{step}{m}" for m in range(microbatches) for step in ("0F", "0B")]


def test_depth_first_refuses_a_sequence_that_is_not_full() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        find_schedule("depth-first").orders(Layout(4, 6, 2))
    assert str(refused.value) == (
        "microbatches: 6 in sequences of 4 leave 2 for the last, which cannot fill 4 ranks"
    )


def test_depth_first_refuses_a_sequence_shorter_than_the_pipeline() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        find_schedule("depth-first", sequence=3).orders(Layout(4, 6, 2))
    assert str(refused.value) == (
        "sequence: a sequence of 3 micro-batches cannot fill 4 ranks; depth-first needs at least 4"
    )


@pytest.mark.parametrize("name", registered_schedules())
def test_a_parameter_is_refused_where_it_would_mean_nothing(name: str) -> None:
    if "sequence" in find_schedule(name).parameters:
        assert find_schedule(name, sequence=4).parameters["sequence"] == 4
        return
    with pytest.raises(InvalidConfiguration, match=f"sequence: {name} has no such parameter"):
        find_schedule(name, sequence=4)


@deterministic
@given(
    pp=st.integers(1, 4), loops=st.integers(1, 3), units=st.integers(1, 3), count=st.integers(1, 3)
)
def test_units_run_in_turn_forward_and_in_reverse_backward(
    pp: int, loops: int, units: int, count: int
) -> None:
    layout = Layout(pp, count, loops, units_per_stage=units)
    for order in find_schedule("breadth-first").orders(layout):
        expected = [
            (operation, stage * units + (unit if operation == 0 else units - 1 - unit), *rest)
            for operation, stage, *rest in order.tolist()
            for unit in range(units)
        ]
        assert in_units(order, layout).tolist() == expected


# Grids


def producers(step: Step) -> list[Step]:
    operation, stage, microbatch, _ = step
    if operation == Operation.FORWARD:
        return [forward(stage - 1, microbatch)]
    return [forward(stage, microbatch), backward(stage + 1, microbatch)]


def grid(schedule: str, layout: Layout) -> str:
    """The orders in time, every step one slot long and every transfer instant."""
    orders = [order.tolist() for order in find_schedule(schedule).orders(layout)]
    exists = {step for order in orders for step in order}
    rows: list[list[str]] = [[] for _ in orders]
    done: set[Step] = set()
    while any(orders):
        slot: set[Step] = set()
        for row, order in zip(rows, orders, strict=True):
            ready = bool(order) and not (set(producers(order[0])) & exists) - done
            row.append(action(order[0]) if ready else "")
            slot.update([order.pop(0)] if ready else [])
        done |= slot
    return "\n".join("".join(f"{cell:4}" for cell in row).rstrip() for row in rows)


GRIDS = {
    ("gpipe", Layout(3, 3)): """
0F0 0F1 0F2                 0B0 0B1 0B2
    1F0 1F1 1F2         1B0 1B1 1B2
        2F0 2F1 2F2 2B0 2B1 2B2
""",
    ("1f1b", Layout(3, 4)): """
0F0 0F1 0F2         0B0 0F3 0B1     0B2     0B3
    1F0 1F1     1B0 1F2 1B1 1F3 1B2     1B3
        2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
""",
    ("depth-first", Layout(2, 4, 2)): """
0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
    1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
""",
    ("zb-h1", Layout(3, 4)): """
0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
    1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
        2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
""",
    ("zb-h2", Layout(2, 4)): """
0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
    1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
""",
    ("bf-split", Layout(2, 2, 2)): """
0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
    1F0 1F1 3F0 3F1 3I0 3W0 3I1 3W1 1I0 1W0 1I1 1W1
""",
    ("zb-bf", Layout(2, 4, 2)): """
0F0 0F1 0F2 0F3 2F0 2F1 2F2 2I0 2W0 2F3 2I1 2W1 2I2 2W2 2I3 2W3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
    1F0 1F1 1F2 1F3 3F0 3I0 3F1 3I1 3F2 3I2 3W0 3F3 3I3 3W1 1I0 1I1 3W2 3W3 1I2 1W0 1I3 1W1 1W2 1W3
""",
    ("breadth-first", Layout(2, 3, 2)): """
0F0 0F1 0F2 2F0 2F1 2F2         2B0 2B1 2B2 0B0 0B1 0B2
    1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2
""",
}


@pytest.mark.parametrize(("name", "layout"), GRIDS, ids=str)
def test_grids(name: str, layout: Layout) -> None:
    assert "\n" + grid(name, layout) + "\n" == GRIDS[name, layout]


@pytest.mark.parametrize(
    ("module", "schedule", "layout"),
    [
        (gpipe, gpipe.SCHEDULE, Layout(4, 4)),
        (one_forward_one_backward, one_forward_one_backward.SCHEDULE, Layout(4, 8)),
        (breadth_first, breadth_first.SCHEDULE, Layout(2, 3, 2)),
        (zero_bubble_vee, zero_bubble_vee.SCHEDULE, Layout(2, 4, placement=(0, 1, 1, 0))),
        (dual_pipe, dual_pipe.DUAL_PIPE_V, Layout(2, 4, placement=(0, 1, 1, 0))),
    ],
)
def test_grids_in_the_docstrings_are_right(
    module: ModuleType, schedule: Schedule, layout: Layout
) -> None:
    rows = re.findall(r"^ *rank (\d+) +(.*)$", module.__doc__ or "", re.MULTILINE)
    orders = [[action(step) for step in order.tolist()] for order in schedule.orders(layout)]
    assert [int(rank) for rank, _ in rows] == list(range(layout.pp))
    for (rank, row), order in zip(rows, orders, strict=True):
        head, _, tail = (_torch_words(part, rank) for part in row.partition("..."))
        assert order[: len(head)] == head
        assert order[len(order) - len(tail) :] == tail
        assert "..." in row or order == head


def _torch_words(row: str, rank: str) -> list[str]:
    drawn = re.findall(r"([FBIW])(?:(\d+)\.)?(\d+)", row)
    return [f"{stage or rank}{letter}{microbatch}" for letter, stage, microbatch in drawn]


@pytest.mark.parametrize("ranks", range(1, 9))
def test_zb_h1_is_zb1p_without_loops(ranks: int) -> None:
    for microbatches in range(ranks, 4 * ranks, ranks):
        layout = Layout(ranks, microbatches)
        assert action_rows("zb-h1", layout) == action_rows("zb1p", layout)


@pytest.mark.parametrize(("lead", "name"), [(1, "zb-h1"), (2, "zb-h2")])
def test_zb_bf_without_loops_is_zb_h1_or_zb_h2(lead: int, name: str) -> None:
    for ranks in range(1, 9):
        for microbatches in (2 * ranks - 1, 4 * ranks):
            layout = Layout(ranks, microbatches)
            expected = [order.tolist() for order in find_schedule(name).orders(layout)]
            orders = find_schedule("zb-bf", lead=lead).orders(layout)
            assert [order.tolist() for order in orders] == expected


@pytest.mark.parametrize("step", [(0, 0.5, 0, False), (0, 0, 0), (0, 2**40, 0, False)])
def test_a_schedule_that_yields_what_is_no_step_is_refused(step):
    class Wrong(Schedule):
        name = "wrong"

        def steps(self, layout, rank):  # noqa: ARG002
            yield step

    with pytest.raises(InvalidConfiguration, match="yields what is not a step"):
        Wrong().orders(Layout(1, 1))
