"""A tensor's values as a matrix, and the boxes of it that processes hold and files store.

A tensor of one dimension is a matrix of one row, and boxes are intervals of it. Any other has a
row for each place along its first dimension, so that a tensor-parallel rank's slice of a weight is
some of its rows, or some columns of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Box(NamedTuple):
    """Some columns of some rows: the first ones, and how many."""

    row: int
    column: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """The number of its values."""
        return self.rows * self.columns

    def covers(self, other: Box) -> bool:
        """True if it contains all of another one."""
        return (
            self.row <= other.row
            and other.row + other.rows <= self.row + self.rows
            and self.column <= other.column
            and other.column + other.columns <= self.column + self.columns
        )


def boxes_of(first: int, length: int, columns: int) -> Iterator[tuple[int, Box]]:
    """Boxes of an interval of a matrix's values: part of a row, whole rows, part of a row.

    Each with the number of values before it.
    """
    head = min(-first % columns, length)
    body = (length - head) // columns * columns
    for begin, end in pairwise((0, head, head + body, length)):
        if begin < end:
            row, column = divmod(first + begin, columns)
            width = min(columns, end - begin)
            yield begin, Box(row, column, (end - begin) // width, width)


def segments(
    size: int, held: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[int, int, list[int]]]:
    """The longest intervals that the same holders have, and those holders.

    `held` has start, stop and holder of every interval that one has.
    """
    starting: dict[int, list[int]] = defaultdict(list)
    stopping: dict[int, list[int]] = defaultdict(list)
    for start, stop, holder in held:
        starting[start].append(holder)
        stopping[stop].append(holder)
    holders: Counter[int] = Counter()
    for start, stop in pairwise(sorted({0, size, *starting, *stopping})):
        holders.update(starting[start])
        holders.subtract(stopping[start])
        yield start, stop, sorted(+holders)


def shared(
    rows: int, columns: int, held: Iterable[tuple[Box, int]]
) -> Iterator[tuple[Box, list[int]]]:
    """All of a matrix, each value once: values in the same boxes, and the processes that hold them.

    `held` has each box that a process holds, and the process. Rows are cut where a box begins or
    ends, and joined again where the same ones go on in the same columns.
    """
    starting: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    stopping: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    processes = []
    for number, (box, process) in enumerate(held):
        interval = (box.column, box.column + box.columns, number)
        starting[box.row].append(interval)
        stopping[box.row + box.rows].append(interval)
        processes.append(process)
    here: set[tuple[int, int, int]] = set()
    begun: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for row in sorted({0, rows, *starting, *stopping}):
        here.difference_update(stopping[row])
        here.update(starting[row])
        active = segments(columns, here) if row < rows else ()
        now = {(start, stop, tuple(boxes)) for start, stop, boxes in active}
        for each in sorted(begun.keys() - now):
            start, stop, boxes = each
            box = Box(begun[each], start, row - begun[each], stop - start)
            yield box, sorted({processes[number] for number in boxes})
        begun = {each: begun.get(each, row) for each in now}
