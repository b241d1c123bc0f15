"""The schedules' orders: their own rules, their grids, and PyTorch's orders beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    InvalidConfiguration,
    Layout,
    Schedule,
    breadth_first,
    dual_pipe,
    find_schedule,
    gpipe,
    one_forward_one_backward,
    registered_schedules,
    zero_bubble_vee,
)
from bfpp.schedules.operations import Operation
from bfpp.schedules.order_validity import order_violations
from bfpp.schedules.steps import Step, backward, forward, in_units
from bfpp.schedules.torch_format import layout_of, word, write_orders
from tests.strategies import layouts

deterministic = settings(derandomize=True, deadline=None, max_examples=60)


def words(schedule: str, layout: Layout, **parameters: int) -> list[list[str]]:
    orders = find_schedule(schedule, **parameters).orders(layout)
    return [line.split(",") for line in write_orders(orders).splitlines()]


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
    (order,) = words("gpipe", Layout(1, microbatches))
    forwards = [f"0F{microbatch}" for microbatch in range(microbatches)]
    assert order == forwards + [step.replace("F", "B") for step in forwards]


@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_on_one_rank_1f1b_finishes_each_microbatch_in_turn(microbatches: int) -> None:
    (order,) = words("1f1b", Layout(1, microbatches, units_per_stage=2))
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
            row.append(word(order[0]) if ready else "")
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
    orders = [[word(step) for step in order.tolist()] for order in schedule.orders(layout)]
    assert [int(rank) for rank, _ in rows] == list(range(layout.pp))
    for (rank, row), order in zip(rows, orders, strict=True):
        head, _, tail = (_torch_words(part, rank) for part in row.partition("..."))
        assert order[: len(head)] == head
        assert order[len(order) - len(tail) :] == tail
        assert "..." in row or order == head


def _torch_words(row: str, rank: str) -> list[str]:
    drawn = re.findall(r"([FBIW])(?:(\d+)\.)?(\d+)", row)
    return [f"{stage or rank}{letter}{microbatch}" for letter, stage, microbatch in drawn]


# PyTorch's orders. Its schedules are built without processes: all that their
# orders need of a stage is a few numbers.

SIZES = range(1, 9)


@pytest.fixture(scope="module")
def pipelining() -> Any:
    return pytest.importorskip(
        "torch.distributed.pipelining.schedules",
        reason="compares with torch.distributed.pipelining",
        exc_type=ImportError,
    )


class RecordingStage(SimpleNamespace):
    """A stage without a model and without peers; it notes what it is told to run."""

    def forward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.ran.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, **_: object) -> None:
        self.ran.append(f"{self.stage_index}B{microbatch}")

    def perform_reduce_grad(self, scale: int) -> None:
        del scale

    def _nothing(self, microbatch: int) -> list[object]:
        del microbatch
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _nothing


def stage(index: int, ranks: int, stages: int) -> RecordingStage:
    nn = pytest.importorskip("torch.nn")
    return RecordingStage(
        stage_index=index,
        num_stages=stages,
        group_size=ranks,
        group_rank=0,
        is_last=index == stages - 1,
        submod=nn.Identity(),
        ran=[],
    )


def compute_words(schedule: Any) -> list[list[str]]:
    """What a schedule of PyTorch says that each rank runs, less idle slots and reductions."""
    return [
        [str(action) for action in actions if action is not None and action.is_compute_op]
        for _, actions in sorted(schedule.pipeline_order.items())
    ]


def single(pipelining: Any, name: str, ranks: int, microbatches: int) -> list[list[str]]:
    make = pipelining.get_schedule_class(name)
    return compute_words(make(stage(0, ranks, ranks), microbatches))


def looped(
    pipelining: Any, name: str, ranks: int, microbatches: int, loops: int
) -> list[list[str]]:
    make = pipelining.get_schedule_class(name)
    return staged(make, range(0, loops * ranks, ranks), ranks, microbatches)


def staged(make: Any, held: Sequence[int], ranks: int, microbatches: int) -> list[list[str]]:
    """The orders of a schedule of PyTorch whose first rank holds these stages."""
    stages = [stage(index, ranks, len(held) * ranks) for index in held]
    return compute_words(make(stages, microbatches))


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_gpipe_is_pytorchs(pipelining: Any, ranks: int) -> None:
    for microbatches in range(1, 17):
        layout = Layout(ranks, microbatches)
        assert single(pipelining, "GPipe", ranks, microbatches) == words("gpipe", layout)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_1f1b_is_pytorchs(pipelining: Any, ranks: int) -> None:
    """PyTorch refuses fewer micro-batches than ranks.

    Up to 2.13 at least, the order that it prints numbers the forward passes of
    the last rank from 1. What it runs is right: see the next test.
    """
    for microbatches in range(ranks, 17):
        ours = words("1f1b", Layout(ranks, microbatches))
        theirs = single(pipelining, "1F1B", ranks, microbatches)
        assert theirs[:-1] == ours[:-1]
        last = ranks - 1
        one_too_high = [
            f"{last}F{int(step.split('F')[1]) + 1}" if "F" in step else step for step in ours[-1]
        ]
        assert theirs[-1] == one_too_high, "PyTorch's numbering has changed: compare as it is"


@pytest.mark.torch
@pytest.mark.parametrize(("ours", "theirs"), [("gpipe", "GPipe"), ("1f1b", "1F1B")])
def test_what_pytorch_runs_is_what_we_order(pipelining: Any, ours: str, theirs: str) -> None:
    for ranks in SIZES:
        for microbatches in (ranks, ranks + 1, 3 * ranks):
            orders = words(ours, Layout(ranks, microbatches))
            for rank in range(ranks):
                recorder = stage(rank, ranks, ranks)
                schedule = pipelining.get_schedule_class(theirs)(recorder, microbatches)
                schedule._initialize_stage = lambda *_: None
                schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
                assert recorder.ran == orders[rank]


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_depth_first_is_pytorchs_interleaved_1f1b(pipelining: Any, ranks: int) -> None:
    for loops in range(1, 5):
        for microbatches in range(ranks, 5 * ranks, ranks):
            theirs = looped(pipelining, "Interleaved1F1B", ranks, microbatches, loops)
            assert theirs == words("depth-first", Layout(ranks, microbatches, loops))


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_longer_sequences_are_pytorchs_rounds(pipelining: Any, ranks: int) -> None:
    """PyTorch runs batch // ranks rounds, and longer ones where that leaves a rest."""
    for loops in range(1, 4):
        for microbatches in range(ranks, 33):
            rounds = microbatches // ranks
            if microbatches % rounds or microbatches == rounds * ranks:
                continue
            theirs = looped(pipelining, "Interleaved1F1B", ranks, microbatches, loops)
            sequence = microbatches // rounds
            ours = words("depth-first", Layout(ranks, microbatches, loops), sequence=sequence)
            assert theirs == ours


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_breadth_first_is_pytorchs_looped_bfs(pipelining: Any, ranks: int) -> None:
    """Up to 2.13 at least, PyTorch runs the micro-batches of a backward pass in reverse."""
    for loops in range(1, 5):
        for microbatches in range(1, 17):
            ours = words("breadth-first", Layout(ranks, microbatches, loops))
            theirs = looped(pipelining, "LoopedBFS", ranks, microbatches, loops)
            in_reverse = [_with_backwards_reversed(order, microbatches) for order in ours]
            assert theirs == in_reverse, "PyTorch's backward order has changed: compare as it is"


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_zb1p_is_pytorchs_interleaved_zero_bubble(pipelining: Any, ranks: int) -> None:
    for loops in range(1, 5):
        for microbatches in range(1, 4 * ranks + 1):
            layout = find_schedule("zb1p").layout(ranks, microbatches, loops)
            if find_schedule("zb1p").can_run(layout):
                theirs = looped(pipelining, "InterleavedZeroBubble", ranks, microbatches, loops)
                assert theirs == words("zb1p", layout)
            else:
                with pytest.raises(ValueError, match="multiple of the number of rounds"):
                    looped(pipelining, "InterleavedZeroBubble", ranks, microbatches, loops)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_zb_v_is_pytorchs(pipelining: Any, ranks: int) -> None:
    make = pipelining.get_schedule_class("ZBVZeroBubble")
    for microbatches in range(1, 4 * ranks + 1):
        theirs = staged(make, (0, 2 * ranks - 1), ranks, microbatches)
        assert theirs == words("zb-v", find_schedule("zb-v").layout(ranks, microbatches))


@pytest.mark.torch
@pytest.mark.parametrize("ranks", range(2, 9))
def test_dualpipe_v_is_pytorchs(pipelining: Any, ranks: int) -> None:
    """Blocks and all; PyTorch runs it from twice as many micro-batches as ranks on."""
    make = pipelining.get_schedule_class("DualPipeV")
    for microbatches in range(2 * ranks, 5 * ranks + 2):
        theirs = staged(make, (0, 2 * ranks - 1), ranks, microbatches)
        assert theirs == words(
            "dualpipe-v", find_schedule("dualpipe-v").layout(ranks, microbatches)
        )


@pytest.mark.parametrize("ranks", SIZES)
def test_zb_h1_is_zb1p_without_loops(ranks: int) -> None:
    for microbatches in range(ranks, 4 * ranks, ranks):
        layout = Layout(ranks, microbatches)
        assert words("zb-h1", layout) == words("zb1p", layout)


@pytest.mark.parametrize(("lead", "name"), [(1, "zb-h1"), (2, "zb-h2")])
def test_zb_bf_without_loops_is_zb_h1_or_zb_h2(lead: int, name: str) -> None:
    for ranks in SIZES:
        for microbatches in (2 * ranks - 1, 4 * ranks):
            layout = Layout(ranks, microbatches)
            expected = [order.tolist() for order in find_schedule(name).orders(layout)]
            orders = find_schedule("zb-bf", lead=lead).orders(layout)
            assert [order.tolist() for order in orders] == expected


def _with_backwards_reversed(order: list[str], microbatches: int) -> list[str]:
    middle = len(order) // 2
    backwards = order[middle:]
    runs = [backwards[at : at + microbatches] for at in range(0, middle, microbatches)]
    return order[:middle] + [step for run in runs for step in reversed(run)]


@pytest.mark.parametrize("step", [(0, 0.5, 0, False), (0, 0, 0), (0, 2**40, 0, False)])
def test_a_schedule_that_yields_what_is_no_step_is_refused(step):
    class Wrong(Schedule):
        name = "wrong"

        def steps(self, layout, rank):  # noqa: ARG002
            yield step

    with pytest.raises(InvalidConfiguration, match="yields what is not a step"):
        Wrong().orders(Layout(1, 1))
