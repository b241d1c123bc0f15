"""Sends match receives: posts belong to the graph, and are checked in every mode."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    P2P,
    Communication,
    Deadlock,
    Layout,
    Operation,
    TaskGraph,
    build_graph,
    lower,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.graph_json import MalformedGraph, graph_record, recorded_graph
from bfpp.schedules.formats.torch_actions import write_actions
from bfpp.schedules.formats.torch_csv import layout_of, read_orders, read_posts
from bfpp.schedules.graph.templates import Piece
from bfpp.schedules.lowering import lower_steps, step_table
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.orders.posts import NOWHERE, Post
from bfpp.schedules.validity import Kind, violations
from tests.helpers.strategies import orders

MANY = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "fresh" else 120

drawn = settings(
    max_examples=MANY,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

MODES = [(mode, eager) for mode, eager in product(P2P, (False, True))][:1] + [
    (mode, eager)
    for mode, eager in product(P2P, (False, True))
    if mode is not P2P.CHANNELS and not (mode is P2P.POSTED and eager)
]
"""All modes, with eager sends or not: on channels, no send waits for its receiver."""


def posting(mode: str, *, eager: bool = False) -> Communication:
    return Communication(p2p=P2P(mode), eager=eager)


def as_in_a_file(graph: TaskGraph) -> list[list[Post]]:
    """The graph's posts as those of a file of its orders."""
    found: list[list[Post]] = [[] for _ in range(graph.layout.pp)]
    for rank, number, is_send, after in zip(*graph.posts, strict=True):
        steps = graph.compute_tasks.of(rank)
        passes = {
            (graph.operation[step], graph.stage[step], graph.microbatch[step])
            for step in steps[steps <= after]
        }
        task = graph.task(int(number))
        post = Post(bool(is_send), task.operation, task.stage, task.microbatch, len(passes))
        found[rank].append(post)
    return found


def has_posts_between_units(graph: TaskGraph) -> bool:
    """True if an end of a transfer is posted after some units of a pass and ahead of others."""
    for rank in range(graph.layout.pp):
        under_way: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for step in graph.compute_tasks.of(rank).tolist():
            of_pass = graph.operation[step], graph.stage[step], graph.microbatch[step]
            under_way[of_pass].append(step)
        after = graph.posts.after[graph.posts.rank == rank]
        for units in under_way.values():
            if ((after >= units[0]) & (after < units[-1])).any():
                return True
    return False


def swaps(graph: TaskGraph, posts: list[list[Post]]) -> Iterator[tuple[int, int, int]]:
    """Ranks, and places of two of their receives on one channel, the later one given second."""
    sender = {
        (graph.peer[task], graph.operation[task], graph.stage[task], graph.microbatch[task]):
        graph.rank[task]
        for task in np.flatnonzero(graph.is_transfer)
    }  # fmt: skip
    for rank, own in enumerate(posts):
        channels = defaultdict(list)
        for at, post in enumerate(own):
            if not post.is_send:
                channels[post.operation, sender[(rank, *post[1:4])]].append(at)
        for places in channels.values():
            yield from ((rank, *pair) for pair in pairwise(places))


@drawn
@given(orders(3, 2), st.data())
def test_swapped_receives_are_refused_in_every_mode_and_named(layout_and_orders, data) -> None:
    """The later one of two is posted where the first one is: so no pass comes before its input."""
    layout, ranks = layout_and_orders
    steps = step_table(ranks, layout)
    graph = lower_steps(steps, layout, posting("fifo"), "drawn")
    posts = as_in_a_file(graph)
    places = list(swaps(graph, posts))
    assume(places)
    rank, first, second = data.draw(st.sampled_from(places))
    one, other = posts[rank][first], posts[rank][second]
    posts[rank][first : first + 1] = [other._replace(steps=one.steps), one]
    del posts[rank][second + 1]
    for mode, eager in MODES:
        with pytest.raises(WrongPosts) as told:
            lower_steps(steps, layout, posting(mode, eager=eager), "drawn", posts)
        sent, received = told.value.reason.split(" is sent where ")
        assert f"micro-batch {one.microbatch} " in sent
        assert f"micro-batch {other.microbatch} " in received


@drawn
@given(orders(3, 2), st.sampled_from(MODES[1:]))
def test_what_a_mode_posts_is_valid_in_a_file(layout_and_orders, mode) -> None:
    """The same graph comes of both; and back from its file."""
    layout, ranks = layout_and_orders
    communication = posting(mode[0], eager=mode[1])
    try:
        graph = lower(ranks, layout, communication)
    except (Deadlock, WrongPosts):
        return
    assume(not has_posts_between_units(graph))  # which no file can say
    again = lower(ranks, layout, communication, posts=as_in_a_file(graph))
    assert again.digest == graph.digest
    assert recorded_graph(json.loads(json.dumps(graph_record(graph)))).digest == graph.digest
    if max(layout.units_per_stage) == 1:
        text = write_actions(graph)
        assert read_posts(text) == as_in_a_file(graph)


@drawn
@given(orders(3, 2), st.data())
def test_posts_that_are_changed_in_a_graph_are_refused(layout_and_orders, data) -> None:
    """Whatever two ends of one rank are exchanged: unless their order says the same."""
    layout, ranks = layout_and_orders
    graph = lower(ranks, layout, posting("fifo", eager=True))
    posts = graph.posts
    pairs = [
        (one, other)
        for one, other in product(range(len(posts.rank)), repeat=2)
        if one < other
        and posts.rank[one] == posts.rank[other]
        and posts.is_send[one] == posts.is_send[other]
        and {graph.rank[posts.transfer[one]], graph.peer[posts.transfer[one]]}
        == {graph.rank[posts.transfer[other]], graph.peer[posts.transfer[other]]}
    ]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    transfer = posts.transfer.copy()
    transfer[[one, other]] = transfer[[other, one]]
    found = violations(replace(graph, posts=posts._replace(transfer=transfer)))
    assert "posts" in {each.rule for each in found if each.kind is Kind.WRONG}


def test_a_graph_without_its_posts_does_not_pass() -> None:
    for mode, eager in MODES:
        graph = build_graph("gpipe", Layout(2, 4), posting(mode, eager=eager))
        without = violations(replace(graph, posts=NOWHERE))
        is_said = mode is P2P.CHANNELS or graph.communication.has_queues
        assert [each.rule for each in without] == ([] if is_said else ["posts"])


def test_posts_in_a_file_of_a_graph_must_be_of_what_is_there() -> None:
    graph = build_graph("1f1b", Layout(2, 4), posting("batched"))
    record = json.loads(json.dumps(graph_record(graph)))
    for name, values in {"rank": [7], "transfer": [10**6], "after": [-2]}.items():
        wrong = record["posts"] | {name: values + record["posts"][name][1:]}
        with pytest.raises(MalformedGraph, match=f"posts: {name}: there is no number"):
            recorded_graph({**record, "posts": wrong})
    with pytest.raises(MalformedGraph, match="not of one length"):
        recorded_graph({**record, "posts": record["posts"] | {"rank": []}})


SWAPPED = """0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1
"""
"""The first message of rank 0 is the second that rank 1 receives."""

EXCHANGED = (
    "transfer activations of stage 0 micro-batch 0 from rank 0 to 1 is sent where transfer "
    "activations of stage 0 micro-batch 1 from rank 0 to 1 is received"
)


@pytest.mark.parametrize(("mode", "eager"), MODES)
def test_every_command_refuses_a_file_that_exchanges_messages(
    bfpp, tmp_path: Path, mode: P2P, eager: bool
) -> None:
    path = tmp_path / "swap.csv"
    path.write_text(SWAPPED)
    options = ["--p2p", mode, *(["--eager"] if eager else [])]
    code, out, _ = bfpp("check", path, *options, "--json")
    (found,) = json.loads(out)["violations"]
    assert (code, found["rule"]) == (1, "posts")
    assert found["message"].startswith(EXCHANGED)
    code, out, err = bfpp("simulate", path, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert EXCHANGED in err


def test_a_simulation_posts_as_the_file_does(answer, tmp_path: Path) -> None:
    """A receive that is posted late holds up the send, which holds up what is behind it."""
    late = SWAPPED.replace("1RECV_F1,1RECV_F0,1F0", "1RECV_F0,1F0,1RECV_F1")
    later = late.replace("1RECV_F1,1F1,1B0,1SEND_B0", "1B0,1SEND_B0,1RECV_F1,1F1")
    times = []
    for name, text in {"late.csv": late, "later.csv": later}.items():
        (tmp_path / name).write_text(text)
        line = f"simulate {tmp_path / name} --transfer 0.5 --p2p fifo --eager"
        times.append(answer(line)["step_time"])
    ranks = read_orders(late)
    graph = lower(ranks, layout_of(ranks), posting("fifo", eager=True), posts=read_posts(late))
    assert [post.steps for post in as_in_a_file(graph)[1] if not post.is_send] == [0, 1]
    assert times[0] < times[1]


def test_a_channel_takes_the_order_of_a_file() -> None:
    """Both ends in another order than that of the steps: so are the lanes."""
    text = "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n" + SWAPPED.splitlines()[1]
    ranks = read_orders(text)
    graph = lower(ranks, layout_of(ranks), Communication(), posts=read_posts(text))
    sends = graph.microbatch[graph.operation == Operation.TRANSFER_ACTIVATIONS]
    assert sends.tolist() == [1, 0]
    assert violations(graph) == []


def megatron(pp: int, chunks: int, microbatches: int, rank: int) -> dict[int, set[str]]:
    """Exchanges of Megatron-LM's interleaved schedule in one batch, by the passes done before it.

    `forward_backward_pipelining_with_interleaving` without overlapped P2P: `send_forward_...` calls
    of the warm-up, `send_forward_backward_recv_forward_backward` after its last pass and after each
    pair of passes, `send_backward_...` of the cool-down.
    """
    total = chunks * microbatches
    ahead = min(2 * (pp - rank - 1) + (chunks - 1) * pp, total)

    def cell(kind: str, k: int) -> tuple[int, int]:
        group, inside = divmod(k, pp * chunks)
        chunk = inside // pp if kind == "F" else chunks - 1 - inside // pp
        return chunk * pp + rank, group * pp + k % pp

    def sent(kind: str, k: int) -> set[str]:
        stage, microbatch = cell(kind, k)
        ends = stage == (pp * chunks - 1 if kind == "F" else 0)
        return set() if ends else {f"{stage}SEND_{kind}{microbatch}"}

    def received(kind: str, k: int) -> set[str]:
        if k == total:
            return set()
        stage, microbatch = cell(kind, k)
        ends = stage == (0 if kind == "F" else pp * chunks - 1)
        return set() if ends else {f"{stage}RECV_{kind}{microbatch}"}

    batches = {0: received("F", 0)}
    for k in range(ahead):
        batches[k + 1] = sent("F", k) | received("F", k + 1)
    batches[ahead] |= received("B", 0)
    for k in range(total - ahead):
        both = sent("F", ahead + k) | sent("B", k)
        batches[ahead + 2 * (k + 1)] = both | received("F", ahead + k + 1) | received("B", k + 1)
    for k in range(total - ahead, total):
        batches[total + k + 1] = sent("B", k) | received("B", k + 1)
    return {passes: batch for passes, batch in batches.items() if batch}


@pytest.mark.parametrize("pp", [3, 4, 6, 8])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_coalesced_groups_are_those_of_the_interleaved_schedule(pp, chunks, sequences) -> None:
    layout = Layout(pp, pp * sequences, chunks)
    graph = build_graph("depth-first", layout, posting("coalesced"))
    assert violations(graph) == []
    for rank, row in enumerate(as_in_a_file(graph)):
        if layout.stages * layout.microbatches // pp - 2 * (pp - rank - 1) - (chunks - 1) * pp == 1:
            continue  # its only pair is that of its last forward and its first backward pass
        batches = defaultdict(set)
        for post in row:
            forward = post.operation is Operation.TRANSFER_ACTIVATIONS
            stage = post.stage if post.is_send else post.stage + (1 if forward else -1)
            verb = f"{'SEND' if post.is_send else 'RECV'}_{'F' if forward else 'B'}"
            batches[post.steps].add(f"{stage}{verb}{post.microbatch}")
        assert batches == megatron(pp, chunks, layout.microbatches, rank)


def test_where_a_group_has_two_messages_between_two_ranks_they_would_be_exchanged() -> None:
    """So Megatron-LM refuses its interleaved schedule on two ranks, without overlapped P2P."""
    with pytest.raises(WrongPosts, match="from rank 0 to 1 is sent where"):
        build_graph("depth-first", Layout(2, 4, 2), posting("coalesced"))


def test_posts_of_pieces_are_posts_of_their_passes() -> None:
    graph = build_graph("1f1b", Layout(2, 2), posting("batched"))
    halves = (Piece(Operation.FORWARD, 0.5), Piece(Operation.FORWARD, 0.5))
    whole = graph.with_templates({(Operation.FORWARD, 0): halves}).expanded()
    assert len(whole) == len(graph) + 2
    assert OPERATIONS[whole.operation[whole.posts.transfer[0]]].row.carries
    after = whole.posts.after[whole.posts.after != NONE]
    assert whole.is_compute[after].all()
    assert (whole.piece[after[whole.unit[after] == 0]] != 0).all()
