"""Graphs as PyTorch's actions: complete, runnable there, and gathered no more than needed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Per,
    Sharding,
    TaskGraph,
    build_graph,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.torch_actions import write_actions
from bfpp.schedules.formats.torch_csv import read_orders, read_posts
from bfpp.schedules.formats.torch_waits import has_waits, wait_violations
from tests.helpers.strategies import graphs, order_graphs

SOME = settings(derandomize=True, deadline=None, max_examples=80)


def of_whole_stages(graph: TaskGraph) -> bool:
    return max(graph.layout.units_per_stage) == 1


WORD = re.compile(r"([0-9]+)([A-Z_]+)[0-9]*")
WHOLE = (graphs() | order_graphs()).filter(of_whole_stages)


@SOME
@given(WHOLE)
def test_every_task_is_there(graph):
    text = write_actions(graph)
    steps = [step[:3] for order in read_orders(text) for step in order.tolist()]
    chosen = graph.is_compute
    columns = (graph.operation, graph.stage, graph.microbatch)
    expected = zip(*(column[chosen].tolist() for column in columns), strict=True)
    assert sorted(steps) == sorted(expected)
    assert sum(map(len, read_posts(text))) == 2 * graph.is_transfer.sum()
    reductions = graph.operation == Operation.REDUCE
    ends = reductions.sum() + (reductions & (graph.peer != NONE)).sum()
    assert len(re.findall("[0-9]REDUCE_GRAD", text)) == ends


@SOME
@given(WHOLE)
def test_all_that_is_begun_is_waited_for_once(graph):
    """As late as reductions may overlap; without the waits, the actions are those of before."""
    rows, before = (write_actions(graph, waits=each).splitlines() for each in (True, False))
    assert list(wait_violations(rows)) == []
    assert [re.sub(",[0-9]+WAIT_[A-Z_]+[0-9]*", "", row) for row in rows] == before
    if any("SEND" in row or "REDUCE" in row for row in before):
        assert (has_waits(rows), has_waits(before)) == (True, False)
    for row in rows if not graph.communication.dp_overlap else ():
        assert re.sub("([0-9]+)REDUCE_GRAD,\\1WAIT_REDUCE_GRAD", "", row).count("REDUCE") == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0F0,0SEND_F0", "0SEND_F0 on rank 0 is not waited for"),
        ("0WAIT_SEND_F0,0F0,0SEND_F0", "0WAIT_SEND_F0 on rank 0 waits for nothing"),
        ("1B0,1SEND_B0,1WAIT_SEND_F0", "1WAIT_SEND_F0 on rank 0 waits for nothing"),
        ("0REDUCE_GRAD,1REDUCE_GRAD,0WAIT_REDUCE_GRAD,1WAIT_REDUCE_GRAD",
         "1REDUCE_GRAD on rank 0 begins before 0REDUCE_GRAD is waited for"),
    ],
)  # fmt: skip
def test_wrong_waits_are_named(row, message):
    assert message in [each.message for each in wait_violations([row])]


@SOME
@given(WHOLE)
def test_a_stage_is_unsharded_while_it_runs(graph):
    """Gathered once at a time, and free again at the end."""
    is_sharded = graph.communication.sharding is not Sharding.NONE
    for row in write_actions(graph).splitlines():
        unsharded = set()
        for stage, action in WORD.findall(row):
            if action == "UNSHARD":
                assert stage not in unsharded
                unsharded.add(stage)
            elif action == "RESHARD":
                unsharded.remove(stage)
            elif action in "FBIW" and is_sharded:
                assert stage in unsharded
        assert unsharded == set()


@pytest.mark.torch
@SOME
@given(WHOLE)
def test_pytorch_runs_what_is_written(graph):
    """Its own dry run finds no rank that waits for ever."""
    runtime = pytest.importorskip("torch.distributed.pipelining.schedules")
    if graph.layout.copies or (graph.block != NONE).any():
        return  # the dry run knows neither
    rows = write_actions(graph, waits=hasattr(runtime, "WAIT_SEND_F")).splitlines()
    actions = {
        rank: [runtime._Action.from_str(word) for word in row.split(",")]
        for rank, row in enumerate(rows)
    }
    known = [
        [each for each in row if each.computation_type.value not in IGNORED]
        for row in actions.values()
    ]
    placement = graph.layout.placement
    ran = runtime._simulate_comms_compute(
        dict(enumerate(known)), placement.__getitem__, len(placement)
    )
    for rank, row in enumerate(known):
        assert [each for each in ran[rank] if each is not None] == row


IGNORED = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
"""Actions that that dry run does not know."""


def test_once_a_step_is_gathered_before_all_and_reduced_after_it():
    """As FSDP does with reshard_after_forward=False."""
    communication = Communication(Sharding.FULL, gather_per=Per.STEP, reduce_per=Per.STEP)
    first, _ = write_actions(build_graph("1f1b", Layout(2, 2), communication)).splitlines()
    assert first == (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,"
        "0WAIT_SEND_F1,0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD"
    )


def test_stages_of_several_units_are_gathered_in_parts():
    with pytest.raises(InvalidConfiguration, match="must have one unit"):
        write_actions(build_graph("gpipe", Layout(2, 2, units_per_stage=2)))
