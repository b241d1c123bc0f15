"""The dispatch loop: puts each task of a graph on its lanes, with the waits that it needs.

Theory of operation. There is one loop for all devices and backends, and it does not know what
tasks do: the table `KERNELS` does. Tasks are dispatched in the order of their numbers, which is
topological. For each, the lanes of its workers wait for the tasks that it depends on, the kernel
runs on one of them, and a mark is left at its end. Where several workers of a process act as one
(two ends of a transfer, all replicas of a gather), the last one's lane runs the kernel once all are
ready, and the others wait for its mark. So do the lanes of a batch of transfers, which are posted
together (`batched`, `coalesced`): the batch is put where the first of them is, since all that the
others wait for on their rank comes before it, too.

Invariants:

- A lane waits for what its own rank, or another rank of this process, takes part in. What happens
  in other processes is known from messages.
- Waits that others imply are removed once, as the program is made for all steps
  (`bfpp.executor.dispatch.waits`).
- All lanes of a worker begin a step after its batch is loaded, which follows the last step's update
  on the compute lane: a step needs no barrier, and the host may dispatch the next one meanwhile.
- Of a pass in pieces, the first one runs all of it: layers are not cut within.

Rejected: an interpreter of each rank's actions with a branch for each kind, as in PyTorch's
pipelining runtime. Overlap would follow from its own rules, not from the graph that is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor

from bfpp.executor.devices.lanes import LaneQueue, Mark
from bfpp.executor.devices.messages import Cell
from bfpp.executor.devices.thread_lanes import Action
from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.waits import Clocks
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.optimizer.nan_checks import Seen, Where
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import InvalidInput, Operation, Task
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.operations.operations import Table
from bfpp.schedules.operations.streams import COMPUTE

Kernel = Callable[[Backend, Task, Sequence[Worker]], None]
Part = tuple[Task, Worker]
"""A task, and a worker that takes part in it."""

WorkerLane = tuple[int, Lane]
"""A worker's lane: its pipeline, and the graph's lane."""

LOADING = "loading the batch"

Observe = Callable[[Task | str, Worker], AbstractContextManager[None]]
"""Called with each task, or other work; its context lasts as long as a worker is busy with it."""


def ignore(task: Task | str, worker: Worker) -> AbstractContextManager[None]:
    """Observe nothing."""
    del task, worker
    return nullcontext()


def _compute(step_of: Callable[[Worker], Callable[[Task], None]]) -> Kernel:
    """A compute kernel: the method of the worker, of which a mock worker has its own.

    The first piece of a pass runs all of it: layers are not cut within. Memory of offloaded
    activations is released before it, and acquired again after.
    """

    def run(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
        del backend
        (worker,) = workers
        offloads = worker.plan.offloads
        for cell in offloads.leaves.get(task.number, ()):
            worker.offloading.let_go(cell)
        if worker.plan.graph.is_whole[task.number]:
            step_of(worker)(task)
        for cell in offloads.returns.get(task.number, ()):
            worker.offloading.make_room(cell)

    return run


def _complete(backend: Backend, workers: Sequence[Worker]) -> None:
    for worker in workers:
        is_clipped = worker.plan.graph.communication.clipping
        worker.complete(backend.total_square_norm(worker) if is_clipped else None)


def _orthogonalise(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    """Gradients are complete, and matrices of Muon are replaced by their directions."""
    del task
    _complete(backend, workers)
    backend.orthogonalise(workers)


def _update(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    del task
    (worker,) = workers
    if not worker.plan.graph.communication.muon:
        _complete(backend, workers)
    worker.update(worker.number)


def _inside_passes(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    del backend, workers
    raise InvalidInput(f"{task.operation.title}: the executor has no expert parallelism")


def _offload(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    del backend
    (worker,) = workers
    worker.offloading.offload(Cell(task.unit, task.microbatch), worker.plan.offload_share)


def _reload(backend: Backend, task: Task, workers: Sequence[Worker]) -> None:
    del backend
    (worker,) = workers
    worker.offloading.reload(Cell(task.unit, task.microbatch))


KERNELS: Table[Kernel] = Table(
    "kernel",
    {
        Operation.FORWARD: _compute(lambda worker: worker.forward),
        Operation.BACKWARD: _compute(lambda worker: worker.backward),
        Operation.BACKWARD_INPUT: _compute(lambda worker: worker.backward_input),
        Operation.BACKWARD_WEIGHT: _compute(lambda worker: worker.backward_weight),
        Operation.TRANSFER_ACTIVATIONS: lambda backend, *what: backend.transfer(*what),
        Operation.TRANSFER_GRADIENTS: lambda backend, *what: backend.transfer(*what),
        Operation.GATHER: lambda backend, *what: backend.gather(*what),
        Operation.REDUCE: lambda backend, *what: backend.reduce(*what),
        Operation.NORM: lambda backend, *what: backend.norm(*what),
        Operation.OPTIMIZER: _update,
        Operation.ALL_REDUCE: lambda backend, *what: backend.all_reduce(*what),
        Operation.TIED_ALL_REDUCE: lambda backend, *what: backend.tied_all_reduce(*what),
        Operation.EXPERT_DISPATCH: _inside_passes,
        Operation.EXPERT_COMBINE: _inside_passes,
        Operation.OFFLOAD: _offload,
        Operation.RELOAD: _reload,
        Operation.ORTHOGONALISE: _orthogonalise,
    },
)


class End(NamedTuple):
    """A worker's part in a task: its lane, and the joint tasks that the lane waits for."""

    task: Task
    worker: Worker
    lane: LaneQueue
    waits: tuple[int, ...]


class JointTask(NamedTuple):
    """A task of workers that act as one, or a batch of a worker's transfers.

    The last end's lane runs it once all are ready.
    """

    ends: tuple[End, ...]
    action: Action


class TaskMarks(NamedTuple):
    """The times of a worker's part in a task: posted on its lane, ready to begin, ended."""

    task: int
    worker: Worker
    posted: float
    ready: Mark
    end: Mark


@dataclass(frozen=True)
class Step:
    """A step that was dispatched, and may be under way.

    `ends` are the marks at the end of each joint task; `last` those at the end of each lane;
    `marks` are all that were made.
    """

    number: int
    times: list[TaskMarks] = field(default_factory=list)
    ends: list[Mark] = field(default_factory=list)
    losses: dict[Where, Tensor] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    last: list[Mark] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def mark(self, lane: LaneQueue, timed: bool = False) -> Mark:
        """A mark on a lane, that is not asked when the step is over."""
        self.marks.append(mark := lane.mark(timed))
        return mark


class Dispatcher:
    """The tasks of a plan's graph on the lanes of this process's workers, step after step.

    If it `times` tasks, the marks around each are timed. If not, only those that
    give the length of a step are: where the first task of a lane may begin, and
    where a lane ends. An evaluation uses the `lanes` of training. `one_by_one`, what other
    processes take part in also waits for the last such task, in the order of their numbers.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        observe: Observe = ignore,
        times: bool = True,
        lanes: Mapping[WorkerLane, LaneQueue] | None = None,
        one_by_one: bool = False,
    ) -> None:
        self.plan, self.backend, self.observe, self.times = plan, backend, observe, times
        self.graph = graph = plan.graph
        self.lanes = lanes or {
            (worker.pipeline, graph.lanes[lane]): backend.device.lane(
                f"{worker.where}: {graph.lanes[lane].title}",
                graph.lanes[lane].stream is not COMPUTE,
            )
            for worker in backend.workers
            for lane in graph.lanes_of(worker.rank)
        }
        self.program: list[JointTask] = []
        self.batches = self._batches()
        place = {id(lane): number for number, lane in enumerate(self.lanes.values())}
        clocks = Clocks(len(place))
        last: dict[tuple[int, int], int] = {}
        met: tuple[int, ...] = ()
        for parts, action in self._joint():
            own = [self._lane(*part) for part in parts]
            waits = [self._waits(*part, last) for part in parts]
            if one_by_one and backend.meets_others(parts[0][0]):
                waits, met = [(*each, *met) for each in waits], (len(self.program),)
            waits = clocks.add([place[id(lane)] for lane in own], waits)
            for task, worker in parts:
                last[worker.pipeline, task.number] = len(self.program)
            ends = tuple(
                End(task, worker, lane, needed)
                for (task, worker), lane, needed in zip(parts, own, waits, strict=True)
            )
            self.program.append(JointTask(ends, action))
        self.first = self._first()

    def _joint(self) -> Iterator[tuple[list[Part], Action]]:
        """The parts in each joint task, and how it is run."""
        for task in self.graph.tasks():
            for workers in self.backend.parties(task):
                batch = self.batches.get((workers[-1].rank, task.number))
                if batch is None:
                    parts = [(task, worker) for worker in workers]
                    yield parts, partial(self._run, task, workers)
                elif task.number == min(batch):  # the others go with it
                    (worker,) = workers
                    tasks = [*map(self.graph.task, batch)]
                    yield [(each, worker) for each in tasks], partial(self._exchange, tasks, worker)

    def _batches(self) -> dict[tuple[int, int], list[int]]:
        """The batch that a rank's part in a transfer is in, where the backend posts batches."""
        if not (self.backend.posts_batches and self.graph.communication.in_groups):
            return {}
        batches = self.graph.posts.batches().items()
        return {(rank, task): batch for (rank, _), batch in batches for task in batch}

    def _first(self) -> frozenset[int]:
        """The parts in tasks that are the first of their lanes; no transfer begins a step."""
        parts = [end for ends, _ in self.program for end in ends]
        first: dict[int, int] = {}
        for number, end in enumerate(parts):
            if end.task.peer == NONE:
                first.setdefault(id(end.lane), number)
        return frozenset(first.values())

    def _lane(self, task: Task, worker: Worker) -> LaneQueue:
        lane = task.lane if task.rank == worker.rank else task.peer_lane
        return self._lane_of(worker, lane)

    def _lane_of(self, worker: Worker, number: int) -> LaneQueue:
        return self.lanes[worker.pipeline, self.graph.lanes[number]]

    def _waits(
        self, task: Task, worker: Worker, last: Mapping[tuple[int, int], int]
    ) -> tuple[int, ...]:
        """The joint tasks that a worker's part in a task waits for, by who was `last` in a task.

        It waits for what its own rank takes part in. What happens on other ranks
        is known from messages, or is waited for if they are in this process. Transfers of one
        batch, which may wait for each other where their other ends are posted apart, are not
        waited for: they are under way together.
        """
        crosses = task.peer != NONE
        near = {worker.rank} if crosses else {each.rank for each in self.backend.workers}
        batch = self.batches.get((worker.rank, task.number), ())
        return tuple(
            last[worker.pipeline, dependency]
            for dependency in task.dependencies
            if near & {int(self.graph.rank[dependency]), int(self.graph.peer[dependency])}
            and dependency not in batch
        )

    def dispatch(self, step: Step) -> None:
        """Dispatch all tasks once; the step is done when its last marks are passed."""
        outside = self.backend.device.begin()
        if outside is not None:
            step.marks.append(outside)
        for worker in self.backend.workers:
            self._begin(worker, step, outside)
        self._put(step)
        for worker in self.backend.workers:
            compute = self._lane_of(worker, self.graph.lanes_of(worker.rank)[0])
            compute.run(partial(worker.finish, step.losses, step.seen))
        step.last.extend(step.mark(lane, not self.times) for lane in self.lanes.values())

    def _begin(self, worker: Worker, step: Step, outside: Mark | None) -> None:
        """Load the batch once the last step's update is done, and hold all lanes until then.

        What was done outside the lanes comes before it: making the workers,
        loading a checkpoint.
        """
        compute, *others = (
            self._lane_of(worker, lane) for lane in self.graph.lanes_of(worker.rank)
        )
        if outside is not None:
            compute.wait(outside)
        compute.run(partial(self._load, worker, step.number))
        loaded = step.mark(compute)
        for lane in others:
            lane.wait(loaded)

    def _load(self, worker: Worker, number: int) -> None:
        with self.observe(LOADING, worker):
            worker.begin(number, self.plan)

    def _put(self, step: Step) -> None:
        """Put all tasks on their lanes."""
        for joint in self.program:
            self._dispatch(joint, step)

    def _dispatch(self, joint: JointTask, step: Step) -> None:
        """Put a task on the lanes of those who act as one; the last one acts."""
        posted = time.perf_counter()
        ends, action = joint
        ready: list[Mark] = []
        for _, _, lane, waits in ends:
            for each in waits:
                lane.wait(step.ends[each])
            is_timed = self.times or len(step.times) + len(ready) in self.first
            ready.append(step.mark(lane, is_timed))
        *others, (_, _, acting, _) = ends
        for mark in ready[:-1]:
            acting.wait(mark)
        acting.run(action)
        done = step.mark(acting, self.times)
        step.ends.append(done)
        for _, _, lane, _ in others:
            lane.wait(done)
        for (task, worker, *_), mark in zip(ends, ready, strict=True):
            step.times.append(TaskMarks(task.number, worker, posted, mark, done))

    def _run(self, task: Task, workers: Sequence[Worker]) -> None:
        with self.observe(task, workers[-1]):
            KERNELS[task.operation](self.backend, task, workers)

    def _exchange(self, tasks: Sequence[Task], worker: Worker) -> None:
        with ExitStack() as busy:
            for task in tasks:
                busy.enter_context(self.observe(task, worker))
            self.backend.exchange(tasks, worker)

    def close(self) -> None:
        """End all lanes."""
        for lane in self.lanes.values():
            lane.close()
