"""GPipe: every forward pass, then every backward pass (paper, Figure 4a).

rank 0   F0 F1 F2 F3                   B0 B1 B2 B3
rank 1      F0 F1 F2 F3             B0 B1 B2 B3
rank 2         F0 F1 F2 F3       B0 B1 B2 B3
rank 3            F0 F1 F2 F3 B0 B1 B2 B3
"""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.layout import Layout
from bfpp.schedules.steps import Schedule, Step, backward, forward


class GPipe(Schedule):
    """All forward passes, then all backward passes."""

    name = "gpipe"
    summary = "non-looped; all forward passes, then all backward passes"

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """One stage, forward and then backward."""
        (stage,) = layout.stages_of(rank)
        for microbatch in range(layout.microbatches):
            yield forward(stage, microbatch)
        for microbatch in range(layout.microbatches):
            yield backward(stage, microbatch)


SCHEDULE = GPipe()
