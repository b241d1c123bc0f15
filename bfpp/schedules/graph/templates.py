"""Templates of composite passes: their pieces, and the order of pieces in a fused block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise, zip_longest
from typing import NamedTuple

from bfpp.schedules.operations.operations import Operation


class Piece(NamedTuple):
    """A part of a pass: a share of its own compute, or another operation inside it."""

    operation: Operation
    share: float = 0.0


Template = tuple[Piece, ...]
Templates = Mapping[tuple[Operation, int], Template]
"""By the pass's operation and unit."""


class BlockOrder(NamedTuple):
    """The pieces of a block in the order of their lanes: of which of its passes, and which one.

    Each waits for those at some places before it.
    """

    of_pass: tuple[int, ...]
    piece: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]


@cache
def block_order(one: Template, other: Template) -> BlockOrder:
    """A block of two passes: the compute of each before its communication, in turn."""
    order = [
        (of_pass, piece)
        for both in zip_longest(_segments(one), _segments(other), fillvalue=range(0))
        for of_pass, segment in enumerate(both)
        for piece in segment
    ]
    place = {each: at for at, each in enumerate(order)}
    last = (0, len(one) - 1), (1, len(other) - 1)
    waits: list[tuple[int, ...]] = [
        (place[of_pass, piece - 1],) if piece else (0,) if of_pass else ()
        for of_pass, piece in order
    ]
    waits[-1] += tuple(place[each] for each in last if each != order[-1])
    of_pass, pieces = zip(*order, strict=True)
    return BlockOrder(of_pass, pieces, tuple(waits))


def _segments(template: Template) -> list[range]:
    """The pieces up to the end of each segment of communication."""
    ends = [
        number
        for number, (piece, following) in enumerate(pairwise(template), 1)
        if following.share and not piece.share
    ]
    return [range(*each) for each in pairwise([0, *ends, len(template)])]
