"""GPipe: every forward pass, then every backward pass (paper, Figure 4a).

rank 0   F0 F1 F2 F3                   B0 B1 B2 B3
rank 1      F0 F1 F2 F3             B0 B1 B2 B3
rank 2         F0 F1 F2 F3       B0 B1 B2 B3
rank 3            F0 F1 F2 F3 B0 B1 B2 B3
"""

from __future__ import annotations

from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.layout.layout import Layout


class GPipe(InSequences):
    """All forward passes, then all backward passes."""

    name = "gpipe"
    summary = "non-looped; all forward passes, then all backward passes"

    def ahead(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """All, through the one stage of a rank."""
        return layout.microbatches


SCHEDULE = GPipe()
