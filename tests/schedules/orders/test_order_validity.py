"""Rules for orders, each with an example that breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Layout, find_schedule
from bfpp.schedules.formats.torch_csv import read_orders
from bfpp.schedules.orders.steps import backward, forward, order_of
from bfpp.schedules.orders.validity import MOST_LISTED, RULES, OrderViolation, order_violations
from tests.helpers.orders import as_lists, as_orders

deterministic = settings(derandomize=True, deadline=None, max_examples=150)

ONCE = "backward once, whole or as both halves, not as"

VIOLATIONS: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "0F0,0B0\n\n": [],
    "0F0,0B0\n\n1F0,1B0": [("placement", "rank 1 runs no stage", ())],
    "0F0,0F1,0B0\n0B1": [
        ("placement", "stage 0 runs on ranks 0, 1", ("0F0 on rank 0", "0B1 on rank 1")),
    ],
    "0F1,1F0,1B0,0B1\n0F0,1F1,1B1,0B0": [],
    "0F0,0B0,3F0,3B0": [("numbering", "stages 1 to 2 are missing, though there is stage 3", ())],
    "0F1,0B1": [("numbering", "micro-batch 0 is missing, though there is micro-batch 1", ())],
    "0F0,0B0,0B1,0F0": [
        ("forward", "stage 0 never runs micro-batch 1 forward", ("0F1",)),
        ("forward", "stage 0 runs micro-batch 0 forward 2 times", ("0F0 on rank 0",) * 2),
    ],
    "0F0,0B0,0F1,0I1,0F2,0I2,0W2,0B2": [
        (
            "backward",
            f"stage 0 must run micro-batch 1 {ONCE} 0I1",
            ("0I1 on rank 0",),
        ),
        (
            "backward",
            f"stage 0 must run micro-batch 2 {ONCE} 0B2, 0I2, 0W2",
            ("0B2 on rank 0", "0I2 on rank 0", "0W2 on rank 0"),
        ),
    ],
    "0F0,0F1,0F2,0F3,0F4": [
        (
            "backward",
            "stage 0 never runs micro-batches 0, 1, 2 and 2 more backward",
            ("0B0", "0B1", "0B2"),
        ),
    ],
    "0F0,0W0,0I0": [
        (
            "local order",
            "rank 0 runs 0W0 before 0I0, which it waits for",
            ("0W0 on rank 0", "0I0 on rank 0"),
        ),
    ],
    "1F0,0F0,0B0,1B0": [
        (
            "local order",
            "rank 0 runs 1F0 before 0F0, which it waits for",
            ("1F0 on rank 0", "0F0 on rank 0"),
        ),
        (
            "local order",
            "rank 0 runs 0B0 before 1B0, which it waits for",
            ("0B0 on rank 0", "1B0 on rank 0"),
        ),
    ],
    "0F0,(0F1;0B0)OVERLAP_F_B,0B1": [],
    "(0F0;0B0)OVERLAP_F_B,(0F1;0F2)OVERLAP_F_B,0B1,0B2": [
        (
            "blocks",
            "rank 0: the passes of stage 0, micro-batch 0 cannot be one block",
            ("0F0 on rank 0", "0B0 on rank 0"),
        ),
        (
            "blocks",
            "rank 0: a block is a forward and a whole backward pass",
            ("0F1 on rank 0", "0F2 on rank 0"),
        ),
    ],
    "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1": [
        (
            "deadlock",
            "rank 0 stops before 0B0, which waits for 1B0 on rank 1",
            ("0B0 on rank 0", "1B0 on rank 1"),
        ),
        (
            "deadlock",
            "rank 1 stops before 1F1, which waits for 0F1 on rank 0",
            ("1F1 on rank 1", "0F1 on rank 0"),
        ),
    ],
    "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1": [],
    "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n2F0,2B0,2F1,2B1": [
        (
            "deadlock",
            "rank 0 stops before 0B0, which waits for 1B0 on rank 1",
            ("0B0 on rank 0", "1B0 on rank 1"),
        ),
        (
            "deadlock",
            "rank 1 stops before 1F1, which waits for 0F1 on rank 0",
            ("1F1 on rank 1", "0F1 on rank 0"),
        ),
        (
            "deadlock",
            "rank 2 stops before 2F0, which waits for 1F0 on rank 1",
            ("2F0 on rank 2", "1F0 on rank 1"),
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", VIOLATIONS)
def test_each_violation_is_named(text: str) -> None:
    assert order_violations(read_orders(text)) == [
        OrderViolation(*expected) for expected in VIOLATIONS[text]
    ]


def test_every_rule_has_an_example_above() -> None:
    assert {rule for found in VIOLATIONS.values() for rule, *_ in found} == set(RULES)


def test_no_orders_run_nothing() -> None:
    assert order_violations([]) == [OrderViolation("placement", "there is no step to run")]


def test_numbers_below_zero_are_violations() -> None:
    (found,) = order_violations(read_orders("0F0,0B0") + as_orders([[forward(-1, 0)]]))[:1]
    assert (found.rule, found.message) == ("numbering", "stage -1 is below 0")


def test_many_violations_of_a_rule_are_counted() -> None:
    halves = ",".join(f"0F{microbatch},0I{microbatch}" for microbatch in range(50))
    found = order_violations(read_orders(halves))
    assert len(found) == MOST_LISTED + 1
    assert found[-1] == OrderViolation("backward", f"and {50 - MOST_LISTED} more")


@deterministic
@given(data=st.data())
def test_one_step_less_or_more_is_found(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["breadth-first", "depth-first"]))
    ranks = as_lists(find_schedule(name).orders(Layout(2, 4, 2)))
    rank = data.draw(st.sampled_from(ranks))
    step = rank.pop(data.draw(st.integers(0, len(rank) - 1)))
    for _ in range(data.draw(st.sampled_from([0, 2]))):
        rank.insert(data.draw(st.integers(0, len(rank))), step)
    rule = "forward" if step[0] == 0 else "backward"
    assert rule in {violation.rule for violation in order_violations(as_orders(ranks))}


@pytest.mark.parametrize("operation", [-1, 4, 100])
@pytest.mark.parametrize("fused", [False, True])
def test_what_is_no_pass_is_named(operation: int, fused: bool) -> None:
    order = order_of([forward(0, 0), backward(0, 0)])
    order["operation"][0], order["fused"][0] = operation, fused
    reason = f"operation {operation} is no pass"
    named = OrderViolation("numbering", reason, ("0?0 on rank 0",))
    assert named in order_violations([order])
