"""V-Half and V-Min: a V in half or a third of 1F1B's activations.

After Qi et al., "Pipeline Parallelism with Controllable Memory" (NeurIPS 2024). A micro-batch goes
along the V four times: forward down and up the ranks, and the input halves of its backward pass
down and up again. A *building block* gives the slot of each of these legs on each rank. The next
micro-batch follows six slots later, as a rank has six passes of each: the weight halves of backward
passes take the slots that are left. How far the legs are apart decides how many micro-batches are
in flight.

The block repeats in the steady state. In warm-up and drain (rank 0 has not yet run its first
input half of stage 0, or has run its last forward pass of it) two rules shorten the step:

- A pass or a weight half moves to the earliest free slot after those that it waits for in which its
  rank's activations do not exceed the block's peak.
- Slots in which nothing can run are dropped then, and passes move once more, also to slots of
  weight halves, which run later instead.

Step times are then those of the authors' scheduler (`zbv_greedy.py` of
sail-sg/zero-bubble-pipeline-parallelism; `tests/golden/published_schedules.csv`). The core moves
passes (`bfpp/core/source/repeated_block.c`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bfpp.core.orders import Orders, repeat_block
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import OnVee, Order, Repetition, Step, apart

Legs = tuple[int, int, int, int]
"""The slot of each leg of a rank's first micro-batch: forward, then backward."""


class _ControllableMemory(OnVee):
    """A building block, repeated."""

    def block(self, ranks: int, rank: int) -> Legs:
        """The slots of a rank's legs."""
        raise NotImplementedError

    def repetition(self, layout: Layout) -> Repetition:
        """Every micro-batch."""
        return Repetition(1, 1 + layout.pp)

    def steps(self, layout: Layout, rank: int) -> Iterable[Step]:
        """The order of a rank, step by step."""
        steps: list[Step] = self.orders(layout)[rank].tolist()
        return steps

    def orders(self, layout: Layout) -> list[Order]:
        """All in the order of their slots; weight halves in the order of the input halves."""
        return apart(self.joined_orders(layout))

    def joined_orders(self, layout: Layout) -> Orders:
        """The same as columns."""
        self.require(layout)
        block = [self.block(layout.pp, rank) for rank in range(layout.pp)]
        return repeat_block(np.array(block, dtype=np.int32), layout.microbatches)


class VHalf(_ControllableMemory):
    """Half of the activations of 1F1B, and about half of its bubble."""

    name = "v-half"
    summary = "on a V, 2 stages a rank; backward passes in halves, half the memory of 1F1B"

    def block(self, ranks: int, rank: int) -> Legs:
        """Legs down are half as fast as legs up."""
        apart = 0 if ranks % 2 else 3  # else two legs would meet in a slot
        back = 3 * ranks + apart
        return 2 * rank, 3 * ranks - rank - 2, back + 2 * rank - 1, back + 3 * ranks - rank - 2


class VMin(_ControllableMemory):
    """A third of the activations of 1F1B, and about two thirds of its bubble."""

    name = "v-min"
    summary = "on a V, 2 stages a rank; backward passes in halves, a third of the memory of 1F1B"

    def block(self, ranks: int, rank: int) -> Legs:
        """All legs without a pause, and each next one at once."""
        apart = 0 if ranks % 3 else 2  # else two legs would meet in a slot
        back = 2 * ranks + apart
        return rank, 2 * ranks - rank - 1, back + rank, back + 2 * ranks - rank - 1


V_HALF = VHalf()
V_MIN = VMin()
