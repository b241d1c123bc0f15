"""Orders as PyTorch's words, and the checks that such a file goes through."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Layout, find_schedule
from bfpp.schedules.formats.torch_csv import MalformedOrders, layout_of, read_orders, write_orders
from bfpp.schedules.orders.actions import action
from bfpp.schedules.orders.steps import forward
from bfpp.schedules.orders.validity import order_violations
from tests.helpers.orders import as_lists, as_orders

deterministic = settings(derandomize=True, deadline=None, max_examples=150)

NUMBERS = st.integers(0, 2**31 - 1)
STEPS = st.tuples(st.integers(0, 3), NUMBERS, NUMBERS, st.just(False))


# Writing and reading


def test_one_line_a_rank_one_word_a_step() -> None:
    orders = find_schedule("1f1b").orders(Layout(2, 2))
    assert write_orders(orders) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@deterministic
@given(ranks=st.lists(st.lists(STEPS, max_size=6), max_size=4), last=st.lists(STEPS, min_size=1))
def test_reading_gives_back_what_was_written(ranks: list[list[Any]], last: list[Any]) -> None:
    assert as_lists(read_orders(write_orders(as_orders([*ranks, last])))) == [*ranks, last]


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0I0,0W0\n1F0,1B0",
        "0F0,0I0,0W0\r\n1F0,1B0\r\n\r\n \n",
        "0F0,0I0,0W0\r1F0,1B0\r",
        "\t0F0 , 0I0,0W0 \n 1F0,1B0\n",
        "0F0,,0I0,0W0,,\n, ,1F0,1B0\n",
        '"0F0","0I0",0W0\n"1F0","1B0"\n',
        "\ufeff0F0,0I0,0W0\n1F0,1B0\n",
        "000F0,0I00,00W0\n01F0,1B0\n",
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD",
        b"0F0,0I0,0W0\n1F0,1B0\n",
    ],
)
def test_reading_is_lenient_where_the_meaning_is_plain(text: str | bytes) -> None:
    assert write_orders(read_orders(text)) == "0F0,0I0,0W0\n1F0,1B0\n"


def test_a_blank_line_is_a_rank_that_runs_nothing() -> None:
    assert list(map(len, read_orders("\n0F0,0B0\n\n1F0,1B0\n\n"))) == [0, 2, 0, 2]


def test_a_block_is_a_pair_of_steps() -> None:
    text = "0F4,(0F5;7B0)OVERLAP_F_B,0B1\n"
    (order,) = orders = read_orders(text)
    assert order.tolist() == [(0, 0, 4, False), (0, 0, 5, True), (1, 7, 0, False), (1, 0, 1, False)]
    assert write_orders(orders) == text
    assert write_orders(read_orders(" ( 0F5 ; 7B0 )OVERLAP_F_B ")) == "(0F5;7B0)OVERLAP_F_B\n"


NOT_AN_ACTION = "is not an action; expected stage, one of F, B, I, W, and micro-batch, as in 2F0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no compute step (such as 0F0 or 0B0)"),
        (b"", "holds no compute step (such as 0F0 or 0B0)"),
        ("\r\n , ,\n", "holds no compute step (such as 0F0 or 0B0)"),
        ("0UNSHARD,0RESHARD", "holds no compute step (such as 0F0 or 0B0)"),
        ("0F0\n1F0,1X0", f"line 2, cell 2: '1X0' {NOT_AN_ACTION}"),
        ("0F0,0f1", f"line 1, cell 2: '0f1' {NOT_AN_ACTION}"),
        ("0F0,-1F0", f"line 1, cell 2: '-1F0' {NOT_AN_ACTION}"),
        ("0F-1", f"line 1, cell 1: '0F-1' {NOT_AN_ACTION}"),
        ("0F", f"line 1, cell 1: '0F' {NOT_AN_ACTION}"),
        ("0F0 0F1", f"line 1, cell 1: '0F0 0F1' {NOT_AN_ACTION}"),
        ("0F0;0B0", f"line 1, cell 1: '0F0;0B0' {NOT_AN_ACTION}"),
        ("0F0,0F1,,0F2x", f"line 1, cell 4: '0F2x' {NOT_AN_ACTION}"),
        ("0F\u0661", f"line 1, cell 1: '0F\\u0661' {NOT_AN_ACTION}"),
        ("\x7fELF\x02\x00", f"line 1, cell 1: '\\x7fELF\\x02\\x00' {NOT_AN_ACTION}"),
        ("()OVERLAP_F_B", f"line 1, cell 1: '()OVERLAP_F_B' {NOT_AN_ACTION}"),
        ("(0F1;0B0;0W0)OVERLAP_F_B", f"line 1, cell 1: '(0F1;0B0;0W0)OVERLAP_F_B' {NOT_AN_ACTION}"),
        ("(0F0;0B0)F", f"line 1, cell 1: '(0F0;0B0)F' {NOT_AN_ACTION}"),
        ("a" * 99, f"line 1, cell 1: '{'a' * 40}...' {NOT_AN_ACTION}"),
        (b"0F0,0B0\n\xff\xfe", "is not text: byte 8 is not UTF-8"),
        ("0F2147483648", "line 1, cell 1: the number '2147483648' is larger than 2147483647"),
        (
            "9" * 5000 + "F0",
            f"line 1, cell 1: the number '{'9' * 40}...' is larger than 2147483647",
        ),
    ],
)
def test_malformed_files_name_the_line_and_the_cell(text: str | bytes, message: str) -> None:
    with pytest.raises(MalformedOrders) as malformed:
        read_orders(text)
    assert str(malformed.value) == f"file: {message}"
    assert malformed.value.field == "file"


@deterministic
@given(st.text() | st.binary() | st.text("0129FBIW,;()\n OVERLAP_-"))
def test_any_file_is_read_or_refused_in_one_line(text: str | bytes) -> None:
    try:
        orders = read_orders(text)
    except MalformedOrders as malformed:
        message = str(malformed)
    else:
        assert as_lists(read_orders(write_orders(orders))) == as_lists(orders)
        message = " ".join(found.message for found in order_violations(orders))
    assert message.isascii()
    assert message.isprintable()


# Layout


@pytest.mark.parametrize("layout", [Layout(3, 6, 2), Layout(3, 6), Layout(1, 1)], ids=str)
def test_the_layout_follows_from_the_orders(layout: Layout) -> None:
    name = "breadth-first" if layout.loops > 1 else "1f1b"
    found = layout_of(find_schedule(name).orders(layout))
    assert found == layout


@pytest.mark.parametrize(
    ("text", "rank_of_stage"),
    [("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", (0, 1, 1, 0)), ("0F0,0B0\n1F0,2F0,2B0,1B0", (0, 1, 1))],
    ids=["folded", "uneven"],
)
def test_any_placement_is_found(text: str, rank_of_stage: tuple[int, ...]) -> None:
    orders = read_orders(text)
    assert order_violations(orders) == []
    assert layout_of(orders).placement == rank_of_stage


def test_copies_of_stages_are_found() -> None:
    """The copy of the first micro-batch is the first."""
    orders = read_orders("0F1,1F0,1B0,0B1\n0F0,1F1,1B1,0B0")
    assert order_violations(orders) == []
    assert layout_of(orders) == Layout(2, 2, placement=(1, 0), copies=[(0, 1)])


# PyTorch as reader, as writer and as judge


def stages(ranks: int, loops: int) -> list[Any]:
    """As much of a rank's stages as an order needs."""
    return [
        SimpleNamespace(num_stages=ranks * loops, group_size=ranks, group_rank=0, submod=None)
        for _ in range(loops)
    ]


@pytest.mark.torch
@deterministic
@given(ranks=st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_pytorch_reads_each_word(pipelining: Any, ranks: list[list[Any]]) -> None:
    lines = write_orders(as_orders(ranks)).splitlines()
    for line, steps in zip(lines, ranks, strict=True):
        actions = [pipelining._Action.from_str(cell) for cell in line.split(",")]
        letters = ["FBIW".index(action.computation_type.value) for action in actions]
        assert [
            (kind, a.stage_index, a.microbatch_index, False)
            for kind, a in zip(letters, actions, strict=True)
        ] == steps
        assert [str(action) for action in actions] == list(map(action, steps))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["depth-first", "breadth-first"])
def test_pytorch_loads_what_we_write(
    pipelining: Any, name: str, tmp_path: Path, printed: Any
) -> None:
    orders = find_schedule(name).orders(Layout(4, 8, 2))
    file = tmp_path / "orders.csv"
    told = printed("orders", name, "--loops", 2, "--out", file)
    assert told == write_orders(orders)
    schedule = pipelining._PipelineScheduleRuntime(stages(4, 2), 8)
    schedule._load_csv(str(file), format="compute_only")
    loaded = [list(map(str, actions)) for _, actions in sorted(schedule.pipeline_order.items())]
    assert loaded == [list(map(action, steps)) for steps in as_lists(orders)]
    told = printed("orders", name, "--loops", 2, "--format", "torch-actions", "--out", file)
    schedule._load_csv(str(file), format="compute_comms")
    lowered = schedule.pipeline_order_with_comms.items()
    loaded = [",".join(map(str, actions)) for _, actions in sorted(lowered)]
    assert loaded == told.splitlines()


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(
    "name",
    ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"],
)
def test_we_read_and_accept_what_pytorch_dumps(
    pipelining: Any, name: str, kind: str, tmp_path: Path
) -> None:
    schedule = pipelining.get_schedule_class(name)(stages(4, 2), 8)
    file = tmp_path / "orders.csv"
    schedule._dump_csv(str(file), format=kind)
    orders = read_orders(file.read_bytes())
    expected = [
        str(action)
        for _, actions in sorted(schedule.pipeline_order.items())
        for action in actions
        if action is not None
    ]
    assert ",".join(write_orders(orders).splitlines()) == ",".join(expected)
    assert order_violations(orders) == []
    rank_of_stage = schedule.stage_index_to_group_rank
    assert layout_of(orders).placement == tuple(rank_of_stage[stage] for stage in range(8))


@pytest.mark.torch
def test_the_words_are_all_of_pytorchs(pipelining: Any) -> None:
    """If PyTorch learns another action, it must be read or skipped on purpose."""
    known = {"F", "B", "I", "W", "OVERLAP_F_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}
    known |= {"SEND_F", "RECV_F", "SEND_B", "RECV_B"}
    assert {kind.value for kind in pipelining._ComputationType} == known


@pytest.mark.torch
@settings(deterministic, max_examples=300)
@given(data=st.data())
def test_pytorch_refuses_the_orders_that_we_refuse(pipelining: Any, data: st.DataObject) -> None:
    """Orders with some steps moved, split, lost or doubled, on any placement."""
    ranks = data.draw(st.integers(1, 3))
    microbatches = data.draw(st.integers(1, 3))
    rank_of_stage = [*range(ranks), *data.draw(st.lists(st.integers(0, ranks - 1), max_size=3))]
    table: list[list[Any]] = [[] for _ in range(ranks)]
    for stage in range(len(rank_of_stage)):
        table[rank_of_stage[stage]] += [forward(stage, m) for m in range(microbatches)]
    for stage in reversed(range(len(rank_of_stage))):
        kinds = data.draw(st.sampled_from([[1], [2, 3]]))
        table[rank_of_stage[stage]] += [
            (k, stage, m, False) for m in range(microbatches) for k in kinds
        ]
    for _ in range(data.draw(st.integers(0, 3))):
        steps = data.draw(st.sampled_from(table))
        step = steps.pop(data.draw(st.integers(0, len(steps) - 1)))
        steps.insert(data.draw(st.integers(0, len(steps))), step)
    if data.draw(st.integers(0, 4)) == 0:
        data.draw(st.sampled_from(table)).pop()
    orders = as_orders(table)
    assert bool(order_violations(orders)) == _pytorch_refuses(
        pipelining, table, len(rank_of_stage), microbatches
    )


def _pytorch_refuses(pipelining: Any, table: list[list[Any]], stages: int, batch: int) -> bool:
    actions = {
        rank: [pipelining._Action.from_str(action(step)) for step in steps]
        for rank, steps in enumerate(table)
    }
    try:
        rank_of_stage = pipelining._validate_schedule(actions, len(actions), stages, batch)
        pipelining._add_send_recv(actions, rank_of_stage.__getitem__, stages)
    except (AssertionError, IndexError):  # the table in its message needs a step for every rank
        return True
    return False
