"""For each rule of validity, a small graph that breaks it alone, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bfpp.schedules import (
    P2P,
    Communication,
    Lane,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    lower,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.torch_csv import read_orders
from bfpp.schedules.operations.streams import COMPUTE, RECEIVE_ACTIVATIONS
from bfpp.schedules.validity import BUFFERS, ORDER, PRESCRIBED, STRUCTURE, Kind, violations
from tests.helpers.mutations import changed, exchanged, find, rebuilt, twice, waiting_less, without


def pair_of_ranks(microbatches: int = 1, stages_per_rank: int = 1, **options: object) -> TaskGraph:
    layout = Layout(2, microbatches, stages_per_rank)
    return build_graph("breadth-first", layout, Communication(**options))  # type: ignore[arg-type]


def one_rank(microbatches: int, stages: int, **options: object) -> TaskGraph:
    layout = Layout(1, microbatches, stages)
    return build_graph("breadth-first", layout, Communication(**options))  # type: ignore[arg-type]


def rules(graph: TaskGraph) -> set[str]:
    return {violation.rule for violation in violations(graph)}


def offloads_and_never_reloads() -> TaskGraph:
    graph = build_graph("gpipe", Layout(1, 3), Communication(offload=1))
    return without(graph, first(graph, Operation.RELOAD), bridged=True)


TIED_ON_BOTH = "#8 tied all-reduce of stage 0 on ranks 0 and 1"


def adds_tied_gradients_too_early() -> TaskGraph:
    graph = build_graph("gpipe", Layout(2, 1), Communication(tied_embeddings=True))
    (tied,) = find(graph, Operation.TIED_ALL_REDUCE)
    (late,) = find(graph, Operation.REDUCE, unit=1)
    return waiting_less(graph, tied.number, late.number)


def first(graph: TaskGraph, operation: Operation, **fields: int) -> int:
    return find(graph, operation, **fields)[0].number


def points_nowhere() -> TaskGraph:
    return changed(pair_of_ranks(), 3, unit=7)


def numbered_backwards() -> TaskGraph:
    graph = pair_of_ranks()
    tasks = list(graph.tasks())
    return rebuilt(graph, [tasks[1], tasks[0], *tasks[2:]])


def reduces_beside_its_lane() -> TaskGraph:
    graph = one_rank(1, 1)
    reduction = first(graph, Operation.REDUCE)
    return changed(graph, reduction, lane=graph.lanes.index(Lane(0, COMPUTE)))


def receives_in_another_order() -> TaskGraph:
    """In one group after no step, so that neither comes after its pass."""
    graph = pair_of_ranks(2, p2p=P2P.BATCHED)
    posts = graph.posts
    received = (posts.rank == 1) & ~posts.is_send
    transfer, after = posts.transfer.copy(), posts.after.copy()
    transfer[received], after[received] = transfer[received][::-1], NONE
    return replace(graph, posts=posts._replace(transfer=transfer, after=after))


def runs_elsewhere() -> TaskGraph:
    graph = pair_of_ranks()
    return changed(graph, 0, rank=1, lane=graph.lanes.index(Lane(1, COMPUTE)))


def misses_a_forward() -> TaskGraph:
    return without(one_rank(2, 1), 0, bridged=True)


def misses_a_transfer() -> TaskGraph:
    graph = pair_of_ranks()
    return without(graph, first(graph, Operation.TRANSFER_ACTIVATIONS), bridged=True)


def receives_from_a_stranger() -> TaskGraph:
    graph = build_graph("gpipe", Layout(3, 1))
    lanes = list(graph.lanes)
    lanes[lanes.index(Lane(1, RECEIVE_ACTIVATIONS, 0))] = Lane(1, RECEIVE_ACTIVATIONS, 2)
    return replace(graph, lanes=tuple(lanes))


def waits_without_its_block() -> TaskGraph:
    (order,) = read_orders("0F0,(0F1;0B0)OVERLAP_F_B,0B1")
    graph = lower([order], Layout(1, 2), Communication())
    return changed(graph, first(graph, Operation.BACKWARD), dependencies=(0,))


def goes_up_before_down() -> TaskGraph:
    graph = waiting_less(one_rank(1, 2), 1, 0)
    return exchanged(graph, 0, 1)


def runs_slices_in_reverse() -> TaskGraph:
    """The loss of the second slice is there first, but attention needs the first slice."""
    orders = read_orders("0F0,0F1,0B1,0B0")
    graph = lower(orders, Layout(1, 2, slices=2), Communication())
    return exchanged(graph, 0, 1)


def starts_before_its_input_is_here() -> TaskGraph:
    graph = pair_of_ranks()
    return changed(graph, first(graph, Operation.FORWARD, unit=1), dependencies=(0,))


def gathers_too_early() -> TaskGraph:
    graph = one_rank(1, 3, sharding=Sharding.FULL)
    gather = find(graph, Operation.GATHER, unit=2)[0]
    return changed(graph, gather.number, dependencies=())


def gathers_twice() -> TaskGraph:
    graph = one_rank(1, 1, sharding=Sharding.PARTIAL, dp_overlap=False)
    return twice(graph, first(graph, Operation.GATHER))


def reduces_too_early() -> TaskGraph:
    graph = one_rank(2, 1)
    reduction = first(graph, Operation.REDUCE)
    early = first(graph, Operation.BACKWARD, microbatch=0)
    return changed(graph, reduction, dependencies=(early,))


def reduces_twice() -> TaskGraph:
    graph = one_rank(1, 1, dp_overlap=False)
    return twice(graph, first(graph, Operation.REDUCE))


def reduces_across_replicas_twice() -> TaskGraph:
    graph = one_rank(1, 1, sharding=Sharding.FULL, dp_overlap=False, hybrid=True)
    return twice(graph, first(graph, Operation.ALL_REDUCE))


def updates_too_early() -> TaskGraph:
    graph = one_rank(1, 1)
    return changed(graph, first(graph, Operation.OPTIMIZER), dependencies=())


EXAMPLES: dict[str, tuple[Callable[[], TaskGraph], list[str]]] = {
    "columns": (points_nowhere, ["#3 has unit 7, which does not exist"]),
    "numbering": (
        numbered_backwards,
        [
            (
                "#0 transfer activations of stage 0 micro-batch 0 from rank 0 to 1 waits for "
                "#1 forward of stage 0 micro-batch 0 on rank 0, whose number is not smaller"
            )
        ],
    ),
    "lanes": (
        reduces_beside_its_lane,
        [
            (
                "#2 all-reduce of stage 0 on rank 0 is on the compute lane of rank 0, "
                "not on a data lane of rank 0"
            )
        ],
    ),
    "placement": (
        runs_elsewhere,
        ["#0 forward of stage 0 micro-batch 0 on rank 1 is of a unit that rank 0 holds"],
    ),
    "passes": (
        misses_a_forward,
        [
            (
                "stage 0 must run micro-batch 0 once forward and once backward (whole, or input "
                "and weight halves), not 0 times forward, 1 whole, 0 input and 0 weight"
            )
        ],
    ),
    "blocks": (
        waits_without_its_block,
        ["#2 backward of stage 0 micro-batch 0 on rank 0 waits on its own, not with its block"],
    ),
    "transfers": (
        misses_a_transfer,
        ["there is no transfer activations of stage 0 micro-batch 0 to rank 1"],
    ),
    "posts": (
        receives_in_another_order,
        [
            (
                "transfer activations of stage 0 micro-batch 0 from rank 0 to 1 is sent where "
                "transfer activations of stage 0 micro-batch 1 from rank 0 to 1 is received, as "
                "message 1 from rank 0 to rank 1"
            ),
        ],
    ),
    "channels": (
        receives_from_a_stranger,
        [
            (
                "rank 0 send activations to 1 and rank 1 receive activations from 0 differ in "
                "#1 transfer activations of stage 0 micro-batch 0 from rank 0 to 1"
            ),
            (
                "rank 2 send activations to 1 and rank 1 receive activations from 2 differ in "
                "#1 transfer activations of stage 0 micro-batch 0 from rank 0 to 1"
            ),
        ],
    ),
    "precedence": (
        goes_up_before_down,
        [
            (
                "#0 forward of stage 1 micro-batch 0 on rank 0 may start before "
                "#1 forward of stage 0 micro-batch 0 on rank 0 has ended"
            )
        ],
    ),
    "slices": (
        runs_slices_in_reverse,
        [
            (
                "#0 forward of stage 0 micro-batch 1 on rank 0 may start before "
                "#1 forward of stage 0 micro-batch 0 on rank 0 has ended"
            )
        ],
    ),
    "delivery": (
        starts_before_its_input_is_here,
        [
            (
                "#2 forward of stage 1 micro-batch 0 on rank 1 may start before #1 transfer "
                "activations of stage 0 micro-batch 0 from rank 0 to 1 has ended"
            )
        ],
    ),
    "weights": (
        gathers_too_early,
        [
            (
                "#4 all-gather of stage 2 on rank 0 may overwrite weight buffer 0 under "
                "#1 forward of stage 0 micro-batch 0 on rank 0"
            )
        ],
    ),
    "tied": (
        adds_tied_gradients_too_early,
        [
            f"{TIED_ON_BOTH} may start before #5 all-reduce of stage 1 on rank 1 has ended",
        ],
    ),
    "offloads": (
        offloads_and_never_reloads,
        ["stage 0 offloads micro-batch 0 1 times and reloads it 0 times"],
    ),
    "gathers": (gathers_twice, ["#0 all-gather of stage 0 on rank 0 is of no use"]),
    "gradients": (
        reduces_too_early,
        [
            (
                "#3 backward of stage 0 micro-batch 1 on rank 0 adds to gradient buffer 0 "
                "what nothing reduces"
            ),
            (
                "#4 all-reduce of stage 0 on rank 0 may empty gradient buffer 0 under "
                "#3 backward of stage 0 micro-batch 1 on rank 0"
            ),
        ],
    ),
    "reductions": (reduces_twice, ["#3 all-reduce of stage 0 on rank 0 is of no use"]),
    "replicas": (
        reduces_across_replicas_twice,
        ["stage 0 has 2 tasks all-reduce, not 1"],
    ),
    "optimizer": (
        updates_too_early,
        ["#3 optimizer on rank 0 may start before #2 all-reduce of stage 0 on rank 0 has ended"],
    ),
}
"""For each rule, a graph that breaks no other, and all that the checker says of it."""


TABLES: tuple[dict[str, Any], ...] = (STRUCTURE, ORDER, BUFFERS, PRESCRIBED)


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {"columns"}.union(*TABLES)


@pytest.mark.parametrize("rule", EXAMPLES)
def test_examples(rule: str) -> None:
    example, messages = EXAMPLES[rule]
    found = violations(example())
    assert [(violation.rule, violation.message) for violation in found] == [
        (rule, message) for message in messages
    ]
    for violation in found:
        named = {int(number) for number in re.findall(r"#(\d+)", violation.message)}
        assert named <= set(violation.tasks)
        assert violation.kind is (Kind.REMARK if rule in PRESCRIBED else Kind.WRONG)


@pytest.mark.parametrize("rule", [rule for table in TABLES for rule in table])
def test_no_rule_is_idle(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in TABLES:
        monkeypatch.delitem(table, rule, raising=False)
    assert violations(EXAMPLES[rule][0]()) == []


def test_a_deadlock_names_the_tasks_that_wait_for_each_other() -> None:
    graph = pair_of_ranks(pp_overlap=False, dp_overlap=False)
    stuck = changed(graph, 0, dependencies=(4,))
    assert [violation.rule for violation in violations(stuck)] == ["numbering", "deadlock"]
    deadlock = violations(stuck)[-1]
    forward, down, back = (str(stuck.task(number)) for number in (0, 1, 4))
    assert deadlock.message.split("; ") == [
        f"{forward} needs {back}",
        f"{back} is behind {down} on rank 0 compute",
        f"{down} needs {forward}",
    ]
    assert deadlock.tasks == (0, 4, 1)


def test_whichever_is_never_reloaded_is_named() -> None:
    graph = build_graph("gpipe", Layout(2, 3), Communication(offload=1))
    reloads = find(graph, Operation.RELOAD)
    assert len({(task.unit, task.microbatch) for task in reloads}) == len(reloads) > 3
    for task in reloads:
        told = [
            each.message
            for each in violations(without(graph, task.number, bridged=True))
            if each.rule == "offloads"
        ]
        cell = f"stage {task.unit} offloads micro-batch {task.microbatch} 1 times"
        assert told == [f"{cell} and reloads it 0 times"]


def test_an_evaluation_offloads_nothing() -> None:
    graph = build_graph("gpipe", Layout(1, 3), Communication(offload=1))
    kept = find(graph, Operation.FORWARD, Operation.OFFLOAD, Operation.RELOAD)
    assert rules(rebuilt(graph, kept)) == {"offloads"}


def test_columns_of_the_wrong_length_are_all_that_is_said() -> None:
    graph = pair_of_ranks()
    assert rules(replace(graph, peer=graph.peer[:-1])) == {"columns"}
    cut = graph.dependencies._replace(member=graph.dependencies.member[:2])
    assert rules(replace(graph, dependencies=cut)) == {"columns"}
    assert rules(changed(graph, 0, lane=99)) == {"columns"}
