"""The reference of the core's repeated blocks, in plain objects.

The rules are at the head of `bfpp/schedules/families/controllable_memory.py`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.steps import STEP, Order

PERIOD = 6
"""Slots from one micro-batch to the next: the passes of two stages, forward and in two halves."""

FORWARD_DOWN, FORWARD_UP, INPUT_DOWN, INPUT_UP, WEIGHT = range(5)
"""The legs of a micro-batch, and its weight halves.

Forward passes end where they began, so backward ones go as they.
"""

OPERATION_OF_LEG = (
    Operation.FORWARD, Operation.FORWARD, Operation.BACKWARD_INPUT, Operation.BACKWARD_INPUT,
    Operation.BACKWARD_WEIGHT,
)  # fmt: skip

FORWARDS, INPUTS = (FORWARD_DOWN, FORWARD_UP), (INPUT_DOWN, INPUT_UP)

Legs = tuple[int, int, int, int]
"""The slot of each leg of a rank's first micro-batch."""

Slots = dict[tuple[int, int], int]
"""A rank's slot for each (leg, micro-batch); weight halves are numbered in turn."""


def orders_of(block: tuple[Legs, ...], microbatches: int) -> list[Order]:
    """The order of each rank: the same for stages of any units."""
    last = 2 * len(block) - 1
    return [
        _order((rank, last - rank), slots) for rank, slots in enumerate(_slots(block, microbatches))
    ]


def _order(stages: tuple[int, int], slots: Slots) -> Order:
    """The order of a rank that holds these stages, down and up."""
    leg, microbatch = np.array(sorted(slots, key=slots.__getitem__)).T
    order = np.zeros(len(leg), STEP)
    order["operation"] = np.array(OPERATION_OF_LEG)[leg]
    order["stage"] = np.where((leg == FORWARD_DOWN) | (leg == INPUT_UP), *stages)
    order["microbatch"] = microbatch
    weights, inputs = leg == WEIGHT, (leg == INPUT_DOWN) | (leg == INPUT_UP)
    for name in ("stage", "microbatch"):
        order[name][weights] = order[name][inputs]
    order.flags.writeable = False
    return order


def _slots(block: tuple[Legs, ...], microbatches: int) -> list[Slots]:
    """The slots of each rank."""
    repeated: list[Slots] = [
        {
            (leg, microbatch): first + PERIOD * microbatch
            for leg, first in enumerate(legs)
            for microbatch in range(microbatches)
        }
        for legs in block
    ]
    slots = [_with_weights(each) for each in repeated]
    most = max(map(_peak, slots))
    squeezed = _squeezed(_moved(slots, most))
    passes = [{each: at for each, at in of.items() if each[0] != WEIGHT} for of in squeezed]
    return [_with_weights(each) for each in _moved(passes, most)]


def _with_weights(slots: Slots) -> Slots:
    """With weight halves in the first free slots after their input halves, if there are none."""
    if (WEIGHT, 0) in slots:
        return slots
    filled, taken, free = dict(slots), set(slots.values()), 0
    for number, at in enumerate(_inputs(slots)):
        free = max(free, at) + 1
        while free in taken:
            free += 1
        filled[WEIGHT, number] = free
    return filled


def _inputs(slots: Slots) -> list[int]:
    return sorted(at for (leg, _), at in slots.items() if leg in INPUTS)


def _peak(slots: Slots) -> int:
    """The most activations alive on a rank."""
    alive = most = 0
    filled = _with_weights(slots)
    for leg, _ in sorted(filled, key=filled.__getitem__):
        alive += (leg in FORWARDS) - (leg == WEIGHT)
        most = max(most, alive)
    return most


EMPTY = -1


class _Rank:
    """Slots of a rank, and the activations alive after each, while passes are moved.

    Weight halves have slots of their own, or else take those that are free. `alive` is after each
    slot, with the weight halves that wait for one. A pass that moves changes these between its
    slots, and until a free slot makes up for it: what comes after that is as it was. So `over`,
    the number of slots with more than `most` alive, covers all slots and is known from a few.
    """

    def __init__(self, slots: Slots, most: int) -> None:
        self.slots, self._most = slots, most
        self._fills = (WEIGHT, 0) not in slots
        self.inputs = _inputs(slots)
        self.legs = [EMPTY] * (max(slots.values()) + len(self.inputs) + 2)
        for (leg, _), at in slots.items():
            self.legs[at] = leg
        self._alive = list(accumulate(self.legs, self._after, initial=(0, 0)))
        self._over = self._exceed(self._alive)

    def _after(self, before: tuple[int, int], leg: int) -> tuple[int, int]:
        """Activations alive and weight halves waiting after a slot, by those before it."""
        alive, waiting = before
        if leg in FORWARDS:
            return alive + 1, waiting
        if leg in INPUTS:
            return alive, waiting + self._fills
        if leg == WEIGHT:
            return alive - 1, waiting
        return (alive - 1, waiting - 1) if waiting else before

    def _exceed(self, counts: Sequence[tuple[int, int]]) -> int:
        return sum(alive > self._most for alive, _ in counts)

    def moved(self, each: tuple[int, int], earlier: int) -> bool:
        """Run a pass or a weight half in an earlier slot, if that is free and no peak too high."""
        at, leg = self.slots[each], each[0]
        if self.legs[earlier] != EMPTY:
            return False
        changed = [self._after(self._alive[earlier], leg)]
        for slot in range(earlier + 1, len(self.legs)):
            if slot > at and changed[-1] == self._alive[slot]:
                break
            own = EMPTY if slot == at else self.legs[slot]
            changed.append(self._after(changed[-1], own))
        window = slice(earlier + 1, earlier + 1 + len(changed))
        over = self._over - self._exceed(self._alive[window]) + self._exceed(changed)
        if over:
            return False
        self._over, self._alive[window] = over, changed
        self.slots[each], self.legs[earlier], self.legs[at] = earlier, leg, EMPTY
        if leg in INPUTS:
            self.inputs.remove(at)
            insort(self.inputs, earlier)
        return True


def _in_order(ranks: Sequence[Slots]) -> list[tuple[int, int, tuple[int, int]]]:
    """(slot, rank, what runs there) of all, in time."""
    return sorted((at, rank, each) for rank, of in enumerate(ranks) for each, at in of.items())


def _ready(ranks: Sequence[Slots], inputs: Sequence[int], rank: int, leg: int, number: int) -> int:
    """The first slot after the same leg on the rank before, the leg before, and the last one."""
    slots = ranks[rank]
    waits = [slots[leg, number - 1]] if number else [NONE]
    if leg == WEIGHT:
        waits.append(inputs[number])
    else:
        before = rank - 1 if leg in (FORWARD_DOWN, INPUT_DOWN) else rank + 1
        waits += [ranks[before][leg, number]] if 0 <= before < len(ranks) else []
        waits += [slots[leg - 1, number]] if leg else []
    return max(waits) + 1


def _moved(ranks: list[Slots], most: int) -> list[Slots]:
    """All to earlier slots, but for what runs while the pipeline is full."""
    full = ranks[0][INPUT_UP, 0]
    drains = max(at for (leg, _), at in ranks[0].items() if leg == FORWARD_DOWN)
    moving = [_Rank(dict(slots), most) for slots in ranks]
    places = [own.slots for own in moving]
    for at, rank, each in _in_order(ranks):
        if full <= at <= drains:
            continue
        own = moving[rank]
        ready = _ready(places, own.inputs, rank, *each)
        any(own.moved(each, earlier) for earlier in range(ready, at))
    return places


def _squeezed(ranks: list[Slots]) -> list[Slots]:
    """The same orders, without the slots in which nothing can run."""
    squeezed: list[Slots] = [{} for _ in ranks]
    free = [0] * len(ranks)
    for _, rank, each in _in_order(ranks):
        leg, _ = each
        ready = 0 if leg == WEIGHT else _ready(squeezed, (), rank, *each)
        squeezed[rank][each] = max(free[rank], ready)
        free[rank] = squeezed[rank][each] + 1
    return squeezed
