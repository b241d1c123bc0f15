"""Schedules of whole backward passes that differ in two numbers, as the paper's four do.

A rank takes micro-batches in sequences, each of them through all its stages: forward from the
first stage to the last, backward in reverse. It runs some forward passes ahead, then one forward
and one backward in turn, then the backward passes that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bfpp.core.orders import Orders
from bfpp.core.orders import in_sequences as in_sequences_by_core
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import Schedule, Step, backward, forward, in_sequences, in_turn


class InSequences(Schedule):
    """A schedule given by the length of its sequences and its warm-up of forward passes."""

    def sequence_of(self, layout: Layout) -> int:
        """Micro-batches of a sequence: all, by default."""
        return layout.microbatches

    def ahead(self, layout: Layout, rank: int) -> int:
        """Forward passes before the first backward one: none below 0, all if there are fewer."""
        raise NotImplementedError

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Warm up, then one forward and one backward in turn, then drain."""
        stages = layout.stages_of(rank)
        batch = layout.microbatches, self.sequence_of(layout)
        forwards = in_sequences(forward, stages, *batch)
        backwards = in_sequences(backward, stages[::-1], *batch)
        yield from in_turn(max(self.ahead(layout, rank), 0), forwards)
        yield from in_turn(len(stages) * layout.microbatches, forwards, backwards)

    def joined_orders(self, layout: Layout) -> Orders:
        """Columns of the orders of all ranks, by the core; raises like `require`."""
        kind = type(self)
        if (kind.steps, kind.orders) != (InSequences.steps, InSequences.orders):
            return super().joined_orders(layout)
        self.require(layout)
        ahead = [max(self.ahead(layout, rank), 0) for rank in range(layout.pp)]
        return by_core(layout, self.sequence_of(layout), ahead)


def by_core(
    layout: Layout, sequence: int, ahead: Sequence[int], late: Sequence[int] | None = None
) -> Orders:
    """Columns of the orders of all ranks; with `late`, backward passes are in halves."""
    stages = layout.stages_by_rank
    return in_sequences_by_core(
        stages.member,
        stages.start,
        layout.microbatches,
        sequence,
        np.array(ahead),
        None if late is None else np.array(late),
    )
