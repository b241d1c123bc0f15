"""1F1B: as GPipe, but each backward pass runs as soon as it can (paper, Figure 4b).

      rank 0   F0 F1 F2 F3          B0 F4 B1 F5 B2 ...
      rank 1      F0 F1 F2       B0 F3 B1 F4 B2 ...
      rank 2         F0 F1    B0 F2 B1 F3 B2 ...
      rank 3            F0 B0 F1 B1 F2 B2 ...

Rank r runs N_PP - 1 - r forward passes ahead, so at most N_PP - r micro-batches
are alive on it. On one rank this is plain (depth-first) gradient accumulation:
each micro-batch runs forward and backward before the next one begins.
"""

from __future__ import annotations

from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import Repetition


class OneForwardOneBackward(InSequences):
    """Forward and backward passes in turn."""

    name = "1f1b"
    summary = "non-looped; forward and backward passes in turn"

    def ahead(self, layout: Layout, rank: int) -> int:
        """One for each rank after this one."""
        return layout.pp - 1 - rank

    def repetition(self, layout: Layout) -> Repetition:
        """Every micro-batch."""
        return Repetition(1, layout.pp)


SCHEDULE = OneForwardOneBackward()
