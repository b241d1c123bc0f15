"""Zero bubble: backward passes in halves, the weight half later.

After Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024). No other rank waits for the
gradients of weights, so these fill the bubble. Three ranks, four micro-batches (ZB-H1; I and W are
the input half and the weight half of a backward pass):

      rank 0   F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
      rank 1      F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
      rank 2         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

Rank r runs some forward passes ahead, then an input half, a weight half and a forward pass in
turn; its weight halves begin some input halves late. The schedules differ in these numbers:

            ahead                      late    peak activations   source
    ZB-H1   N_PP - r                   r       N_PP, as 1F1B      the paper
    ZB-H2   2 (N_PP - r) - 1           2 r     2 N_PP - 1         the paper
    ZB1P    a sequence through all     r       N_PP               PyTorch's Schedule-
            stages but the last, and                              InterleavedZeroBubble
            N_PP - r

ZB-H2 has no bubble if all passes and halves take equally long, but only within each rank's span:
the ranks begin one after the other, and end so.
"""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.core.orders import Orders
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.families.in_sequences import by_core
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import (
    Repetition,
    Schedule,
    Step,
    backward_input,
    backward_weight,
    forward,
    in_sequences,
    in_turn,
)


class ZeroBubble(Schedule):
    """Some forward passes ahead, and weight halves some input halves late."""

    def ahead(self, layout: Layout, rank: int) -> int:
        """The forward passes before the first backward one."""
        return layout.pp - rank

    def late(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """The input halves before the first weight half, less one."""
        return rank

    def sequence(self, layout: Layout) -> int:
        """Micro-batches that run through a stage before those of the next."""
        return layout.microbatches

    def repetition(self, layout: Layout) -> Repetition:
        """Every sequence of a looped schedule; else every micro-batch."""
        period = self.sequence(layout) if self.looped else 1
        return Repetition(period, 1 + self.ahead(layout, 0) // layout.loops)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Warm up, then take turns, then drain; passes that have run out are skipped."""
        stages, passes = layout.stages_of(rank), layout.loops * layout.microbatches
        batch = layout.microbatches, self.sequence(layout)
        forwards = in_sequences(forward, stages, *batch)
        inputs = in_sequences(backward_input, stages[::-1], *batch)
        weights = in_sequences(backward_weight, stages[::-1], *batch)
        yield from in_turn(self.ahead(layout, rank), forwards)
        yield from in_turn(self.late(layout, rank), inputs, forwards)
        yield from in_turn(passes, inputs, weights, forwards)
        yield from weights

    def joined_orders(self, layout: Layout) -> Orders:
        """Columns of the orders of all ranks, by the core; raises what `require` does."""
        kind = type(self)
        if (kind.steps, kind.orders) != (ZeroBubble.steps, ZeroBubble.orders):
            return super().joined_orders(layout)
        self.require(layout)
        ahead, late = (
            [number(layout, rank) for rank in range(layout.pp)]
            for number in (self.ahead, self.late)
        )
        return by_core(layout, self.sequence(layout), ahead, late)


class ZBH1(ZeroBubble):
    """The activations of 1F1B, and a third of its bubble if all passes are equal."""

    name = "zb-h1"
    summary = "non-looped; 1F1B with backward passes in halves, in the memory of 1F1B"


class ZBH2(ZeroBubble):
    """No bubble on any rank if all passes are equal, with twice the activations."""

    name = "zb-h2"
    summary = "non-looped; as zb-h1 with twice the forward passes ahead, and no bubble on a rank"

    def ahead(self, layout: Layout, rank: int) -> int:
        """The number that end just when the first gradient arrives."""
        return 2 * (layout.pp - rank) - 1

    def late(self, layout: Layout, rank: int) -> int:  # noqa: ARG002
        """The number whose weight halves fill the idle time left at the end."""
        return 2 * rank


class ZB1P(ZeroBubble):
    """Looped ZB-H1, in sequences; the order is that of PyTorch's interleaved zero bubble."""

    name = "zb1p"
    summary = "looped; depth-first with backward passes in halves, in the memory of 1F1B"
    looped = True

    def ahead(self, layout: Layout, rank: int) -> int:
        """A sequence through all stages but the last, and one for each rank from here on."""
        return (layout.loops - 1) * self.sequence(layout) + layout.pp - rank

    def sequence(self, layout: Layout) -> int:
        """Equal sequences, as short as can be without being fewer than the ranks."""
        return layout.microbatches // _sequences(layout)

    def validate(self, layout: Layout) -> None:
        """Sequences are equally long."""
        if layout.microbatches % (count := _sequences(layout)):
            raise InvalidConfiguration(
                "microbatches",
                f"zb1p runs micro-batches in {count} equal sequences of at least {layout.pp}, and "
                f"{layout.microbatches} is not a multiple of {count}",
            )


def _sequences(layout: Layout) -> int:
    return max(1, layout.microbatches // layout.pp)


ZB_H1 = ZBH1()
ZB_H2 = ZBH2()
ZB_1P = ZB1P()
