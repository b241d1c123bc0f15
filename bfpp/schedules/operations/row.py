"""The row that declares an operation: its scope, streams, group of devices and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from bfpp.schedules.operations.data import Datum, Needed
from bfpp.schedules.operations.streams import COMPUTE, Stream
from bfpp.schedules.settings.sharding import Communication


class Scope(StrEnum):
    """Extent of a task: a micro-batch at a unit, a unit, the first and the last unit, or a rank."""

    CELL = "cell"
    UNIT = "unit"
    ENDS = "ends"
    RANK = "rank"


class Made(IntEnum):
    """The place in a step where the lowering makes the tasks of an operation.

    - `IN_ORDER`: where a schedule's orders say. The four passes.
    - `SENDING_OUTPUT`, `SENDING_GRADIENT`: after a pass whose output another rank needs.
    - `OFFLOADING`, `RELOADING`: after a forward pass, and before its backward pass.
    - `BEFORE_RUNS`, `AFTER_RUNS`: around the segments in which a rank computes one unit.
    - `AFTER_PASSES`: one task after each of the passes `after`.
    - `AFTER_DATA`: one task of each unit, of both ends or of each rank, at the end of a step: once
      the data that it reads are complete; after the rank's last pass, if it reads none. An
      evaluation, of forward passes alone, has no such end.
    - `INSIDE`: never by itself: as a piece of passes, where a template says.

    A package may add operations of the last three.
    """

    IN_ORDER = 0
    SENDING_OUTPUT = 1
    SENDING_GRADIENT = 2
    OFFLOADING = 3
    RELOADING = 4
    BEFORE_RUNS = 5
    AFTER_RUNS = 6
    AFTER_PASSES = 7
    AFTER_DATA = 8
    INSIDE = 9


class Group(StrEnum):
    """The devices that take part in a task together, by the parallel dimension they span."""

    ALONE = "alone"
    P2P = "p2p"
    ENDS = "ends"
    PP = "pp"
    DP = "dp"
    DP_SHARD = "dp shard"
    DP_REPLICATE = "dp replicate"
    TP = "tp"
    CP = "cp"
    EP = "ep"


DATA_PARALLEL = frozenset({Group.DP, Group.DP_SHARD, Group.DP_REPLICATE})
"""Groups of data-parallel replicas: all, a sharding group, or one replica of each such group."""


@dataclass(frozen=True)
class Row:
    """Declaration of an operation.

    A task `reads` data, `writes` some (a datum that several tasks write is added up), and
    `ends` others, of which nothing is left once it ran. `carries` is for transfers: what
    arrives, and how many units on it is needed. `arrives_on` is the stream at the receiver.
    `made` says when the lowering makes it, `after` which passes, by name, if so; `awaited_by`
    names operations that wait for it: passes of its cell, or tasks at the end of its rank's step.
    `group`, `algorithm` and what it is `called` may depend on what is communicated; so does
    whether there is such a task at all. `title` is used where that is not known, and in files.
    """

    title: str
    scope: Scope
    stream: Stream = COMPUTE
    arrives_on: Stream | None = None
    reads: tuple[Needed | Datum, ...] = ()
    writes: tuple[Datum, ...] = ()
    ends: tuple[Datum, ...] = ()
    carries: Needed | None = None
    made: Made = Made.INSIDE
    after: tuple[str, ...] = ()
    awaited_by: tuple[str, ...] = ()
    group: Group | Callable[[Communication], Group] = Group.ALONE
    algorithm: Callable[[Communication], str] | None = None
    called: Callable[[Communication], str] | None = None
    happens: Callable[[Communication], bool] = lambda _: True
