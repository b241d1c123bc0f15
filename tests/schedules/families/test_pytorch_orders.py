"""PyTorch's orders, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from bfpp.schedules import Layout, find_schedule
from tests.helpers.orders import action_rows
from tests.helpers.pytorch_schedules import looped, single, stage, staged

SIZES = range(1, 9)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_gpipe_is_pytorchs(pipelining: Any, ranks: int) -> None:
    for microbatches in range(1, 17):
        layout = Layout(ranks, microbatches)
        assert single(pipelining, "GPipe", ranks, microbatches) == action_rows("gpipe", layout)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_1f1b_is_pytorchs(pipelining: Any, ranks: int) -> None:
    """PyTorch refuses fewer micro-batches than ranks.

    Up to 2.13 at least, the order that it prints numbers the forward passes of
    the last rank from 1. What it runs is right: see the next test.
    """
    for microbatches in range(ranks, 17):
        ours = action_rows("1f1b", Layout(ranks, microbatches))
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
            orders = action_rows(ours, Layout(ranks, microbatches))
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
            assert theirs == action_rows("depth-first", Layout(ranks, microbatches, loops))


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
            ours = action_rows("depth-first", Layout(ranks, microbatches, loops), sequence=sequence)
            assert theirs == ours


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_breadth_first_is_pytorchs_looped_bfs(pipelining: Any, ranks: int) -> None:
    """Up to 2.13 at least, PyTorch runs the micro-batches of a backward pass in reverse."""
    for loops in range(1, 5):
        for microbatches in range(1, 17):
            ours = action_rows("breadth-first", Layout(ranks, microbatches, loops))
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
                assert theirs == action_rows("zb1p", layout)
            else:
                with pytest.raises(ValueError, match="multiple of the number of rounds"):
                    looped(pipelining, "InterleavedZeroBubble", ranks, microbatches, loops)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", SIZES)
def test_zb_v_is_pytorchs(pipelining: Any, ranks: int) -> None:
    make = pipelining.get_schedule_class("ZBVZeroBubble")
    for microbatches in range(1, 4 * ranks + 1):
        theirs = staged(make, (0, 2 * ranks - 1), ranks, microbatches)
        assert theirs == action_rows("zb-v", find_schedule("zb-v").layout(ranks, microbatches))


@pytest.mark.torch
@pytest.mark.parametrize("ranks", range(2, 9))
def test_dualpipe_v_is_pytorchs(pipelining: Any, ranks: int) -> None:
    """Blocks and all; PyTorch runs it from twice as many micro-batches as ranks on."""
    make = pipelining.get_schedule_class("DualPipeV")
    for microbatches in range(2 * ranks, 5 * ranks + 2):
        theirs = staged(make, (0, 2 * ranks - 1), ranks, microbatches)
        assert theirs == action_rows(
            "dualpipe-v", find_schedule("dualpipe-v").layout(ranks, microbatches)
        )


def _with_backwards_reversed(order: list[str], microbatches: int) -> list[str]:
    middle = len(order) // 2
    backwards = order[middle:]
    runs = [backwards[at : at + microbatches] for at in range(0, middle, microbatches)]
    return order[:middle] + [step for run in runs for step in reversed(run)]
