"""Every operation, declared once: its work, stream, peers and data.

Rules:

- An operation's row holds what it *is*. What follows from that in the layers above stands in
  one `Table` a layer: its look and the idle time that it causes (`traces.explain.looks`), its
  cost (`sim.costs.prices`), its kernel (`executor.dispatch`). A table that lacks a built-in
  operation fails when it is imported; any other that it lacks fails by name when it is looked up.
- What a task reads, writes and ends is all that the checker knows of it: its rules
  (`schedules.validity`) are made from these entries.
- A package adds an operation with `declare`, and a row to each table. Codes are given in the
  order of declaration: files and digests hold names, and whatever knows an operation, compiled
  loops too, has its code from here. The first codes are those of passes, which orders hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeVar

from bfpp.schedules.operations.built_in import PASSES, ROWS
from bfpp.schedules.operations.data import Datum, Needed
from bfpp.schedules.operations.row import DATA_PARALLEL, Group, Made, Row, Scope
from bfpp.schedules.operations.streams import COMPUTE, QUEUE, STREAMS, Stream
from bfpp.schedules.settings.sharding import Communication

Entry = TypeVar("Entry")

ADDABLE = Made.AFTER_PASSES, Made.AFTER_DATA, Made.INSIDE
"""The places where operations of a package may be made."""

MOST = 127
"""Operations that a column of codes has room for."""


class Operation(int):
    """The kind of a task: its code in columns, with its name and its row.

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
    ORTHOGONALISE: ClassVar[Operation]

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
        """Display name, whatever is communicated."""
        return self.row.title

    @property
    def is_of_cell(self) -> bool:
        """True if its tasks are of a micro-batch."""
        return self.row.scope is Scope.CELL

    @property
    def reads(self) -> tuple[Needed, ...]:
        """The data that a task needs, and of which unit; of operations that it awaits, too."""
        own = (Needed(it) if isinstance(it, Datum) else it for it in self.row.reads)
        awaited = (
            Needed(datum)
            for each in OPERATIONS
            if self.name in each.row.awaited_by
            for datum in each.row.writes
        )
        return (*own, *awaited)

    def group(self, communication: Communication) -> Group:
        """The group of devices that take part in a task."""
        group = self.row.group
        return group if isinstance(group, Group) else group(communication)

    def algorithm(self, communication: Communication) -> str:
        """The algorithm with this communication, as profiles name it: `norm-of-shares`."""
        return self.row.algorithm(communication) if self.row.algorithm else self.title

    def called(self, communication: Communication) -> str:
        """The usual name of the operation with this communication: an `all-reduce`."""
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
    """Add an operation; raises `ValueError` for one that cannot be, or where there is no room."""
    if any(name == each.name for each in OPERATIONS):
        raise ValueError(f"there is an operation {name} already")
    if name not in ROWS:
        _require_addable(name, row)
    if len(OPERATIONS) > MOST:
        raise ValueError(f"there is no room for more than {MOST} operations")
    streams = [row.stream] if row.arrives_on is None else [row.stream, row.arrives_on]
    STREAMS.extend(stream for stream in streams if stream not in STREAMS)
    OPERATIONS.append(operation := Operation(len(OPERATIONS), name, row))
    return operation


def _require_addable(name: str, row: Row) -> None:
    if row.made not in ADDABLE:
        raise ValueError(f"{name}: only a built-in operation is made {row.made.name.lower()}")
    if (row.made is Made.AFTER_PASSES) != bool(row.after) or not {*row.after} <= {*PASSES}:
        raise ValueError(f"{name}: `after` names passes, of an operation made after passes alone")
    cell = row.scope is Scope.CELL
    if row.made is not Made.INSIDE and cell != (row.made is Made.AFTER_PASSES):
        raise ValueError(f"{name}: what is made after passes is of a cell, and nothing else is")
    if row.carries or (row.stream.toward and row.made is not Made.INSIDE):
        raise ValueError(f"{name}: only built-in operations send to other pipeline ranks")
    if row.awaited_by and not row.writes:
        raise ValueError(f"{name}: what awaits it needs a datum that it writes")
    if wrong := [each for each in row.awaited_by if not _can_await(row, each)]:
        raise ValueError(f"{name} cannot be awaited by {', '.join(wrong)}")


def _can_await(row: Row, name: str) -> bool:
    """True if that operation comes after all that an operation of this row is made after."""
    if name in PASSES:
        return all(PASSES.index(name) > PASSES.index(each) for each in row.after or PASSES)
    return operation_named(name).row.made is Made.AFTER_DATA


def operation_named(name: str) -> Operation:
    """The operation of that name; raises `KeyError` if there is none."""
    for operation in OPERATIONS:
        if operation.name == name:
            return operation
    raise KeyError(name)


class Table(dict[Operation, Entry]):
    """A layer's entry for every operation: complete for those that are built in."""

    def __init__(self, knows: str, rows: Mapping[Operation, Entry]) -> None:
        super().__init__(rows)
        self.knows = knows
        for operation in BUILT_IN:
            self[operation]  # fails where it is missing

    def __missing__(self, operation: int) -> Entry:
        raise LookupError(f"the operation {OPERATIONS[operation].name} has no {self.knows}")


BUILT_IN = tuple(declare(name, row) for name, row in ROWS.items())
for _operation in BUILT_IN:
    setattr(Operation, _operation.name, _operation)

if tuple(operation.name for operation in OPERATIONS[: len(PASSES)]) != PASSES:
    raise ImportError(f"orders hold codes: the first operations must be {', '.join(PASSES)}")


# Operations by what they read, write and end


def _selected(chosen: Callable[[Operation], bool]) -> tuple[Operation, ...]:
    return tuple(operation for operation in OPERATIONS if chosen(operation))


def writers(datum: Datum) -> tuple[Operation, ...]:
    """The operations that write a datum."""
    return _selected(lambda operation: datum in operation.row.writes)


def readers(datum: Datum) -> tuple[Operation, ...]:
    """The operations that read a datum, of whichever unit."""
    return _selected(lambda operation: any(it.datum == datum for it in operation.reads))


def enders(datum: Datum) -> tuple[Operation, ...]:
    """The operations that consume a datum: nothing is left of it after them."""
    return _selected(lambda operation: datum in operation.row.ends)


def of_scope(scope: Scope, operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations of one scope."""
    return tuple(operation for operation in operations if operation.row.scope is scope)


def transfers() -> tuple[Operation, ...]:
    """The operations that are on two lanes: sends and receives."""
    return _selected(lambda operation: operation.row.carries is not None)


def compute_steps() -> tuple[Operation, ...]:
    """Forward and backward passes, whole or in parts, which a schedule orders."""
    return _selected(lambda it: it.row.scope is Scope.CELL and it.row.stream is COMPUTE)


def updates() -> tuple[Operation, ...]:
    """The operations of a rank's update: its last compute, once gradients are complete."""
    return _selected(lambda it: it.row.scope is Scope.RANK and it.row.stream is COMPUTE)


def collectives(communication: Communication) -> tuple[Operation, ...]:
    """The operations that data-parallel replicas of a rank do together."""
    return _selected(lambda operation: operation.group(communication) in DATA_PARALLEL)
