"""Lengths of documents, in tokens, and the sequences that a framework packs them into.

- `concatenate`: documents end to end, cut wherever a sequence is full (Megatron-LM's GPT dataset,
  torchtitan). No token is padding.
- `first-fit`: each document into the first sequence with room (NeMo's `first_fit_shuffle`);
  `best-fit`: the longest first, each into the fullest with room (TRL's `bfd`). What is left of a
  sequence is padding, which computes like tokens but attends to nothing.
- `none`: one document a sequence; a micro-batch is padded to its longest (Hugging Face's collator).

Documents longer than a sequence are cut to it. Attention stays within documents, so that it takes
the sum of their squares (`--reset-attention-mask`, variable-length kernels); where sequences are
padded, the square of all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bfpp.schedules.columns import Offsets, Seconds
from bfpp.sim.unevenness.counted_numbers import CountedNumbers

POOL = 20_000
"""Documents that are packed together; sequences are drawn from theirs."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences by what they take: tokens (with padding), and attended squares of tokens.

    `documents` are the tokens that are not padding.
    """

    tokens: Seconds
    squares: Seconds
    documents: Seconds

    @property
    def filled(self) -> float:
        """The share of all tokens that are documents'."""
        return float(self.documents.sum() / self.tokens.sum())


def concatenated(documents: Offsets, length: int) -> Sequences:
    """Documents end to end, in sequences of a length: of fewer tokens, one that is partly full."""
    ends = np.cumsum(documents)
    total = int(ends[-1])
    whole = max(total // length, 1)
    cuts = np.union1d(ends, np.arange(length, total, length))
    cuts = cuts[cuts <= whole * length]
    pieces = np.diff(cuts, prepend=0)
    sequence = (cuts - 1) // length
    squares, filled = (
        np.bincount(sequence, pieces.astype(float) ** power, whole).astype(float)
        for power in (2, 1)
    )
    return Sequences(np.full(whole, float(length)), squares, filled)


def first_fit(documents: Offsets, length: int) -> Sequences:
    """Each document into the first sequence that has room for it."""
    room = _FirstRoom(len(documents), length)
    return _in_bins(documents, [room.take(each) for each in documents.tolist()], length)


def best_fit(documents: Offsets, length: int) -> Sequences:
    """The longest documents first, each into the fullest sequence that has room for it."""
    free: list[tuple[int, int]] = []
    longest_first = np.sort(documents)[::-1]
    bins, opened = [], 0
    for each in longest_first.tolist():
        at = bisect_left(free, (each, -1))
        if at < len(free):
            left, number = free.pop(at)
        else:
            left, number = length, opened
            opened += 1
        bins.append(number)
        insort(free, (left - each, number))
    return _in_bins(longest_first, bins, length)


def one_each(documents: Offsets, length: int) -> Sequences:
    """A sequence for each document."""
    del length
    tokens = documents.astype(float)
    return Sequences(tokens, tokens**2, tokens)


Packing = Callable[[Offsets, int], Sequences]

NO_PACKING = "none"

PACKINGS: dict[str, Packing] = {
    "concatenate": concatenated,
    "first-fit": first_fit,
    "best-fit": best_fit,
    NO_PACKING: one_each,
}
"""By name, as options have them."""


def packed(
    lengths: CountedNumbers, packing: str, length: int, random: np.random.Generator
) -> Sequences:
    """Sequences of a length, of a pool of documents."""
    documents = np.minimum(lengths.drawn(POOL, random), length)
    return PACKINGS[packing](documents, length)


def _in_bins(documents: Offsets, bins: list[int], length: int) -> Sequences:
    squares, filled = (
        np.bincount(bins, documents.astype(float) ** power).astype(float) for power in (2, 1)
    )
    return Sequences(np.full(len(squares), float(length)), squares, filled)


class _FirstRoom:
    """The first of many sequences with room: a tree of the most room below each node."""

    def __init__(self, sequences: int, length: int) -> None:
        self.leaves = 1 << max(sequences - 1, 0).bit_length()
        self.most = [length] * (2 * self.leaves)

    def take(self, tokens: int) -> int:
        """The first sequence with room for some tokens, which it has no more."""
        most, at = self.most, 1
        while at < self.leaves:
            at *= 2
            if most[at] < tokens:
                at += 1
        sequence = at - self.leaves
        most[at] -= tokens
        while at > 1:
            larger = max(most[at], most[at ^ 1])
            at //= 2
            if most[at] == larger:  # and so are those above
                break
            most[at] = larger
        return sequence
