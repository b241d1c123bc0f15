"""V-Half and V-Min: a V in half or a third of 1F1B's activations (Qi et al., NeurIPS 2024).

A micro-batch goes along the V four times: forward down and up the ranks, and the input halves of
its backward pass down and up again. A building block says in which slot each rank runs each of
these legs. The next micro-batch follows six slots later, as a rank has six passes of each: the
weight halves of backward passes take what slots are left. How far the legs are apart decides how
many micro-batches are alive.

The block repeats while the pipeline is full. Before and after that (rank 0 has not yet run its
first input half of stage 0, or has run its last forward pass of it) a pass moves to the earliest
free slot after those that it waits for in which its rank's activations do not exceed the block's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from bfpp.schedules.layout import Layout
from bfpp.schedules.steps import OnVee, Step, backward_input, backward_weight, forward

PERIOD = 6
"""Slots from one micro-batch to the next: the passes of two stages, forward and in two halves."""

FORWARD_DOWN, FORWARD_UP, INPUT_DOWN, INPUT_UP = range(4)
"""The legs of a micro-batch. Forward passes end where they began, so backward ones go as they."""

Slots = tuple[int, int, int, int]
"""In which slot a rank runs each leg of the first micro-batch."""

Pass = tuple[int, int, int]
"""(rank, leg, micro-batch)"""


class _ControllableMemory(OnVee):
    """A building block, repeated."""

    def block(self, ranks: int, rank: int) -> Slots:
        """The slots of a rank's legs."""
        raise NotImplementedError

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """The passes in the order of their slots, and weight halves in the slots between them."""
        block = tuple(self.block(layout.pp, each) for each in range(layout.pp))
        down, up = layout.stages_of(rank)
        stage_of = {FORWARD_DOWN: down, FORWARD_UP: up, INPUT_DOWN: up, INPUT_UP: down}
        waiting: list[Step] = []
        free = 0
        for slot, leg, microbatch in _slots(block, layout.microbatches)[rank]:
            yield from waiting[: slot - free]
            waiting = waiting[slot - free :]
            free = slot + 1
            if leg in (FORWARD_DOWN, FORWARD_UP):
                yield forward(stage_of[leg], microbatch)
            else:
                yield backward_input(stage_of[leg], microbatch)
                waiting.append(backward_weight(stage_of[leg], microbatch))
        yield from waiting


class VHalf(_ControllableMemory):
    """Half of the activations of 1F1B, and about half of its bubble."""

    name = "v-half"
    summary = "on a V, 2 stages a rank; backward passes in halves, half the memory of 1F1B"

    def block(self, ranks: int, rank: int) -> Slots:
        """Legs down are half as fast as legs up."""
        apart = 0 if ranks % 2 else 3  # else two legs would meet in a slot
        back = 3 * ranks + apart
        return 2 * rank, 3 * ranks - rank - 2, back + 2 * rank - 1, back + 3 * ranks - rank - 2


class VMin(_ControllableMemory):
    """A third of the activations of 1F1B, and about two thirds of its bubble."""

    name = "v-min"
    summary = "on a V, 2 stages a rank; backward passes in halves, a third of the memory of 1F1B"

    def block(self, ranks: int, rank: int) -> Slots:
        """All legs without a pause, and each next one at once."""
        apart = 0 if ranks % 3 else 2  # else two legs would meet in a slot
        back = 2 * ranks + apart
        return rank, 2 * ranks - rank - 1, back + rank, back + 2 * ranks - rank - 1


@lru_cache(maxsize=8)
def _slots(block: tuple[Slots, ...], microbatches: int) -> list[list[tuple[int, int, int]]]:
    """For each rank, its (slot, leg, micro-batch) in turn."""
    slot = {
        (rank, leg, microbatch): first + PERIOD * microbatch
        for rank, legs in enumerate(block)
        for leg, first in enumerate(legs)
        for microbatch in range(microbatches)
    }
    passes: list[dict[int, int]] = [{} for _ in block]
    for (rank, leg, _), at in slot.items():
        passes[rank][at] = leg
    most = max(map(_peak, passes))
    full, drains = slot[0, INPUT_UP, 0], slot[0, FORWARD_DOWN, microbatches - 1]
    for each, at in sorted(slot.items(), key=lambda item: (item[1], item[0])):
        if full <= at <= drains:
            continue
        rank, leg, _ = each
        ready = max((slot[other] + 1 for other in _waits_for(each, len(block))), default=0)
        for earlier in range(ready, at):
            if earlier in passes[rank]:
                continue
            moved = {**passes[rank], earlier: leg}
            del moved[at]
            if _peak(moved) <= most:
                passes[rank], slot[each] = moved, earlier
                break
    return [
        sorted((at, leg, number) for (of, leg, number), at in slot.items() if of == rank)
        for rank in range(len(block))
    ]


def _waits_for(each: Pass, ranks: int) -> Iterable[Pass]:
    """The same leg on the rank before, the leg before, and the micro-batch before."""
    rank, leg, microbatch = each
    before = rank - 1 if leg in (FORWARD_DOWN, INPUT_DOWN) else rank + 1
    if 0 <= before < ranks:
        yield before, leg, microbatch
    if leg:
        yield rank, leg - 1, microbatch
    if microbatch:
        yield rank, leg, microbatch - 1


def _peak(passes: Mapping[int, int]) -> int:
    """The most activations alive on a rank whose weight halves take the slots between passes."""
    alive = waiting = most = 0
    for slot in range(max(passes) + 1):
        leg = passes.get(slot)
        if leg is None:
            alive -= waiting > 0
            waiting -= waiting > 0
        elif leg in (FORWARD_DOWN, FORWARD_UP):
            alive += 1
            most = max(most, alive)
        else:
            waiting += 1
    return most


V_HALF = VHalf()
V_MIN = VMin()
