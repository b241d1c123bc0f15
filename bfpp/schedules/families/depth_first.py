"""Depth-first: micro-batches in short sequences, forward and backward in turn (Figure 4c).

The interleaved 1F1B of Megatron-LM. A rank takes a sequence of micro-batches
through its first stage, then through its next one, then the next sequence.
Before its first backward pass, rank r runs the forward passes of a whole
sequence through all stages but its last, and 2 (N_PP - 1 - r) more.

A sequence of N_PP is the paper's schedule. A longer one is the hybrid that the
paper conjectures, and Megatron-LM's `microbatch_group_size_per_vp_stage`: a
micro-batch then has time to loop around although transfers delay it. The last
sequence is shorter where the batch is no multiple of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import Repetition


@dataclass(frozen=True)
class DepthFirst(InSequences):
    """`sequence` micro-batches run together: as many as there are ranks, by default."""

    sequence: int | None = field(
        default=None,
        metadata={
            "help": "micro-batches that depth-first runs together (default: as many as ranks)"
        },
    )

    name = "depth-first"
    summary = "looped; sequences of N_PP micro-batches, forward and backward in turn"
    looped = True

    def __post_init__(self) -> None:
        if self.sequence is not None and self.sequence < 1:
            raise InvalidConfiguration("sequence", f"must be at least 1, not {self.sequence}")

    def sequence_of(self, layout: Layout) -> int:
        """The given length, by default the number of ranks."""
        return self.sequence or layout.pp

    def ahead(self, layout: Layout, rank: int) -> int:
        """A sequence through all stages but the last, and two for each rank after this one."""
        return (layout.loops - 1) * self.sequence_of(layout) + 2 * (layout.pp - 1 - rank)

    def repetition(self, layout: Layout) -> Repetition:
        """Every sequence."""
        return Repetition(self.sequence_of(layout), 1 + self.ahead(layout, 0) // layout.loops)

    def validate(self, layout: Layout) -> None:
        """Sequences must be full, and long enough to fill the pipeline."""
        sequence = self.sequence_of(layout)
        if sequence < layout.pp:
            raise InvalidConfiguration(
                "sequence",
                f"a sequence of {sequence} micro-batches cannot fill {layout.pp} ranks; "
                f"depth-first needs at least {layout.pp}",
            )
        if layout.pp < sequence > layout.microbatches:
            raise InvalidConfiguration(
                "sequence", f"{sequence} are more than the batch of {layout.microbatches}"
            )
        last = layout.microbatches % sequence
        if 0 < last < layout.pp:
            raise InvalidConfiguration(
                "microbatches",
                f"{layout.microbatches} in sequences of {sequence} leave {last} for the last, "
                f"which cannot fill {layout.pp} ranks",
            )


SCHEDULE = DepthFirst()
