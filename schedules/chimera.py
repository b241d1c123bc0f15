"""Chimera: two 1F1B pipelines in opposite directions, over two copies of each stage.

Four ranks, four micro-batches; those with a prime go up:

      rank 0   F0    F1 F2'B2'F3'B3'B0    B1
      rank 1      F0 F2'F1 F3'B2'B0 B3'B1
      rank 2      F2'F0 F3'F1 B0 B2'B1 B3'
      rank 3   F2'   F3'F0 B0 F1 B1 B2'   B3'

Every rank holds a stage near the start and its mirror image near the end, so that it
is idle only where both wait. Each direction alone is 1F1B in slots of one pass, all of
which it leaves free for the other one every second time: for as many micro-batches as
ranks the two are merged without conflict, and larger batches are such groups one after
another, each of which begins in the bubble of the last (Li and Hoefler 2021, without
their forward doubling and backward halving).
"""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.layout import Layout
from bfpp.schedules.steps import Schedule, Step, backward, forward


class Chimera(Schedule):
    """1F1B in both directions at once."""

    name = "chimera"
    summary = "two copies of each stage; 1F1B down and up the ranks at once"

    def copies(self, pp: int, loops: int) -> tuple[tuple[int, ...], ...]:
        """The second copies are in reverse, so that no rank holds a stage twice."""
        if pp % 2:
            raise InvalidConfiguration("pp", f"{self.name} needs an even number of ranks, not {pp}")
        return (self.placement(pp, loops)[::-1],)

    def copy_of(self, layout: Layout, microbatch: int) -> int:
        """The second half of a group of micro-batches goes up."""
        group = microbatch // layout.pp
        in_group = min(layout.pp, layout.microbatches - group * layout.pp)
        return int(microbatch % layout.pp >= (in_group + 1) // 2)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Both directions' steps, in the order of their slots."""
        stages = rank, layout.pp - 1 - rank
        slots: dict[int, Step] = {}
        begun = [0, 0]
        for microbatch in range(layout.microbatches):
            if microbatch % layout.pp == 0:
                begun = [2 * microbatch] * 2
            copy = self.copy_of(layout, microbatch)
            stage, slot = stages[copy], begun[copy]
            begun[copy] += 2
            slots[slot + stage] = forward(stage, microbatch)
            slots[slot + 2 * layout.pp - 1 - stage] = backward(stage, microbatch)
        for slot in sorted(slots):
            yield slots[slot]

    def validate(self, layout: Layout) -> None:
        """Both directions need something to do."""
        if layout.microbatches < 2:
            raise InvalidConfiguration(
                "microbatches", f"{self.name} needs one in each direction, so two at least"
            )


SCHEDULE = Chimera()
