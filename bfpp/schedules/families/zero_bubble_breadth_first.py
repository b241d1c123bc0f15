"""Breadth-first with backward passes in halves: in place, or with zero bubble.

Both are rules of this project: the order is the paper's breadth-first, halves and late weight
halves are those of Qi et al. (`zero_bubble`). `docs/schedules.md` has their idle time and
activations.

Two ranks, two loops, four micro-batches, the last two stages (stage.micro-batch; I and W are the
input half and the weight half of a backward pass):

    bf-split  rank 0   F2.0 F2.1 F2.2 F2.3         I2.0 W2.0 I2.1 W2.1 I2.2 W2.2 I2.3 W2.3 ...
              rank 1   F3.0 F3.1 F3.2 F3.3 I3.0 W3.0 I3.1 W3.1 I3.2 W3.2 I3.3 W3.3 I1.0 W1.0 ...

    zb-bf     rank 0   F2.0 F2.1 F2.2 I2.0 W2.0 F2.3 I2.1 W2.1 I2.2 W2.2 I2.3 W2.3 I0.0 W0.0 ...
              rank 1   F3.0 I3.0 F3.1 I3.1 F3.2 I3.2 W3.0 F3.3 I3.3 W3.1 I1.0 I1.1 W3.2 W3.3 ...

All forward passes first, gradients of inputs reach the first rank an input half a rank later,
instead of a whole backward pass. To start them before the last stages' forward passes have ended
removes the rest of the bubble, but no rank may then fall behind: each runs `lead` more forward
passes ahead than the next, and its weight halves `lead` input halves later than the one before.

Weight halves that are late when a stage's input halves have all run go right after as many of the
next stage's: then its weights are in use, and its gradients complete, no later than if they took
turns, in one contiguous segment of micro-batches and not in many of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import (
    Schedule,
    Step,
    backward_input,
    backward_weight,
    forward,
    in_sequences,
    in_turn,
)


class _BreadthFirstInHalves(Schedule):
    """Stage by stage, all micro-batches each; how passes of the last stages overlap differs."""

    looped = True

    def ahead(self, layout: Layout, rank: int) -> int:
        """The forward passes of a rank's last stage before its first backward one."""
        raise NotImplementedError

    def late(self, layout: Layout, rank: int) -> int:
        """The input halves of a stage before its first weight half, less one."""
        raise NotImplementedError

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Forward passes ahead, then the halves stage by stage; a kind that runs out is skipped."""
        batch, stages = layout.microbatches, layout.stages_of(rank)
        late = min(self.late(layout, rank), batch)
        forwards = in_sequences(forward, stages, batch)
        yield from in_turn((layout.loops - 1) * batch + self.ahead(layout, rank), forwards)
        of_stage_before: Iterator[Step] = iter(())
        for stage in reversed(stages):
            inputs = in_sequences(backward_input, [stage], batch)
            weights = in_sequences(backward_weight, [stage], batch)
            yield from in_turn(late, inputs, forwards)
            yield from of_stage_before
            yield from in_turn(batch - late, inputs, weights, forwards)
            of_stage_before = weights
        yield from of_stage_before


class BreadthFirstSplit(_BreadthFirstInHalves):
    """Breadth-first's order, each backward pass in its halves."""

    name = "bf-split"
    summary = "looped; breadth-first with backward passes in halves"

    def ahead(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """All."""
        return layout.microbatches

    def late(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """None: with all forward passes first, late weight halves make nothing faster."""
        return 0


@dataclass(frozen=True)
class ZeroBubbleBreadthFirst(_BreadthFirstInHalves):
    """ZB-H2 in its last stages (for a lead of 1, ZB-H1), breadth-first before and after them."""

    lead: int = field(
        default=2,
        metadata={
            "help": "zb-bf: each rank runs this many forward passes further ahead than the next "
            "(default: 2, so that no rank is idle where all passes take equally long)"
        },
    )

    name = "zb-bf"
    summary = "looped; breadth-first with backward passes in halves, and no bubble on a rank"

    def __post_init__(self) -> None:
        if self.lead < 1:
            raise InvalidConfiguration("lead", f"must be at least 1, not {self.lead}")

    def ahead(self, layout: Layout, rank: int) -> int:
        """One on the last rank, and `lead` more on each before it."""
        return min(1 + self.lead * (layout.pp - 1 - rank), layout.microbatches)

    def late(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """None on the first rank, and `lead` more on each after it."""
        return self.lead * rank


BF_SPLIT = BreadthFirstSplit()
ZB_BF = ZeroBubbleBreadthFirst()
