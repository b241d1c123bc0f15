"""Arrangements of micro-batches: which replica takes each, and when.

Each takes the work of micro-batches, by replica and place in its order, and returns for each place
the number of the micro-batch that stands there: replica x micro-batches + place.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import Offsets, Seconds

Values = npt.NDArray[np.floating]


def over_replicas(work: Seconds) -> Offsets:
    """The longest first, each to the replica with the least work so far that has room for it.

    Each replica has as many as before, in the order of their numbers.

    >>> import numpy as np
    >>> over_replicas(np.array([[4.0, 3.0], [1.0, 1.0]]))
    array([[0, 2],
           [1, 3]])
    """
    replicas, each = work.shape
    taken: list[list[int]] = [[] for _ in range(replicas)]
    least = [(0.0, replica) for replica in range(replicas)]
    heapify(least)
    flat = work.ravel()
    for microbatch in np.argsort(-flat, kind="stable").tolist():
        load, replica = heappop(least)
        taken[replica].append(microbatch)
        if len(taken[replica]) < each:
            heappush(least, (load + float(flat[microbatch]), replica))
    return np.sort(np.array(taken), axis=1)


def longest_first(work: Seconds) -> Offsets:
    """Each replica's own, the longest first."""
    return _numbered(np.argsort(-work, axis=1, kind="stable"))


def in_pairs(work: Seconds) -> Offsets:
    """Each replica's own: the longest, the shortest, the longest that is left, and so on.

    >>> import numpy as np
    >>> in_pairs(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[3, 0, 2, 1]])
    """
    descending = np.argsort(-work, axis=1, kind="stable")
    paired = np.empty_like(descending)
    half = (work.shape[1] + 1) // 2
    paired[:, 0::2] = descending[:, :half]
    paired[:, 1::2] = descending[:, half:][:, ::-1]
    return _numbered(paired)


def balanced_longest_first(work: Seconds) -> Offsets:
    """Divided over replicas, and in each the longest first."""
    divided = over_replicas(work)
    order = longest_first(work.ravel()[divided])
    arranged: Offsets = divided.ravel()[order]
    return arranged


def _numbered(places: Offsets) -> Offsets:
    replicas, each = places.shape
    numbers: Offsets = places + np.arange(replicas)[:, np.newaxis] * each
    return numbers


def _shared_by_two(values: Values) -> Values:
    """The mean of each two replicas, at each place."""
    pairs = values.reshape(-1, 2, *values.shape[1:])
    shared = np.broadcast_to(pairs.mean(axis=1, keepdims=True), pairs.shape)
    return shared.reshape(values.shape)


class WorkChange(NamedTuple):
    """A change of micro-batches by its name and in words.

    `applied` has the work of each, by replica and place, and numbers by the same: it gives these
    numbers as they are after the change. `replicas` are as many as it needs a multiple of.
    """

    name: str
    words: str
    applied: Callable[[Seconds, Values], Values]
    replicas: int = 1


def _arranged(arrangement: Callable[[Seconds], Offsets]) -> Callable[[Seconds, Values], Values]:
    def applied(work: Seconds, values: Values) -> Values:
        moved: Values = values.reshape(work.size, *values.shape[2:])[arrangement(work)]
        return moved

    return applied


WORK_CHANGES = (
    WorkChange(
        "balance",
        "micro-batches divided over replicas by their work",
        _arranged(over_replicas),
        replicas=2,
    ),
    WorkChange(
        "longest-first", "each replica's longest micro-batches first", _arranged(longest_first)
    ),
    WorkChange("pairing", "long and short micro-batches in turn", _arranged(in_pairs)),
    WorkChange(
        "balance, longest-first",
        "micro-batches divided over replicas by their work, the longest first",
        _arranged(balanced_longest_first),
        replicas=2,
    ),
    WorkChange(
        "context-parallel",
        "each micro-batch shared by two replicas, without what their exchanges take",
        lambda _, values: _shared_by_two(values),
        replicas=2,
    ),
)
"""Changes that need nothing but to know the work of each micro-batch."""
