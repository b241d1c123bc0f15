"""The time of a step, by the prices of its kinds of tasks: all from these to its sums."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function
from bfpp.core.prices import Kinds

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]

NOT_PERIODIC = 1
"""The return code for no period, as in `source/step.h`."""


class NotPeriodic(Exception):
    """The times of a step do not repeat, or not for long enough to know those of a longer one."""


class GraphColumns(NamedTuple):
    """Columns of a graph: those of its tasks, their predecessors, and their successors."""

    kind: Integers
    rank: Integers
    lane: Integers
    peer_lane: Integers
    is_compute: Flags
    is_pass: Flags
    dependency_start: Integers
    dependency: Integers
    follower_start: Integers
    follower: Integers


class PowerLimit(NamedTuple):
    """The least seconds of a step, and the relative tolerance of a shortfall."""

    least: float
    tolerance: float


class Extension(NamedTuple):
    """Extension of a step by the periods that were left out of it.

    `begin` lists the first passes of micro-batches; of those that are `between` two of them, the
    times of `periods` are compared, which may differ by a share of the step for `rounding`.
    """

    begin: npt.NDArray[np.int32]
    periods: int
    between: int
    left_out: int
    rounding: float


WHOLE = Extension(np.empty(0, dtype=np.int32), 0, 0, 0, 0.0)
"""Nothing is left out."""


def step_time(
    graph: GraphColumns,
    lanes: int,
    ranks: int,
    cells: Kinds,
    others: Kinds,
    bandwidth: Seconds,
    own: Seconds | None,
    limit: PowerLimit,
    extension: Extension = WHOLE,
) -> tuple[float, float]:
    """Seconds of a step and of its passes; raises `NotPeriodic`.

    Prices are those of `prices.price`.
    """
    begin, *periods = extension
    sums = np.empty(2)
    result = function("step_time")(
        len(graph.kind), lanes, ranks, len(graph.dependency), len(graph.follower),
        len(cells[0]), len(others[0]), cells[2].shape[1], len(bandwidth),
        *graph, *cells, *others, bandwidth, own, *limit, len(begin), *periods, begin, sums,
    )  # fmt: skip
    if result == NOT_PERIODIC:
        raise NotPeriodic
    return sums.item(0), sums.item(1)
