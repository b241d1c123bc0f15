"""Transfers as software posts them: what deadlocks is told before it runs, what waits is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    P2P,
    Communication,
    Deadlock,
    InvalidConfiguration,
    Layout,
    Operation,
    build_graph,
    lower,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.formats.torch_csv import layout_of, read_orders, read_posts
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.schedules.validity import violations
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from tests.helpers.strategies import configurations, orders

QUEUED = [mode for mode in P2P if mode not in (P2P.CHANNELS, P2P.POSTED)]
WAYS = [(P2P.POSTED, False), *product(QUEUED, (False, True))]
DEADLOCKING = {(mode, False) for mode in (P2P.DEFERRED, P2P.BATCHED, P2P.COALESCED)}
DEADLOCKING |= {(P2P.COALESCED, True)}  # the backward pass of a pair may follow from its forward
"""Modes of posting, and if sends are eager: the others follow an order in which all can run."""

EXCHANGING = {*QUEUED} - {P2P.FIFO}
"""Where receives are not posted in the order of their sends, but of the steps that need them."""

VALID = "valid\nactions of torch before 2.15\n"

INTERLEAVED = Layout(2, 4, 2)

steady = settings(
    derandomize=True,
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def posting(mode: str, *, eager: bool = False) -> Communication:
    return Communication(p2p=P2P(mode), eager=eager)


@steady
@given(configurations())
def test_ends_are_posted_before_the_step_that_follows(configuration):
    try:
        graph = configuration._replace(communication=posting("posted")).graph()
    except InvalidConfiguration:
        return
    for rank in range(graph.layout.pp):
        own = graph.compute_tasks.of(rank).tolist()
        after = graph.posts.after[graph.posts.rank == rank].tolist()
        for before, task in pairwise([NONE, *own]):
            assert graph.ends_posted_before[task] == after.count(before)
    assert not graph.ends_posted_before[~graph.is_compute].any()


def seconds(communication: Communication, layout: Layout, schedule: str = "depth-first") -> float:
    return simulate(
        build_graph(schedule, layout, communication), AbstractCosts(transfer=0.25)
    ).step_time


@steady
@given(configurations(4, 3, cells=16), st.sampled_from(WAYS), st.data())
def test_however_transfers_are_posted_a_graph_is_valid_and_no_faster_or_deadlocks(
    configuration, way, data
) -> None:
    """Both engines agree on it, and nothing but the order of posting has changed."""
    mode, eager = way
    communication = replace(configuration.communication, pp_overlap=True)
    channels = configuration._replace(communication=communication).graph()
    asked = replace(communication, p2p=mode, eager=eager)
    try:
        graph = configuration._replace(communication=asked).graph()
    except Deadlock:
        assert (mode, eager) in DEADLOCKING
        return
    except WrongPosts:
        assert mode in EXCHANGING
        return
    assert violations(graph) == []
    assert len(graph) == len(channels)
    assert graph.digest != channels.digest
    assert read_graph(write_graph(graph)).digest == graph.digest
    costs = AbstractCosts(transfer=data.draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])))
    step, reference = (simulate(graph, costs, engine).step_time for engine in ("compiled", "simpy"))
    assert step == pytest.approx(reference, rel=1e-12)
    assert step >= simulate(channels, costs).step_time * (1 - 1e-12)


@steady
@given(orders(3, 2), st.sampled_from(WAYS))
def test_any_orders_make_valid_graphs_or_a_circle_or_exchange_messages(
    layout_and_orders, way
) -> None:
    (layout, ranks), (mode, eager) = layout_and_orders, way
    try:
        graph = lower(ranks, layout, posting(mode, eager=eager))
    except Deadlock as error:
        assert (mode, eager) in DEADLOCKING
        links = error.reason.removeprefix("deadlock: ").split("; ")
        heads = [link.split(" needs ")[0].split(" comes on rank ")[0] for link in links]
        for link, following in pairwise([*links, links[0]]):
            waited_for = link.split(" needs ")[-1].split(" after ")[-1]
            assert waited_for == following.split(" needs ")[0].split(" comes on rank ")[0]
        assert len({*heads}) == len(heads) > 1
    except WrongPosts:
        assert mode in EXCHANGING
    else:
        assert violations(graph) == []


@pytest.mark.parametrize("mode", QUEUED)
def test_in_one_queue_or_group_nothing_is_faster(mode) -> None:
    layout = Layout(4, 8)
    eager = seconds(posting(mode, eager=True), layout, "gpipe")
    assert seconds(posting("channels"), layout, "gpipe") < eager
    assert eager <= seconds(posting(mode), layout, "gpipe")


def test_receives_in_the_order_of_sends_wait_for_what_their_rank_does_first() -> None:
    """By direction no transfer holds up another, so that it is no slower than one queue."""
    for name, layout in (("gpipe", Layout(4, 8)), ("breadth-first", Layout(4, 8, 2))):
        posted = seconds(posting("posted"), layout, name)
        assert seconds(posting("channels"), layout, name) < posted
        assert posted < seconds(posting("fifo"), layout, name)
    with pytest.raises(InvalidConfiguration, match="each send waits for its own"):
        build_graph("gpipe", Layout(4, 8), posting("posted", eager=True))


def test_receives_right_before_their_steps_deadlock_as_pytorch_found() -> None:
    """https://github.com/pytorch/pytorch/issues/172668: two ranks, four stages, one queue a rank.

    Rank 0 has `0SEND_F1, 2RECV_F0, 2F0`, and rank 1 `1SEND_F0, 1RECV_F1, 1F1`.
    """
    assert violations(build_graph("depth-first", INTERLEAVED, posting("channels"))) == []
    assert violations(build_graph("depth-first", INTERLEAVED, posting("fifo"))) == []
    with pytest.raises(Deadlock) as told:
        build_graph("depth-first", INTERLEAVED, posting("deferred"))
    sent, returned = (
        "transfer activations of stage 0 micro-batch 1 from rank 0 to 1",
        "transfer activations of stage 1 micro-batch 0 from rank 1 to 0",
    )
    links = [f"{sent} comes on rank 1 after {returned}", f"{returned} comes on rank 0 after {sent}"]
    assert sorted(told.value.reason.removeprefix("deadlock: ").split("; ")) == sorted(links)
    # Sends that do not wait for their receivers, as small messages do not, get through.
    assert (
        violations(build_graph("depth-first", INTERLEAVED, posting("deferred", eager=True))) == []
    )


def test_a_receive_posted_early_holds_up_sends_that_are_ready() -> None:
    """https://github.com/pytorch/pytorch/issues/188833: eight ranks, two stages each."""
    layout = Layout(8, 16, 2)
    timeline = simulate(
        build_graph("depth-first", layout, posting("fifo")), AbstractCosts(transfer=0.25)
    )
    graph = timeline.graph
    held_up = 0.0
    for lane, queue in enumerate(graph.lanes):
        if queue.stream.name == "QUEUE":
            for ahead, behind in pairwise(graph.lane_tasks.of(lane).tolist()):
                made = timeline.end[graph.dependencies.of(behind)].max()
                if graph.peer[ahead] == queue.rank == graph.rank[behind]:
                    held_up += max(0.0, timeline.start[ahead] - made)
    assert held_up > 0
    by_mode = {mode: seconds(posting(mode), layout) for mode in ("channels", "fifo")}
    assert by_mode["channels"] < by_mode["fifo"]
    assert by_mode["channels"] <= seconds(posting("deferred", eager=True), layout) < by_mode["fifo"]


SENDS_FIRST = """0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
"""
"""Both ranks of 1F1B send before they receive what the other one sends."""

PARITY = SENDS_FIRST.replace("1SEND_B0,1RECV_F1", "1RECV_F1,1SEND_B0")
"""The odd rank receives first."""


def test_sends_and_receives_are_posted_as_a_file_says(bfpp, answer, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"first.csv": SENDS_FIRST, "parity.csv": PARITY}.items():
        Path(name).write_text(text)
        assert answer(f"check {name}")["valid"]
        assert bfpp(f"check {name} --p2p batched")[:2] == (0, VALID)
        assert bfpp(f"check {name} --p2p fifo --eager")[:2] == (0, VALID)
    assert bfpp("check parity.csv --p2p fifo")[:2] == (0, VALID)
    code, out, _ = bfpp("check first.csv --p2p fifo --json")
    (found,) = json.loads(out)["violations"]
    assert (code, found["rule"]) == (1, "deadlock")
    sent, returned = (
        "transfer activations of stage 0 micro-batch 1 from rank 0 to 1",
        "transfer gradients of stage 1 micro-batch 0 from rank 1 to 0",
    )
    assert f"{sent} comes on rank 1 after {returned}" in found["message"]
    assert f"{returned} comes on rank 0 after {sent}" in found["message"]


def test_what_orders_say_of_posting_is_checked_unless_options_do(bfpp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, said in {
        "fifo.csv": "# p2p = fifo\n# forward = 2\n",
        "eager.csv": "# p2p = fifo\n# eager = True\n",
        "fast.csv": "# p2p = fast\n",
    }.items():
        Path(name).write_text(said + SENDS_FIRST)
    code, out, _ = bfpp("check fifo.csv --json")
    assert (code, json.loads(out)["violations"][0]["rule"]) == (1, "deadlock")
    for line in ("fifo.csv --p2p channels", "fifo.csv --eager", "eager.csv"):
        assert bfpp(f"check {line}") == (0, VALID, "")
    assert bfpp("check eager.csv --p2p channels")[0] == 2
    for line, reason in {
        "fast.csv": "SCHEDULE: fast.csv: p2p: 'fast' is not one of",
        "graph.json --eager": "--eager: a task graph already says how",
        "graph.json --p2p channels": "--p2p: a task graph already says how",
    }.items():
        assert bfpp("simulate gpipe --graph graph.json")[0] == 0
        code, out, err = bfpp(f"check {line}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert reason in err


MISPLACED = {
    "0SEND_F1,": ("", "rank 0 does not post the send of transfer activ"),
    "0SEND_F1": ("0SEND_F0", "rank 0 posts the send of transfer activat"),
    "0F1,0SEND_F1": (
        "0SEND_F1,0F1",
        "micro-batch 1 from rank 0 to 1 before the pass that makes it",
    ),
    "1RECV_F1,1F1": ("1F1,1RECV_F1", "micro-batch 1 from rank 0 to 1 after the pass that needs it"),
}
"""A part of a file, its replacement, and the message about it."""


@pytest.mark.parametrize("mode", ["channels", "fifo"])
@pytest.mark.parametrize("right", MISPLACED)
def test_posts_that_are_misplaced_or_in_vain_are_told(right: str, mode: str) -> None:
    wrong, told = MISPLACED[right]
    text = SENDS_FIRST.replace(right, wrong)
    ranks = read_orders(text)
    with pytest.raises(WrongPosts, match=told):
        lower(ranks, layout_of(ranks), posting(mode), posts=read_posts(text))


def test_a_channel_hands_on_what_was_sent_first(bfpp, tmp_path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(SENDS_FIRST.replace("1SEND_B0,", "").replace("1SEND_B1", "1SEND_B1,1SEND_B0"))
    code, out, _ = bfpp("check", path, "--json")
    (found,) = json.loads(out)["violations"]
    assert (code, found["rule"]) == (1, "posts")
    assert "micro-batch 1 from rank 1 to 0 is sent where transfer grad" in found["message"]


def test_what_cannot_be_posted_so_is_refused_in_one_line(bfpp) -> None:
    for words, told in {
        "simulate gpipe --p2p fifo --no-pp-overlap": "--p2p: needs transfers that overlap",
        "simulate gpipe --eager": "--eager: on channels",
        "run gpipe --pp 2 --backend local --steps 1 --p2p fifo --eager": "--eager: is for the",
        "simulate 1f1b --p2p deferred": "deadlock: transfer",
    }.items():
        code, out, err = bfpp(words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert told in err


def test_a_simulation_takes_the_option(answer) -> None:
    times = [
        answer(f"simulate breadth-first --loops 2 --transfer 0.5 --p2p {mode}")["step_time"]
        for mode in ("channels", "fifo")
    ]
    assert times[0] < times[1]


def test_a_queue_is_a_lane_of_its_rank() -> None:
    graph = build_graph("1f1b", Layout(2, 4), posting("fifo"))
    (down,) = {*graph.lane[graph.operation == Operation.TRANSFER_ACTIVATIONS].tolist()}
    (up,) = {*graph.lane[graph.operation == Operation.TRANSFER_GRADIENTS].tolist()}
    assert [graph.lanes[lane].title for lane in (down, up)] == ["P2P", "P2P"]
    assert np.array_equal(graph.lane_tasks.of(down), graph.lane_tasks.of(up))


@pytest.mark.parametrize(
    ("mode", "eager"),
    [("fifo", False), ("fifo", True), ("batched", True), ("coalesced", False), ("coalesced", True)],
)
def test_nothing_is_sent_before_it_is_posted(mode, eager) -> None:
    graph = build_graph("depth-first", Layout(4, 8, 2), posting(mode, eager=eager))
    timeline = simulate(graph, AbstractCosts(transfer=0.25))
    sends = graph.posts.is_send
    task, after = graph.posts.transfer[sends], graph.posts.after[sends]
    assert (timeline.start[task] >= timeline.end[after] - 1e-9).all()
