"""DualPipe and DualPipeV: micro-batches that meet, forward and backward passes as one block.

Every rank holds two stages, with passes of micro-batches from either side. Where they meet, a
forward pass of one side and a backward pass of the other run as one block, in which the
communication of each hides behind the compute of the other. Two ranks, four micro-batches of
DualPipeV (stage.micro-batch; & joins what is one block):

      rank 0   F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 F0.3&B3.1 F3.2&B0.0 B3.2 F3.3&B0.1 ...
      rank 1        F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 F2.2&B1.0 F1.3&B2.1 F2.3&B1.1 B2.2 ...

In DualPipe (DeepSeek-V3, 2024) the sides are two copies of all stages, one for each end of the
pipeline. In DualPipeV (its half, by Sea AI Lab) they are the two halves of a V: what has come
down as the near side of a rank goes up as its far side. The order of a rank is the same in both,
by how many ranks it is from the outer end (those with a prime are of the far side):

    times                   step
    2 (inner - outer)       F
    outer + 1               F F'
    inner - outer           I'W'F'
    as many as there are    F&B' F'&B
    inner - outer           B' F'&B
    outer + 1               B' B, the second half of these in halves
    inner - outer           W I
    outer + 1               W

where `inner` is the rank farthest from that end. Its first block runs in turn, so that the
forward pass need not wait for what the backward pass needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.orders.steps import (
    InBothDirections,
    OnVee,
    Repetition,
    Step,
    WithBlocks,
    backward,
    backward_input,
    backward_weight,
    forward,
    in_turn,
)


class _Side(NamedTuple):
    """A stage of a rank, and what is left of its passes: each takes the next micro-batch."""

    forward: Iterator[Step]
    forward_in_block: Iterator[Step]
    backward: Iterator[Step]
    halves: Iterator[tuple[Step, Step]]

    @classmethod
    def of(cls, stage: int, microbatches: Iterable[int]) -> _Side:
        """The side of a stage through which these micro-batches come, one after the other."""
        forwards, backwards, stages = iter(microbatches), iter(microbatches), repeat(stage)
        return cls(
            map(forward, stages, forwards),
            map(_forward_in_block, stages, forwards),
            map(backward, stages, backwards),
            map(_halves, stages, backwards),
        )


def _forward_in_block(stage: int, microbatch: int) -> Step:
    """A forward pass that is one block with the step after it."""
    return (0, stage, microbatch, True)


def _halves(stage: int, microbatch: int) -> tuple[Step, Step]:
    return backward_input(stage, microbatch), backward_weight(stage, microbatch)


def _both_sides(near: _Side, far: _Side, outer: int, inner: int, each: int) -> Iterator[Step]:
    """The order of a rank that is `outer` ranks from the end, for `each` micro-batches a side."""
    between = inner - outer
    meetings = each - 2 * between - outer - 1
    weights: deque[Step] = deque()

    def split(side: _Side) -> Step:
        of_input, of_weight = next(side.halves)
        weights.append(of_weight)
        return of_input

    yield from in_turn(2 * between, near.forward)
    yield from in_turn(outer + 1, near.forward, far.forward)
    for _ in range(between):
        yield split(far)
        yield weights.popleft()
        yield next(far.forward)
    if not between:
        meetings -= 1
        yield from in_turn(1, near.forward, far.backward, far.forward_in_block, near.backward)
    yield from in_turn(
        meetings, near.forward_in_block, far.backward, far.forward_in_block, near.backward
    )
    yield from in_turn(between, far.backward, far.forward_in_block, near.backward)
    for turn in range(2 * (outer + 1)):
        side = near if turn % 2 else far
        yield split(side) if turn > outer else next(side.backward)
    for _ in range(between):
        yield weights.popleft()
        yield split(near)
    yield from weights


class DualPipe(InBothDirections, WithBlocks):
    """Both sides are copies of the model."""

    name = "dualpipe"
    summary = "two copies of each stage; from both ends at once, in fused forward-backward blocks"

    def copy_of(self, layout: Layout, microbatch: int) -> int:
        """The second half of the micro-batches begins on the last rank."""
        return int(microbatch >= layout.microbatches // 2)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """A rank of either half is as far from its own end."""
        each = layout.microbatches // 2
        down = _Side.of(rank, range(each))
        up = _Side.of(layout.pp - 1 - rank, range(each, layout.microbatches))
        inner, outer = layout.pp // 2 - 1, min(rank, layout.pp - 1 - rank)
        sides = (down, up) if rank == outer else (up, down)
        return _both_sides(*sides, outer, inner, each)

    def validate(self, layout: Layout) -> None:
        """Both sides have as many micro-batches, and fill the pipeline."""
        if layout.microbatches % 2 or layout.microbatches < 2 * layout.pp:
            raise InvalidConfiguration(
                "microbatches",
                f"{self.name} needs an even number of at least {2 * layout.pp} on {layout.pp} "
                f"ranks, not {layout.microbatches}",
            )


class DualPipeV(OnVee, WithBlocks):
    """Both sides are halves of the model."""

    name = "dualpipe-v"
    summary = "on a V, 2 stages a rank; down and up at once, in fused forward-backward blocks"

    def repetition(self, layout: Layout) -> Repetition:
        """Every micro-batch."""
        return Repetition(1, 1 + 2 * layout.pp)

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """The first half of the model is the near side."""
        near, far = (
            _Side.of(stage, range(layout.microbatches)) for stage in layout.stages_of(rank)
        )
        return _both_sides(near, far, rank, layout.pp - 1, layout.microbatches)

    def validate(self, layout: Layout) -> None:
        """Micro-batches fill the V."""
        if layout.microbatches < 2 * layout.pp:
            raise InvalidConfiguration(
                "microbatches",
                f"{self.name} needs at least {2 * layout.pp} on {layout.pp} ranks, not "
                f"{layout.microbatches}",
            )


DUAL_PIPE = DualPipe()
DUAL_PIPE_V = DualPipeV()
