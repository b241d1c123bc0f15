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

from collections.abc import Iterator
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
from bfpp.traces.stragglers.typical_step import Operations

CLOCK = 5e-5
"""Seconds by which clocks may differ where times decide what belongs together."""


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


class Rank:
    """The operations of one rank, by kind."""

    def __init__(self, operations: Operations, rank: int) -> None:
        self.operations = operations
        self._own = np.flatnonzero(operations.rank == rank)
        names = np.array(operations.kinds)[operations.kind[self._own]]
        self._by_kind = {name: self._own[names == name] for name in np.unique(names).tolist()}

    def of(self, *kinds: str) -> Integers:
        """Operations of some kinds, by start."""
        parts = [self._by_kind[kind] for kind in kinds if kind in self._by_kind]
        rows: Integers = np.concatenate([self._own[:0], *parts])
        each = self.operations
        return rows[np.lexsort((each.kind[rows], each.nth[rows], each.start[rows]))]

    def numbered(self, kind: str) -> Integers:
        """Operations of a kind by their number."""
        rows: Integers = self._by_kind.get(kind, self._own[:0])
        return rows[np.argsort(self.operations.nth[rows], kind="stable")]

    @property
    def others(self) -> Integers:
        """Operations of no known kind, by start, but for those inside a pass."""
        known = {FORWARD, BACKWARD, PARAMETERS, *TRANSFERS, *UPDATE}
        rows = self.of(*(kind for kind in self._by_kind if kind not in known))
        passes, each = self.of(FORWARD, BACKWARD), self.operations
        if not len(rows) or not len(passes):
            return rows
        inside = np.searchsorted(each.start[passes], each.start[rows] + CLOCK, "right") - 1
        until = np.where(inside >= 0, each.end[passes][inside], -np.inf)
        return rows[each.end[rows] > until + CLOCK]


def waits_of(operations: Operations) -> Waits:
    """Waits between the operations of a replica's step."""
    waits, ranks = Waits(), int(operations.rank.max()) + 1
    chunks = max(int(operations.chunk.max()) + 1, 1)
    overlapped = OTHER_GRADIENTS in operations.kinds
    for number in range(ranks):
        rank = Rank(operations, number)
        passes = _passes(rank)
        if not len(passes):
            continue
        waits.chain(passes)
        for kind, transfer in TRANSFERS.items():
            waits.chain(rank.of(kind))
            matched = dict(_matched(rank, kind, transfer, chunks > 1 and number in (0, ranks - 1)))
            _wait_for_passes(waits, rank, transfer, matched)
            meeting = [
                row
                for row, own in matched.items()
                if 0 <= _stage(operations, own, ranks) + transfer.stages_on < chunks * ranks
            ]
            for place, row in enumerate(meeting):
                waits.channel[row] = _channel(number, ranks, transfer, place)
        _first_backward(waits, rank)
        _data_parallel(waits, rank, overlapped)
        _after_passes(waits, rank, passes, overlapped)
    return waits


def _passes(rank: Rank) -> Integers:
    """What runs in turn on a rank before its update: passes, and whatever else comes between."""
    passes, each = rank.of(FORWARD, BACKWARD), rank.operations
    if not len(passes):
        return passes
    others = rank.others
    others = others[each.start[others] < each.end[passes].max() - CLOCK]
    rows = np.concatenate([passes, others])
    return rows[np.lexsort((each.kind[rows], each.nth[rows], each.start[rows]))]


def _stage(operations: Operations, row: int, ranks: int) -> int:
    """The stage of the model that a pass belongs to, of chunks around the ranks in turn."""
    if operations.stage[row] != NONE:
        return int(operations.stage[row])
    return max(int(operations.chunk[row]), 0) * ranks + int(operations.rank[row])


def _matched(rank: Rank, kind: str, transfer: Transfer, is_end: bool) -> Iterator[tuple[int, int]]:
    """Sends or receives, each with the pass that makes or needs what it carries.

    At an end of an interleaved model, some are recorded that did not run, and one may be missing.
    """
    each, rows, passes = rank.operations, rank.of(kind), rank.numbered(transfer.pass_)
    if not len(passes):
        return
    if len(rows) != len(passes) or is_end:
        if transfer.sends:
            rows = rows[each.end[rows] >= each.end[passes].min() - CLOCK]
        else:
            rows = rows[each.start[rows] <= each.start[passes].max() + CLOCK]
    # The first pass of the model receives nothing.
    missing = int(not transfer.sends and len(rows) + 1 == len(passes))
    yield from zip(rows.tolist(), passes[missing:].tolist(), strict=False)


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
    """Whatever comes after a rank's last pass, in turn."""
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
