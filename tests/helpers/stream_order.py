"""The order of streams, proven without a GPU.

Theory of operation. The lanes of this device are streams in name alone: the host runs each
action at once, when a GPU's host would queue its kernels. It goes through the tasks in an order
in which they could run, so that the values are right whatever the waits. Whether the waits say
that order too is what is kept here, and every access that none of them orders is a race.

A lane counts segments: it begins a new one at each mark and at each wait. A clock says of every
lane up to which segment all is over. A mark is its lane's clock, and a wait joins the two. Each
storage knows who wrote it last, and who has read it since: one access is ordered after another
if its lane's clock has that one's segment. What dispatched operations do to storages is in their
schemas; it is seen below autograd, so that backward passes, copies and the optimizer are in it.
What the host knows by waiting for a step counts for the host alone, so no lane's order rests on it.

Freed memory is lent again as by torch's caching allocator: at once, to the lane that it was made
on. So that lane must be after all that others did with it. What the pool lends has one storage,
and is seen like all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bfpp.executor.devices.lanes import Action, Mark
from bfpp.executor.dispatch.worker import Worker
from bfpp.schedules import Task

OUTSIDE = 0
"""The number of the lane of what the host does outside all lanes."""


class Segment(NamedTuple):
    """The work of a lane between two marks or waits."""

    lane: int
    number: int


@dataclass(frozen=True)
class Access:
    """An access to a storage: the reader or writer, and the time."""

    segment: Segment
    task: str


@dataclass(frozen=True)
class Race:
    """Two accesses that no wait orders, by their tasks."""

    first: str
    second: str
    what: str

    def __str__(self) -> str:
        return f"no wait orders {self.second} after {self.first}: {self.what}"


@dataclass(frozen=True)
class Wait:
    """A lane's wait: the segment that it is for, and the one that begins with it."""

    source: Segment
    target: Segment


@dataclass(frozen=True)
class ClockMark:
    """A point of a lane: what is over there."""

    segment: Segment
    clock: Mapping[int, int]
    when: float

    def passed(self) -> bool:
        return True

    def seconds(self) -> float:
        return self.when


@dataclass(eq=False)
class Storage:
    """The record of one storage: the lane that it was made on, and its accesses."""

    alive: StorageWeakRef
    made_on: int
    words: str
    written: Access | None = None
    read: dict[int, Access] = field(default_factory=dict)

    @property
    def accesses(self) -> list[Access]:
        """The last write and what was read since."""
        return [*([self.written] if self.written else []), *self.read.values()]


class OrderedLane:
    """A stream in name alone."""

    def __init__(self, device: Ordered, number: int) -> None:
        self.device, self.number = device, number
        self.clock: dict[int, int] = {}
        self._begin_segment(0)

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, ClockMark)
        self._begin_segment(self.segment.number + 1)
        if self.device.keeps(Wait(mark.segment, self.segment)):
            for lane, number in mark.clock.items():
                self.clock[lane] = max(number, self.clock.get(lane, -1))

    def mark(self, timed: bool = False) -> ClockMark:
        del timed
        self.device.used.add(self.segment)
        found = ClockMark(self.segment, dict(self.clock), time.perf_counter())
        self._begin_segment(self.segment.number + 1)
        return found

    def _begin_segment(self, number: int) -> None:
        self.clock[self.number] = number
        self.segment = Segment(self.number, number)
        self.device.segments.append(self.segment)

    def run(self, action: Action) -> None:
        before, self.device.current = self.device.current, self
        action()
        self.device.current = before

    def close(self) -> None:
        """Nothing is under way."""

    def is_after(self, segment: Segment) -> bool:
        return self.number == segment.lane or self.clock.get(segment.lane, -1) >= segment.number


class Ordered:
    """A device whose lanes know what their waits order; `dropped` is a wait to leave out."""

    device = torch.device("cpu")
    is_asynchronous = True

    def __init__(self, dropped: int | None = None) -> None:
        self.dropped = dropped
        self.task = "what is outside all tasks"
        self.storages: dict[int, Storage] = {}
        self.shared: dict[int, set[int]] = {}
        self.races: dict[Race, None] = {}
        self.waits: list[Wait] = []
        self.segments: list[Segment] = []
        self.used: set[Segment] = set()
        self.log: list[tuple[Storage, Segment, bool]] = []
        self.begun: list[int] = []
        self.lanes: list[OrderedLane] = []
        self.lane("outside")
        self.current = self.lanes[OUTSIDE]

    def lane(self, name: str, is_urgent: bool = False) -> OrderedLane:
        del name, is_urgent
        self.lanes.append(OrderedLane(self, len(self.lanes)))
        return self.lanes[-1]

    def load(self, value: Tensor) -> Tensor:
        return value.clone()

    def on_host(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def begin(self) -> ClockMark:
        self.begun.append(len(self.waits))
        return self.here()

    def here(self) -> ClockMark:
        return self.current.mark()

    def after(self, mark: Mark | None) -> None:
        assert mark is not None
        self.current.wait(mark)

    def reuse(self, marks: list[Mark]) -> None:
        """Marks are not made anew."""

    def finish(self, marks: list[Mark]) -> None:
        for mark in marks:
            self.lanes[OUTSIDE].wait(mark)

    @contextmanager
    def observe(self, task: Task | str, worker: Worker) -> Iterator[None]:
        """Tells of accesses by the task that they are in."""
        before = self.task
        self.task = f"{task} of replica {worker.replica} in step {worker.number}"
        yield
        self.task = before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this holds, all that is done to tensors is seen."""
        with Watching(self):
            yield

    # What is kept

    def keeps(self, wait: Wait) -> bool:
        """Remember a wait; whether it is not the one to be dropped."""
        self.waits.append(wait)
        return len(self.waits) - 1 != self.dropped

    def read(self, tensor: Tensor) -> None:
        """The lane whose action runs reads this."""
        storage, access = self._storage(tensor), self._access()
        self._require(storage, [storage.written] if storage.written else [])
        storage.read[access.segment.lane] = access
        self._note(storage, is_write=False)

    def write(self, tensor: Tensor) -> None:
        """The lane whose action runs writes this."""
        storage = self._storage(tensor)
        self._require(storage, storage.accesses)
        storage.written, storage.read = self._access(), {}
        self._note(storage, is_write=True)

    def _note(self, storage: Storage, is_write: bool) -> None:
        self.used.add(self.current.segment)
        self.log.append((storage, self.current.segment, is_write))

    def _access(self) -> Access:
        return Access(self.current.segment, self.task)

    def _storage(self, tensor: Tensor) -> Storage:
        storage, number = tensor.untyped_storage(), self.current.number
        key = storage._cdata
        if key not in self.storages:
            self._lend_again()
            words = f"a tensor of shape {tuple(tensor.shape)}"
            self.storages[key] = Storage(StorageWeakRef(storage), number, words)
        found = self.storages[key]
        if found.made_on != number:
            self.shared.setdefault(found.made_on, set()).add(key)
        return found

    def _lend_again(self) -> None:
        """Freed memory of this lane may be reused now."""
        shared = self.shared.get(self.current.number, set())
        for key in [key for key in shared if self.storages[key].alive.expired()]:
            storage = self.storages.pop(key)
            shared.remove(key)
            self._require(storage, storage.accesses, "freed memory of ")
            self._note(storage, is_write=True)

    def _require(self, storage: Storage, before: Iterable[Access], how: str = "") -> None:
        for access in before:
            if not self.current.is_after(access.segment):
                self.races[Race(access.task, self.task, how + storage.words)] = None


class Order:
    """The order that the waits of a run make, by a search of their graph and no clocks.

    It can be asked what would be left of the order `without` one of the waits.
    """

    def __init__(self, run: Ordered, without: int | None = None) -> None:
        self.run = run
        self.places = {segment: 1 << place for place, segment in enumerate(run.segments)}
        sources = {
            wait.target: wait.source for each, wait in enumerate(run.waits) if each != without
        }
        self.before: dict[Segment, int] = {}
        for segment in run.segments:
            earlier = [Segment(segment.lane, segment.number - 1)] if segment.number else []
            earlier += [sources[segment]] if segment in sources else []
            self.before[segment] = self.places[segment]
            for each in earlier:
                self.before[segment] |= self.before[each]

    def has(self, wait: Wait) -> bool:
        """True if a waiting lane is after the mark once it is used: by an access or a mark."""
        end = wait.target
        while (
            end not in self.run.used
            and (after := end._replace(number=end.number + 1)) in self.places
        ):
            end = after
        return bool(self.before[end] & self.places[wait.source])

    def has_races(self) -> bool:
        """True if any two accesses to a storage, one of which writes, are in no order."""
        accesses: dict[Storage, int] = {}
        writes: dict[Storage, int] = {}
        for storage, segment, is_write in self.run.log:
            met = (accesses if is_write else writes).get(storage, 0)
            if met & ~self.before[segment]:
                return True
            accesses[storage] = accesses.get(storage, 0) | self.places[segment]
            if is_write:
                writes[storage] = writes.get(storage, 0) | self.places[segment]
        return False


class Watching(TorchDispatchMode):
    """Tells a device what every dispatched operation does to storages."""

    def __init__(self, device: Ordered) -> None:
        super().__init__()
        self.device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch need not look whether it is."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        given = kwargs or {}
        for see, names in (
            (self.device.read, read_by(func)),
            (self.device.write, written_by(func)),
        ):
            for place, name in names:
                for tensor in _tensors(args[place] if place < len(args) else given.get(name)):
                    see(tensor)
        result = func(*args, **given)
        for tensor in _tensors(result):
            if tensor.untyped_storage()._cdata not in self.device.storages:
                self.device.write(tensor)
        return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


Arguments = tuple[tuple[int, str], ...]


def _arguments(func: Any, chosen: Callable[[Any], bool]) -> Arguments:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if "Tensor" in str(argument.type) and chosen(argument.alias_info)
    )


@cache
def read_by(func: Any) -> Arguments:
    """The arguments whose values an operation uses; of a view, only the place counts."""
    return _arguments(func, lambda alias: alias is None)


@cache
def written_by(func: Any) -> Arguments:
    """The arguments that an operation changes."""
    return _arguments(func, lambda alias: alias is not None and alias.is_write)
