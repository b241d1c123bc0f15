"""Tasks of replicas x ranks that differ: which wait for which, and which begin together.

Where all replicas are alike, one pipeline stands for them: a `TaskGraph`. Where they are not, each
has tasks of its own, and reductions, gathers and the clipping of gradients join them:

- `before` and `after` are edges: a task is ready when all that it waits for have ended. The order
  of a lane is edges from each of its tasks to the next.
- Tasks with the same number in `meeting` begin together, when the last of them is ready, and each
  ends after its own seconds: a transfer at its two ends, a collective at each of its members.

A replay is one sweep of the core over all of them; any number of durations share one numbering.
Where flows share ports, the tasks are replayed in the order of time, as those of one graph are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.graph import followers
from bfpp.core.replay import replay, sweep
from bfpp.schedules.columns import NONE, Flags, Groups, Integers, Offsets, Seconds, group_by
from bfpp.schedules.errors import InvalidInput


class NumberedNodes(NamedTuple):
    """Nodes in an order in which they could run, and the dependencies of each.

    `place` is the node of each task, then that of each meeting, which takes no time. Each node has
    a lane of its own: their order is in what they wait for.
    """

    place: Offsets
    waits: Groups
    lanes: tuple[Integers, Integers]


@dataclass(frozen=True, eq=False)
class JointTasks:
    """Edges between tasks, and the meeting of each task (-1: it begins when it is ready).

    >>> import numpy as np
    >>> two_replicas = JointTasks(np.array([0, 1]), np.array([2, 3]), np.array([-1, -1, 0, 0]))
    >>> two_replicas.replay(np.array([1.0, 3.0, 0.5, 0.5]))
    array([1. , 3. , 3.5, 3.5])
    """

    before: Integers
    after: Integers
    meeting: Integers

    def __len__(self) -> int:
        return len(self.meeting)

    def replay(self, seconds: Seconds) -> Seconds:
        """End of each task, if each takes these seconds and starts as soon as it may.

        Raises `InvalidInput` where tasks wait for each other in a circle.
        """
        return self.times((seconds, *_no_bytes(len(self))))[1]

    def times(self, costs: CostColumns) -> tuple[Seconds, Seconds]:
        """When each task starts and ends; raises like `replay`."""
        nodes_of, waits, lanes = self.numbered
        place = nodes_of[: len(self)]
        seconds, size, ports, bandwidth = costs
        nodes = len(waits.start) - 1
        columns = _spread(seconds, place, nodes), _spread(size, place, nodes)
        moved = *columns, _spread(ports, place, nodes, NONE), bandwidth
        start, end = np.empty(nodes), np.empty(nodes)
        if sweep(*lanes, *waits, moved, nodes, start, end):
            replay(*followers(*lanes, nodes, *waits), moved, None, start, end)
        return start[place], end[place]

    def require_order(self) -> None:
        """Raise `InvalidInput` where tasks wait for each other in a circle."""
        _ = self.numbered

    @property
    def meets(self) -> Flags:
        """Tasks that have a meeting."""
        has: Flags = self.meeting != NONE
        return has

    @cached_property
    def numbered(self) -> NumberedNodes:
        """The tasks in an order in which they could run; raises like `replay`."""
        tasks, meets = len(self), np.flatnonzero(self.meets)
        met, which = np.unique(self.meeting[meets], return_inverse=True)
        nodes = tasks + len(met)
        entry = np.arange(tasks)
        entry[meets] = tasks + which
        before = np.concatenate([self.before, entry[meets]])
        after = np.concatenate([entry[self.after], meets])
        place = _places(before, after, nodes)
        ahead = place[before].astype(np.int32)
        lanes = np.arange(nodes, dtype=np.int32), np.full(nodes, NONE, dtype=np.int32)
        return NumberedNodes(place, group_by(place[after], ahead, nodes), lanes)


def _places(before: Integers, after: Integers, nodes: int) -> Offsets:
    """The place of each node in an order in which all that it waits for come first."""
    followers = group_by(before, after.astype(np.int32), nodes)
    start, level = np.empty(nodes), np.empty(nodes)
    try:
        replay(*followers, (np.ones(nodes), *_no_bytes(nodes)), None, start, level)
    except ValueError:  # not all could end
        raise InvalidInput("operations wait for each other in a circle") from None
    place = np.empty(nodes, dtype=np.int64)
    place[np.argsort(level, kind="stable")] = np.arange(nodes)
    return place


CostColumns = tuple[Seconds, Seconds, Integers, Seconds]
"""Seconds and bytes of tasks, the ports of these bytes, and bandwidths, as the core takes costs."""


def _no_bytes(tasks: int) -> tuple[Seconds, Integers, Seconds]:
    return np.zeros(tasks), np.empty((tasks, 0), dtype=np.int32), np.empty(0)


def _spread(column: npt.NDArray[Any], place: Offsets, nodes: int, empty: int = 0) -> Any:
    """A column over tasks as one over nodes."""
    spread = np.full((nodes, *column.shape[1:]), empty, dtype=column.dtype)
    spread[place] = column
    return spread
