"""ZB-V: zero bubble on a V, in the memory of 1F1B.

After Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), section 6; PyTorch's
ScheduleZBVZeroBubble has the same order. Stages go down the ranks and up again, so the last
forward pass and the first backward pass of a micro-batch are on the rank of the first. Two ranks,
four micro-batches (stage.micro-batch):

      rank 0   F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 F0.3 I0.0 W0.0 F3.2 I3.2 W3.2 ...
      rank 1        F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 W2.1 F1.3 I1.1 W1.1 ...

Made for passes and halves that all take equally long: then no rank is idle between its first and
its last step, from 2 N_PP - 1 micro-batches on.
"""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import (
    OnVee,
    Repetition,
    Step,
    backward_input,
    backward_weight,
    forward,
    in_sequences,
    in_turn,
)


class ZBV(OnVee):
    """The two stages of a rank in turn, each forward, then both halves backward."""

    name = "zb-v"
    summary = "on a V, 2 stages a rank; backward passes in halves, no bubble in the memory of 1F1B"

    def repetition(self, layout: Layout) -> Repetition:
        """Every micro-batch."""
        return Repetition(1, 2 * layout.pp)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Warm up, then take turns, then drain; passes that have run out are skipped."""
        down, up = layout.stages_of(rank)
        ranks, below = layout.pp, layout.pp - rank
        full = max(layout.microbatches, 2 * ranks - 1)
        (forward_down, forward_up), (input_down, input_up), (weight_down, weight_up) = (
            [in_sequences(step, [stage], layout.microbatches) for stage in (down, up)]
            for step in (forward, backward_input, backward_weight)
        )
        yield from in_turn(2 * below - 1, forward_down)
        yield from in_turn(rank, forward_up, forward_down)
        yield from in_turn(below, forward_up, input_up, weight_up)
        yield from in_turn(
            full - ranks, forward_down, input_down, weight_down, forward_up, input_up, weight_up
        )
        yield from in_turn(rank, input_down, input_up)
        yield from in_turn(below, input_down, weight_down)
        yield from weight_up
        yield from weight_down


SCHEDULE = ZBV()
