"""Chimera: two 1F1B pipelines in opposite directions, over two copies of each stage.

Four ranks, four micro-batches; those with a prime go up:

      rank 0   F0    F1 F2'B2'F3'B3'B0    B1
      rank 1      F0 F2'F1 F3'B2'B0 B3'B1
      rank 2      F2'F0 F3'F1 B0 B2'B1 B3'
      rank 3   F2'   F3'F0 B0 F1 B1 B2'   B3'

Every rank holds a stage near the start and its mirror image near the end, so that it
is idle only where both wait. Each direction alone is 1F1B in slots of one pass, all of
which it leaves free for the other one every second time: for as many micro-batches as
ranks the two are merged without conflict, and larger batches are such groups one after
another, each of which begins in the bubble of the last (Li and Hoefler 2021).

That is so where all passes take equally long. Where a backward pass takes twice as long as a
forward one, two ways of theirs make the slots equal: forward passes of two
micro-batches in one slot (forward doubling, with twice the activations), or backward passes of
half a micro-batch (backward halving). Then every rank runs in each slot a backward pass that is
ready, else a forward one, of the direction that is behind, with no more alive than in a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from operator import itemgetter

from bfpp.schedules.columns import NONE
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.steps import InBothDirections, Step, backward, forward

PAIR = 2
"""Micro-batches, or halves of one, whose forward passes share a slot."""


class Chimera(InBothDirections):
    """1F1B in both directions at once."""

    forward_doubling: bool = field(
        default=False, metadata={"help": "chimera runs forward passes two at a time"}
    )
    backward_halving: bool = field(
        default=False, metadata={"help": "chimera runs backward passes by half micro-batches"}
    )

    name = "chimera"
    summary = "two copies of each stage; 1F1B down and up the ranks at once"

    def __post_init__(self) -> None:
        if self.forward_doubling and self.backward_halving:
            raise InvalidConfiguration("backward_halving", "excludes forward doubling")

    @property
    def slices(self) -> int:
        """Halves, where backward passes are of these."""
        return PAIR if self.backward_halving else 1

    @property
    def _together(self) -> int:
        return PAIR if self.forward_doubling or self.backward_halving else 1

    def copy_of(self, layout: Layout, microbatch: int) -> int:
        """The second half of a group of micro-batches goes up."""
        number = microbatch // self._together
        group, in_turn = divmod(number, layout.pp)
        in_group = min(layout.pp, layout.microbatches // self._together - group * layout.pp)
        return int(in_turn >= (in_group + 1) // 2)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Both directions' steps, in the order of their slots."""
        if self._together == PAIR:
            pairs = range(0, layout.microbatches, PAIR)
            copies = tuple(self.copy_of(layout, first) for first in pairs)
            yield from _in_pairs(layout.pp, copies)[rank]
            return
        stages = rank, layout.pp - 1 - rank
        slots: dict[int, Step] = {}
        begun = [0, 0]
        for microbatch in range(layout.microbatches):
            if microbatch % layout.pp == 0:
                begun = [2 * microbatch] * 2
            copy = self.copy_of(layout, microbatch)
            stage, slot = stages[copy], begun[copy]
            begun[copy] += 2
            slots[slot + stage] = forward(stage, microbatch)
            slots[slot + 2 * layout.pp - 1 - stage] = backward(stage, microbatch)
        for slot in sorted(slots):
            yield slots[slot]

    def validate(self, layout: Layout) -> None:
        """Both directions need something to do."""
        if layout.whole_microbatches < 2:
            raise InvalidConfiguration(
                "microbatches", f"{self.name} needs at least two: one in each direction"
            )
        if self.forward_doubling and (layout.microbatches % PAIR or layout.microbatches < 2 * PAIR):
            raise InvalidConfiguration(
                "microbatches",
                f"forward doubling takes pairs, one in each direction at least, and "
                f"{layout.microbatches} are none",
            )


@lru_cache(maxsize=8)
def _in_pairs(ranks: int, copies: tuple[int, ...]) -> list[list[Step]]:
    """The orders of all ranks, by slots of two forward passes or a backward one.

    `copies` is the copy that each pair of micro-batches goes through.
    """
    firsts = [[PAIR * pair for pair, of in enumerate(copies) if of == copy] for copy in (0, 1)]
    forwards = [_queues(rank, ranks, firsts, _forward_of_pair) for rank in range(ranks)]
    backwards = [_queues(rank, ranks, firsts, _backward_of_pair) for rank in range(ranks)]
    orders: list[list[Step]] = [[] for _ in range(ranks)]
    alive = [0] * ranks
    ended: dict[Step | None, int] = {None: NONE}
    slot = 0
    while any(map(any, backwards)):
        for rank in range(ranks):
            may_begin = forwards[rank] if alive[rank] < PAIR * ranks else []
            heads = [
                queue
                for queues in (backwards[rank], may_begin)
                for queue in sorted(filter(None, queues), key=itemgetter(0))
            ]
            for queue in heads:
                _, steps = queue[0]
                if ended.get(_needed(steps[0], ranks), slot) < slot:
                    queue.popleft()
                    orders[rank] += steps
                    ended |= dict.fromkeys(steps, slot)
                    alive[rank] += PAIR if steps[0][0] == Operation.FORWARD else -1
                    break
        slot += 1
    return orders


Pass = tuple[int, tuple[Step, ...]]
"""Its number in its direction, and the steps that share a slot."""


def _queues(
    rank: int,
    ranks: int,
    firsts: Sequence[Sequence[int]],
    of_pair: Callable[[int, int], list[tuple[Step, ...]]],
) -> list[deque[Pass]]:
    """The passes of a rank in either direction."""
    return [
        deque(enumerate(each for first in pairs for each in of_pair(stage, first)))
        for stage, pairs in zip((rank, ranks - 1 - rank), firsts, strict=True)
    ]


def _forward_of_pair(stage: int, first: int) -> list[tuple[Step, ...]]:
    return [(forward(stage, first), forward(stage, first + 1))]


def _backward_of_pair(stage: int, first: int) -> list[tuple[Step, ...]]:
    return [(backward(stage, first + 1),), (backward(stage, first),)]


def _needed(step: Step, stages: int) -> Step | None:
    """The step that another one waits for."""
    operation, stage, microbatch, _ = step
    if operation == Operation.FORWARD:
        return forward(stage - 1, microbatch) if stage else None
    if stage == stages - 1:
        return forward(stage, microbatch)
    return backward(stage + 1, microbatch)


SCHEDULE = Chimera()
