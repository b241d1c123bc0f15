"""Breadth-first: all micro-batches through one stage, then through the next (Figure 4d).

Two ranks, two loops, three micro-batches (stage.micro-batch):

      rank 0   F0.0 F0.1 F0.2 F2.0 F2.1 F2.2      ...      B2.0 B2.1 B2.2 B0.0 B0.1 B0.2
      rank 1        F1.0 F1.1 F1.2 F3.0 F3.1 F3.2 B3.0 B3.1 B3.2 B1.0 B1.1 B1.2

A stage is used in two contiguous segments, one forward and one backward: its weights are
gathered twice a step at most, and its gradients are reduced as soon as the
second segment ends. On one rank this is the paper's breadth-first gradient
accumulation (its appendix of that name).
"""

from __future__ import annotations

from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.layout.layout import Layout


class BreadthFirst(InSequences):
    """All micro-batches of a stage before those of the next."""

    name = "breadth-first"
    summary = "looped; all micro-batches of a stage before the next stage"
    looped = True

    def ahead(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """All, stage by stage: one sequence is the whole batch."""
        return layout.loops * layout.microbatches


SCHEDULE = BreadthFirst()
