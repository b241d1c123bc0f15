"""Waits: which operation of a replica's step waits for which.

The model is that of the published analysis, for 1F1B and interleaved schedules:

- Passes of a rank run in turn, and so do sends and receives of each kind.
- A receive is posted when the pass before its own has ended; its pass waits for it. The first ones
  of the backward pass are posted with the pass before the last of the warm-up.
- A send waits for its pass; its n-th meets the n-th receive of the neighbour. Those recorded before
  the first or after the last pass, or at the ends of the model, meet nothing.
- The gathers of parameters and the reductions of gradients of a rank run in turn. The first forward
  pass of a chunk waits for its parameters. Where reductions overlap passes (some gradients are then
  reduced apart), a chunk's first one waits for its last backward pass; else all come after passes.
- After the last pass come garbage collection, reductions, clipping and the update, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from bfpp.schedules.columns import NONE, Integers
from bfpp.traces.stragglers.kinds import (
    BACKWARD,
    COLLECTION,
    FORWARD,
    GRADIENTS,
    OTHER_GRADIENTS,
    PARAMETERS,
    TRANSFERS,
    UPDATE,
    Transfer,
)
from bfpp.traces.stragglers.rank_operations import CLOCK, Rank
from bfpp.traces.stragglers.typical_step import Operations


@dataclass
class Waits:
    """Edges between the operations, and the channel place of each transfer that meets another."""

    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    channel: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def add(self, before: Integers | list[int], after: Integers | list[int]) -> None:
        """Let each of `after` wait for its one of `before`."""
        self.before += list(map(int, before))
        self.after += list(map(int, after))

    def chain(self, rows: Integers | list[int]) -> None:
        """Let each operation wait for the one before it."""
        self.add(rows[:-1], rows[1:])


def waits_of(operations: Operations) -> Waits:
    """Waits between the operations of a replica's step."""
    waits, ranks = Waits(), int(operations.rank.max()) + 1
    overlapped = OTHER_GRADIENTS in operations.kinds
    for number in range(ranks):
        rank = Rank(operations, number)
        passes = _passes(rank)
        if not len(passes):
            continue
        waits.chain(passes)
        for kind, transfer in TRANSFERS.items():
            waits.chain(rank.of(kind))
            matched = rank.transfers(kind)
            _wait_for_passes(waits, rank, transfer, matched)
            meeting = (row for row, own in matched.items() if rank.is_inside(own, transfer))
            for place, row in enumerate(meeting):
                waits.channel[row] = _channel(number, ranks, transfer, place)
        _first_backward(waits, rank)
        _data_parallel(waits, rank, overlapped)
        _after_passes(waits, rank, passes, overlapped)
    return waits


def _passes(rank: Rank) -> Integers:
    """Operations in turn on a rank before its update: passes, and whatever comes between."""
    passes, each = rank.of(FORWARD, BACKWARD), rank.operations
    if not len(passes):
        return passes
    others = rank.others
    others = others[each.start[others] < each.end[passes].max() - CLOCK]
    rows = np.concatenate([passes, others])
    return rows[np.lexsort((each.kind[rows], each.nth[rows], each.start[rows]))]


def _wait_for_passes(waits: Waits, rank: Rank, transfer: Transfer, matched: dict[int, int]) -> None:
    """Send after the pass; receive before it, and after the one before."""
    rows, passes = list(matched), list(matched.values())
    if transfer.sends:
        waits.add(passes, rows)
        return
    waits.add(rows, passes)
    ahead = {after: before for before, after in pairwise(rank.numbered(transfer.pass_).tolist())}
    posted = [(ahead[own], row) for row, own in matched.items() if own in ahead]
    waits.add([own for own, _ in posted], [row for _, row in posted])


def _channel(rank: int, ranks: int, transfer: Transfer, place: int) -> tuple[str, int, int]:
    """The channel between two ranks, by its sender, and the transfer's place in it."""
    sender = rank if transfer.sends else (rank + transfer.stages_on) % ranks
    return transfer.pass_, sender, place


def _first_backward(waits: Waits, rank: Rank) -> None:
    """Post the first transfers of the backward pass with the pass before the last of warm-up."""
    passes, backward = rank.of(FORWARD, BACKWARD).tolist(), rank.of(BACKWARD).tolist()
    warm_up = passes.index(backward[0]) if backward else 0
    if warm_up < 2:
        return
    for kind, transfer in TRANSFERS.items():
        if transfer.pass_ == BACKWARD:
            first = rank.numbered(kind)[:1]
            waits.add([passes[warm_up - 2]] * len(first), first)


def _data_parallel(waits: Waits, rank: Rank, overlapped: bool) -> None:
    """Gathers of parameters before a chunk's first pass, reductions after its last."""
    each = rank.operations
    waits.chain(rank.of(PARAMETERS, GRADIENTS))
    forward, backward = rank.of(FORWARD), rank.of(BACKWARD)
    last_gather = {int(each.chunk[row]): row for row in rank.numbered(PARAMETERS).tolist()}
    for chunk, row in last_gather.items():
        own = _of_chunk(each, forward, chunk)
        waits.add([row] * len(own[:1]), own[:1])
    if not overlapped:
        return
    first_reduction = {int(each.chunk[row]): row for row in rank.numbered(GRADIENTS).tolist()[::-1]}
    for chunk, row in first_reduction.items():
        own = _of_chunk(each, backward, chunk)
        if len(own):
            waits.add([int(own[each.end[own].argmax()])], [row])


def _of_chunk(operations: Operations, passes: Integers, chunk: int) -> Integers:
    """The passes of a chunk; all of them, where it is not known."""
    return passes if chunk == NONE else passes[operations.chunk[passes] == chunk]


def _after_passes(waits: Waits, rank: Rank, passes: Integers, overlapped: bool) -> None:
    """Waits after a rank's last pass, each operation for the one before."""
    each = rank.operations
    kinds = [kind for kind in UPDATE if not (overlapped and kind == GRADIENTS)]
    known = [row for kind in kinds for row in rank.numbered(kind).tolist()]
    tail = list(known)
    between = set(passes.tolist())
    for row in (row for row in rank.others.tolist() if row not in between):
        earlier = [place for place, own in enumerate(tail) if each.start[own] <= each.start[row]]
        tail.insert(earlier[-1] + 1 if earlier else 0, row)
    last = int(passes[each.end[passes].argmax()])
    waits.chain([last, *tail])
    reductions = rank.numbered(GRADIENTS)
    after_collection = [row for row in tail if each.kinds[each.kind[row]] != COLLECTION]
    if overlapped and len(reductions) and after_collection:
        waits.add(reductions[-1:], after_collection[:1])
