"""Seq1F1B: 1F1B over slices of sequences (Sun et al., 2024).

Attention looks back: a slice needs the slices before it forward, and those after it backward. So
the slices of a micro-batch run in order forward and in reverse backward, and 1F1B fits around that
with as many more forward passes ahead as a micro-batch has further slices. Two ranks, two
micro-batches of two slices (micro-batch.slice):

      rank 0   F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 B1.1 B1.0
      rank 1        F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0

A pass takes a slice's share of the time, and so does the bubble of the memory and of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import Schedule, Step, backward, forward, in_turn


class Seq1F1B(Schedule):
    """Equal slices of each sequence, which count as micro-batches."""

    slices: int = field(
        default=2, metadata={"help": "slices of a sequence that seq1f1b runs one by one"}
    )

    name = "seq1f1b"
    summary = "non-looped; 1f1b over slices of sequences, in order forward and in reverse backward"

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise InvalidConfiguration("slices", f"must be at least 1, not {self.slices}")

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Warm up, then one forward and one backward in turn, then drain."""
        (stage,) = layout.stages_of(rank)
        forwards = (forward(stage, each) for each in range(layout.microbatches))
        backwards = (
            backward(stage, each)
            for first in range(0, layout.microbatches, self.slices)
            for each in reversed(range(first, first + self.slices))
        )
        yield from in_turn(layout.pp - rank + self.slices - 2, forwards)
        yield from in_turn(layout.microbatches, forwards, backwards)


SCHEDULE = Seq1F1B()
