"""Every operation, declared once: what a task does, on which stream, with whom, to which data.

Rules:

- An operation's row says what it *is*. What follows from that in the layers above stands in
  one `Table` a layer: how it looks and which idle time it causes (`traces.operations`), what
  it costs (`sim.prices`), how it is run (`executor.dispatch`). A table that lacks an operation
  of this module fails when it is imported, and any other that it lacks fails by name when it
  is looked up.
- What a task reads, writes and ends is all that the checker knows of it: its rules
  (`schedules.validity`) are made from these entries.
- A package adds an operation with `declare`, and a row to each table. Codes are given in the
  order of declaration: files and digests hold names.

Data are of a cell (a micro-batch at a unit), of a unit or of a rank, as the operations are
that write them. A cell's data are needed at the same unit or at a neighbour; where that is on
another rank, a transfer carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeVar

from bfpp.schedules.communication import Communication, Sharding
from bfpp.schedules.streams import (
    COMPUTE,
    DATA,
    EXPERTS,
    FROM_HOST,
    QUEUE,
    RECEIVE_ACTIVATIONS,
    RECEIVE_GRADIENTS,
    REPLICAS,
    SEND_ACTIVATIONS,
    SEND_GRADIENTS,
    STREAMS,
    TIED,
    TO_HOST,
    Stream,
)

Entry = TypeVar("Entry")

MOST = 127
"""Operations that a column of codes has room for."""


class Scope(StrEnum):
    """What a task is of: a micro-batch at a unit, a unit, the first and the last one, or a rank."""

    CELL = "cell"
    UNIT = "unit"
    ENDS = "ends"
    RANK = "rank"


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
class Datum:
    """Something that tasks leave for other tasks.

    `buffer` is the column that says in which of its rank's buffers it lies, if several share
    them; `of_all_ranks` means that who needs it needs every rank's.
    """

    name: str
    buffer: str | None = None
    of_all_ranks: bool = False


OUTPUT = Datum("output")
INPUT_GRADIENT = Datum("gradient of the input")
SAVED = Datum("saved activations")
OFFLOADED = Datum("offloaded activations")
RELOADED = Datum("reloaded activations")
HALVED = Datum("what is kept between the halves of a backward pass")
WEIGHTS = Datum("weights", buffer="weight_buffer")
GRADIENTS = Datum("gradients", buffer="gradient_buffer")
REDUCED = Datum("reduced gradients")
REPLICATED = Datum("gradients reduced across replicas")
TIED_GRADIENTS = Datum("gradients of tied parameters")
NORM_OF_RANK = Datum("norm of a rank's gradients", of_all_ranks=True)


class Needed(NamedTuple):
    """A datum, of the unit that is `units_on` after the task's own."""

    datum: Datum
    units_on: int = 0


def _always(communication: Communication) -> bool:
    del communication
    return True


@dataclass(frozen=True)
class Row:
    """All that an operation is.

    A task `reads` data, `writes` some (a datum that several tasks write is added up), and
    `ends` others, of which nothing is left once it ran. `carries` is for transfers: what
    arrives, and how many units on it is needed. `arrives_on` is the stream at the receiver.
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
    group: Group | Callable[[Communication], Group] = Group.ALONE
    algorithm: Callable[[Communication], str] | None = None
    called: Callable[[Communication], str] | None = None
    happens: Callable[[Communication], bool] = _always


class Operation(int):
    """What a task does: the code that columns hold, with the name and the row behind it.

    >>> import bfpp
    >>> [bfpp.Operation.REDUCE.called(bfpp.Communication(each)) for each in bfpp.Sharding]
    ['all-reduce', 'reduce-scatter', 'reduce-scatter']
    """

    FORWARD: ClassVar[Operation]
    BACKWARD: ClassVar[Operation]
    BACKWARD_INPUT: ClassVar[Operation]
    BACKWARD_WEIGHT: ClassVar[Operation]
    TRANSFER_ACTIVATIONS: ClassVar[Operation]
    TRANSFER_GRADIENTS: ClassVar[Operation]
    GATHER: ClassVar[Operation]
    REDUCE: ClassVar[Operation]
    OPTIMIZER: ClassVar[Operation]
    NORM: ClassVar[Operation]
    ALL_REDUCE: ClassVar[Operation]
    TIED_ALL_REDUCE: ClassVar[Operation]
    EXPERT_DISPATCH: ClassVar[Operation]
    EXPERT_COMBINE: ClassVar[Operation]
    OFFLOAD: ClassVar[Operation]
    RELOAD: ClassVar[Operation]

    name: str
    row: Row

    def __new__(cls, code: int, name: str, row: Row) -> Operation:
        """Only `declare` makes one, so that each code has one operation."""
        self = super().__new__(cls, code)
        self.name, self.row = name, row
        return self

    def __repr__(self) -> str:
        return f"Operation.{self.name}"

    def __reduce__(self) -> tuple[Callable[[str], Operation], tuple[str]]:
        return operation_named, (self.name,)

    @property
    def title(self) -> str:
        """The operation as people read it, whatever is communicated."""
        return self.row.title

    @property
    def is_of_cell(self) -> bool:
        """Whether a task is of a micro-batch."""
        return self.row.scope is Scope.CELL

    @property
    def reads(self) -> tuple[Needed, ...]:
        """What a task needs, and of which unit."""
        return tuple(Needed(it) if isinstance(it, Datum) else it for it in self.row.reads)

    def group(self, communication: Communication) -> Group:
        """Who takes part in a task."""
        group = self.row.group
        return group if isinstance(group, Group) else group(communication)

    def algorithm(self, communication: Communication) -> str:
        """How a task is done with this communication, as profiles name it: `norm-of-shares`."""
        return self.row.algorithm(communication) if self.row.algorithm else self.title

    def called(self, communication: Communication) -> str:
        """What people call the operation with this communication: an `all-reduce`."""
        return self.row.called(communication) if self.row.called else self.title

    def streams(self, communication: Communication) -> tuple[Stream, Stream]:
        """The streams of its lanes, at its rank and at its peer."""
        here = self.row.stream
        if here.overlap and not getattr(communication, here.overlap):
            return COMPUTE, COMPUTE
        if self.row.carries and communication.has_queues:
            return QUEUE, QUEUE
        return here, self.row.arrives_on or here


OPERATIONS: list[Operation] = []
"""All operations; the number of each is its code."""


def declare(name: str, row: Row) -> Operation:
    """Add an operation; raises `ValueError` if there is one of that name, or no room."""
    if any(name == each.name for each in OPERATIONS):
        raise ValueError(f"there is an operation {name} already")
    if len(OPERATIONS) > MOST:
        raise ValueError(f"there is no room for more than {MOST} operations")
    streams = [row.stream] if row.arrives_on is None else [row.stream, row.arrives_on]
    STREAMS.extend(stream for stream in streams if stream not in STREAMS)
    OPERATIONS.append(operation := Operation(len(OPERATIONS), name, row))
    return operation


def operation_named(name: str) -> Operation:
    """The operation of that name; raises `KeyError` if there is none."""
    for operation in OPERATIONS:
        if operation.name == name:
            return operation
    raise KeyError(name)


class Table(dict[Operation, Entry]):
    """What a layer knows of every operation: complete for those that are built in."""

    def __init__(self, knows: str, rows: Mapping[Operation, Entry]) -> None:
        super().__init__(rows)
        self.knows = knows
        for operation in BUILT_IN:
            self[operation]  # fails where it is missing

    def __missing__(self, operation: int) -> Entry:
        raise LookupError(f"the operation {OPERATIONS[operation].name} has no {self.knows}")


# The rows


def _sharding_group(communication: Communication) -> Group:
    """The replicas that reduce a unit's gradients together, and that shard its state, if any do."""
    return Group.DP_SHARD if communication.hybrid else Group.DP


def _reduction(communication: Communication) -> str:
    return "all-reduce" if communication.sharding is Sharding.NONE else "reduce-scatter"


ROWS = {
    "FORWARD": Row(
        "forward",
        Scope.CELL,
        reads=(WEIGHTS, Needed(OUTPUT, -1)),
        writes=(OUTPUT, SAVED),
    ),
    "BACKWARD": Row(
        "backward",
        Scope.CELL,
        reads=(WEIGHTS, SAVED, RELOADED, Needed(INPUT_GRADIENT, +1)),
        writes=(INPUT_GRADIENT, GRADIENTS),
        ends=(SAVED,),
    ),
    "BACKWARD_INPUT": Row(
        "backward input",
        Scope.CELL,
        reads=(WEIGHTS, SAVED, RELOADED, Needed(INPUT_GRADIENT, +1)),
        writes=(INPUT_GRADIENT, HALVED),
    ),
    "BACKWARD_WEIGHT": Row(
        "backward weight",
        Scope.CELL,
        reads=(WEIGHTS, HALVED),
        writes=(GRADIENTS,),
        ends=(SAVED, HALVED),
    ),
    "TRANSFER_ACTIVATIONS": Row(
        "transfer activations",
        Scope.CELL,
        SEND_ACTIVATIONS,
        RECEIVE_ACTIVATIONS,
        carries=Needed(OUTPUT, +1),
        group=Group.P2P,
    ),
    "TRANSFER_GRADIENTS": Row(
        "transfer gradients",
        Scope.CELL,
        SEND_GRADIENTS,
        RECEIVE_GRADIENTS,
        carries=Needed(INPUT_GRADIENT, -1),
        group=Group.P2P,
    ),
    "GATHER": Row(
        "gather",
        Scope.UNIT,
        DATA,
        writes=(WEIGHTS,),
        group=_sharding_group,
        called=lambda _: "all-gather",
        happens=lambda communication: communication.sharding is not Sharding.NONE,
    ),
    "REDUCE": Row(
        "reduce",
        Scope.UNIT,
        DATA,
        writes=(REDUCED,),
        ends=(GRADIENTS,),
        group=_sharding_group,
        algorithm=_reduction,
        called=_reduction,
    ),
    "OPTIMIZER": Row(
        "optimizer",
        Scope.RANK,
        reads=(REDUCED, REPLICATED, TIED_GRADIENTS, NORM_OF_RANK),
        ends=(WEIGHTS,),  # no pass may still compute with those before the update
        group=lambda communication: Group.PP if communication.clipping else Group.ALONE,
        algorithm=lambda communication: (
            "clipped-optimizer" if communication.clipping else "optimizer"
        ),
    ),
    "NORM": Row(
        "norm",
        Scope.RANK,
        DATA,
        reads=(REDUCED, REPLICATED, TIED_GRADIENTS),
        writes=(NORM_OF_RANK,),
        # Unsharded, each replica has all gradients, and their norm.
        group=lambda communication: (
            Group.ALONE
            if communication.sharding is Sharding.NONE
            else _sharding_group(communication)
        ),
        algorithm=lambda communication: (
            "norm" if communication.sharding is Sharding.NONE else "norm-of-shares"
        ),
        happens=lambda communication: communication.clipping,
    ),
    "ALL_REDUCE": Row(
        "all-reduce",
        Scope.UNIT,
        REPLICAS,
        reads=(REDUCED,),
        writes=(REPLICATED,),
        group=Group.DP_REPLICATE,
        happens=lambda communication: communication.hybrid,
    ),
    "TIED_ALL_REDUCE": Row(
        "tied all-reduce",
        Scope.ENDS,
        TIED,
        reads=(REDUCED, REPLICATED),
        writes=(TIED_GRADIENTS,),
        group=Group.ENDS,
        happens=lambda communication: communication.tied_embeddings,
    ),
    "EXPERT_DISPATCH": Row(
        "expert dispatch", Scope.CELL, EXPERTS, group=Group.EP, algorithm=lambda _: "all-to-all"
    ),
    "EXPERT_COMBINE": Row(
        "expert combine", Scope.CELL, EXPERTS, group=Group.EP, algorithm=lambda _: "all-to-all"
    ),
    "OFFLOAD": Row("offload", Scope.CELL, TO_HOST, reads=(SAVED,), writes=(OFFLOADED,)),
    "RELOAD": Row(
        "reload",
        Scope.CELL,
        FROM_HOST,
        reads=(OFFLOADED,),
        writes=(RELOADED,),
        ends=(OFFLOADED,),
    ),
}

BUILT_IN = tuple(declare(name, row) for name, row in ROWS.items())
for _operation in BUILT_IN:
    setattr(Operation, _operation.name, _operation)


# Which operations do what


def _those(chosen: Callable[[Operation], bool]) -> tuple[Operation, ...]:
    return tuple(operation for operation in OPERATIONS if chosen(operation))


def writers(datum: Datum) -> tuple[Operation, ...]:
    """The operations that write a datum."""
    return _those(lambda operation: datum in operation.row.writes)


def readers(datum: Datum) -> tuple[Operation, ...]:
    """The operations that read a datum, of whichever unit."""
    return _those(lambda operation: any(it.datum == datum for it in operation.reads))


def enders(datum: Datum) -> tuple[Operation, ...]:
    """The operations after which nothing is left of a datum."""
    return _those(lambda operation: datum in operation.row.ends)


def of_scope(scope: Scope, operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Those of one scope."""
    return tuple(operation for operation in operations if operation.row.scope is scope)


def transfers() -> tuple[Operation, ...]:
    """The operations that are on two lanes: sends and receives."""
    return _those(lambda operation: operation.row.carries is not None)


def compute_steps() -> tuple[Operation, ...]:
    """Forward and backward passes, whole or in parts: what a schedule orders."""
    return _those(lambda it: it.row.scope is Scope.CELL and it.row.stream is COMPUTE)


def collectives(communication: Communication) -> tuple[Operation, ...]:
    """What data-parallel replicas of a rank do together."""
    return _those(lambda operation: operation.group(communication) in DATA_PARALLEL)
