"""Prices of tasks: their own loads, and the slowdown by communication of tasks around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]

Kinds = tuple[Seconds, Seconds, Integers, Seconds, Seconds]
"""Columns over kinds: seconds, bytes, ports, and the time added to tasks after and before each."""


def price(
    kind: Integers,
    dependency_start: Integers,
    dependency: Integers,
    cells: Kinds,
    others: Kinds,
    own: Seconds | None,
    seconds: Seconds,
    size: Seconds,
    ports: Integers,
) -> None:
    """Fill the columns of `Costs` by the kind of each task, and by the communication around it.

    `cells` and then `others` are kinds: of both, the columns that are filled, and what each costs
    the tasks after it and before it. `own` are seconds of tasks in place of their kinds', or None.
    """
    function("price")(
        len(kind), len(dependency), len(cells[0]), len(others[0]), ports.shape[1],
        kind, dependency_start, dependency, *cells, *others, own, seconds, size, ports,
    )  # fmt: skip


def hand_over(
    is_transfer: Flags,
    blocks: bool,
    collecting: float,
    costs: tuple[Seconds, Seconds, Integers],
    bandwidth: Seconds,
    received: Seconds,
    sent: Seconds,
) -> None:
    """Turn shares of the time of each kind of communication into the cost to other steps.

    `received` and `sent` come as shares and become seconds. The step that receives a transfer also
    takes `collecting` seconds, of its tensor-parallel all-gather. If it `blocks` for transfers,
    they take no time on their own lane: their columns of `Costs` become zero.
    """
    seconds, size, ports = costs
    function("hand_over")(
        len(is_transfer), ports.shape[1], len(bandwidth), blocks, collecting,
        is_transfer, seconds, size, ports, bandwidth, received, sent,
    )  # fmt: skip


def busiest(rank: Integers, chosen: Flags, seconds: Seconds, ranks: int) -> float:
    """The seconds of the chosen tasks of the rank that has most."""
    most = np.empty(1)
    function("busiest")(len(rank), ranks, rank, chosen, seconds, most)
    return most.item()


def find_loads(
    sizes: Seconds,
    places: Integers,
    options: tuple[Integers, Seconds, Seconds, Integers],
    rates: Seconds,
    ends: tuple[Integers, Integers],
    ports_of_levels: tuple[Integers, Integers],
    latency: Seconds,
    size: Seconds,
    ports: Integers,
) -> None:
    """Fill the columns of `Load`, of tasks with collectives of `sizes` bytes at these `places`.

    Both have a row for each of a task's collectives, which follow each other. Each takes the
    algorithm and protocol of the least time, of the `options` at its place; without options or
    bytes, no time. The bytes of a task pass the ports of the outermost level that limits one of its
    collectives, out of the first of its `ends` and into the second, at the level's rate.
    """
    collectives, tasks = sizes.shape
    begin, option_latency, per_byte, level = options
    _, ranks, width = ports_of_levels[0].shape
    function("find_loads")(
        tasks, collectives, len(begin) - 1, len(level), len(rates), ranks, width,
        sizes, places, begin, option_latency, per_byte, level, rates, *ends, *ports_of_levels,
        latency, size, ports,
    )  # fmt: skip
