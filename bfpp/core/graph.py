"""Followers, kinds and flags of the tasks of a graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class KindColumns(NamedTuple):
    """Columns of kinds: their codes in order, the first task of each; and the kind of each task."""

    code: npt.NDArray[np.int64]
    first: npt.NDArray[np.int32]
    of_task: npt.NDArray[np.int32]


class TaskFlags(NamedTuple):
    """Which tasks are compute steps, which are part of passes, and if there are backward passes."""

    is_compute: Flags
    is_pass: Flags
    trains: bool


def followers(
    lane: Integers,
    peer_lane: Integers,
    lanes: int,
    dependency_start: Integers,
    dependency: Integers,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The tasks that wait for each task: where each one's begin, and all of these.

    Its dependents are listed, and then the next tasks on its lanes.
    """
    tasks = len(lane)
    first = np.empty(tasks + 1, dtype=np.int64)
    follower = np.empty(len(dependency) + 2 * tasks, dtype=np.int32)
    count = function("followers")(
        tasks, lanes, len(dependency), lane, peer_lane, dependency_start, dependency, first,
        follower,
    )  # fmt: skip
    return first, follower[:count]


def kinds(
    operation: Integers,
    unit: Integers,
    rank: Integers,
    peer: Integers,
    place: Integers,
    units: int,
    ranks: int,
) -> KindColumns:
    """KindColumns of tasks, which differ in neither operation, unit, rank nor peer.

    `place` is that of each operation in the order of codes.
    """
    tasks = len(operation)
    code = np.empty(tasks, dtype=np.int64)
    first, of_task = np.empty(tasks, dtype=np.int32), np.empty(tasks, dtype=np.int32)
    count = function("kinds")(
        tasks, len(place), units, ranks, operation, unit, rank, peer, place, code, first, of_task
    )
    # Copies: there are few kinds, and a view would keep an entry for each task.
    return KindColumns(code[:count].copy(), first[:count].copy(), of_task)


def flags(operation: Integers, piece: Integers, computes: Flags, backward: Flags) -> TaskFlags:
    """The flags of tasks, by the operations that compute, and those that do so backward."""
    tasks = len(operation)
    is_compute, is_pass = np.empty(tasks, dtype=np.bool_), np.empty(tasks, dtype=np.bool_)
    trains = function("flags")(
        tasks, len(computes), operation, piece, computes, backward, is_compute, is_pass
    )
    return TaskFlags(is_compute, is_pass, bool(trains))
