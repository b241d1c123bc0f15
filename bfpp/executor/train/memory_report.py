"""Measured memory of each worker in a step, by counting its own tensors.

Theory of operation. State and buffers stay allocated all the time: their storages are counted. All
else is allocated by tasks, whose operations are seen in the first step of a run
(`executor.allocations`). At both ends of a compute step or an update, a mark says where in that
log it is, and how much of the pool's memory is the input of a pass under way. What is live at a
mark and not the pool's is saved for backward passes, together with those inputs; what comes and
goes between two marks is transient. An update begins with its matrices, if there are any. The pool
keeps for the next step what it has, so all of it counts all the time. What is offloaded is counted
as saved wherever it is; the sizes of its copies say how much is on the host.

Parts are called as the cost model's (`bfpp.traces.timeline.memory_record.PARTS`):

- `state`: what the optimizer updates and keeps: weights, moments, and reduced gradients where these
  are in no buffer.
- `weights`: the buffers that are computed with, where they are not the state's.
- `gradients`: the buffers that passes add them to, and that most are reduced in.
- `saved`, `transient`, `update`: activations, and what the update allocates.
- `workspace`: payloads between stages, the batch, and what modules keep other than parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from bfpp.executor.devices.flat_buffers import memory_of, size_of
from bfpp.executor.devices.messages import Cell, tensors_of
from bfpp.executor.dispatch.dispatch import Observe
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.memory.offloading import ignore
from bfpp.schedules import Operation, Task
from bfpp.schedules.operations.data import OFFLOADED
from bfpp.schedules.operations.operations import enders, writers
from bfpp.traces.figures.svg.memory import FILLS
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, copies_of, steps_of


@dataclass(frozen=True, eq=False)
class MeasuredMemory:
    """The memory of one worker.

    `host` is what it takes of the host's memory for activations that are offloaded. `allocated`
    and `reserved` are the peaks that the allocator of its GPU has counted in the whole run; None on
    a CPU, and on a GPU that ranks share.
    """

    replica: int
    tp_rank: int
    held: MemoryRecord
    host: int = 0
    allocated: int | None = None
    reserved: int | None = None

    def place(self) -> tuple[int, int, int]:
        """Sort key of the worker: the order of processes."""
        return self.held.rank, self.replica, self.tp_rank


class MemoryReport:
    """Observes tasks, like the observer that it is put before, and `measures` the first step."""

    def __init__(self, observe: Observe, measures: bool = True) -> None:
        self.observe, self.measures = observe, measures
        self.recorders: dict[Worker, Recorder] = {}

    def __call__(self, task: Task | str, worker: Worker) -> AbstractContextManager[None]:
        """Observe a task, or the loading of a batch."""
        if self.measures and isinstance(task, str):
            return self._loading(task, worker)
        recorder = self.recorders.get(worker)
        if recorder is None or recorder.held or isinstance(task, str):
            return self.observe(task, worker)
        if task.operation is Operation.ORTHOGONALISE and len(self.recorders) > 1:
            return self.observe(task, worker)  # one worker allocates for all
        return self._recorded(task, recorder)

    @contextmanager
    def _loading(self, task: str, worker: Worker) -> Iterator[None]:
        """Begin a step of a worker, while nothing else of it runs."""
        if worker in self.recorders:
            self.recorders[worker].end()
        with self.observe(task, worker):
            yield
        if worker not in self.recorders:
            self.recorders[worker] = Recorder(worker)

    @contextmanager
    def _recorded(self, task: Task, recorder: Recorder) -> Iterator[None]:
        with self.observe(task, recorder.worker), recorder.during(task):
            yield

    def measured(self) -> list[MeasuredMemory]:
        """The memory of this process's workers, by their places; of none before a first step."""
        measured = [
            MeasuredMemory(
                worker.replica,
                worker.tp_rank,
                recorder.end(),
                size_of(worker.offloading.host.tensors),
                *self._peaks(worker),
            )
            for worker, recorder in self.recorders.items()
        ]
        return sorted(measured, key=MeasuredMemory.place)  # lanes begin a step in any order

    def _peaks(self, worker: Worker) -> tuple[int | None, int | None]:
        """The counts of torch's allocator, if it is the worker's alone."""
        device = worker.pool.device.device
        if device.type != "cuda" or len(self.recorders) > 1:
            return None, None
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


PLACE, INPUTS, AWAY = range(3)

Moment = tuple[int, int, int]
"""A moment: the place in the log, how much memory that the pool lends is the input of passes, and
how much of that is on the host."""


class Recorder:
    """Follows the memory of one worker in a step, from the moment at which its batch is loaded."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.steps = worker, steps_of(worker.plan.graph, worker.rank).tolist()
        self.allocations = Allocations()
        self.copied: dict[int, int] = {}
        worker.offloading.moved = self.allocations.moved
        self.begun: set[Cell] = set()
        self.marks: dict[int, tuple[Moment, Moment]] = {}
        self.update_begun: Moment | None = None
        self.held: MemoryRecord | None = None
        parcels, targets = worker.inputs.values(), worker.targets.values()
        tensors = (*(parcel.tensors for parcel in parcels), *map(tensors_of, targets))
        self.batch = size_of(chain(*tensors))

    @contextmanager
    def during(self, task: Task) -> Iterator[None]:
        """Follow the memory while a task of the worker runs."""
        if task.operation is Operation.FORWARD:
            self.begun.add(Cell(task.unit, task.microbatch))
        begin = self._mark()
        with self.allocations.seen():
            yield
        if task.operation is Operation.ORTHOGONALISE:
            self.update_begun = begin
        if task.operation is Operation.OPTIMIZER:
            begin = self.update_begun or begin
        self.marks[task.number] = begin, self._mark()
        if task.operation in (*writers(OFFLOADED), *enders(OFFLOADED)):
            kept = self.worker.offloading.kept[Cell(task.unit, task.microbatch)]
            self.copied[task.number] = kept.size

    def _mark(self) -> Moment:
        lent = [
            parcel.lent
            for cell, parcel in [*self.worker.inputs.items()]
            if cell in self.begun and parcel.lent is not None
        ]
        away = self.worker.offloading.lent_away
        return len(self.allocations.log), size_of(lent) + away, away

    def end(self) -> MemoryRecord:
        """The memory of the finished step; its log is summed up once, and freed."""
        if self.held is None:
            self.held = self._summed_up()
            self.worker.offloading.moved = ignore
            self.allocations, self.marks = Allocations(), {}
        return self.held

    def _summed_up(self) -> MemoryRecord:
        worker = self.worker
        pools = worker.pool, worker.offloading.host
        live = self.allocations.sizes([*chain(*(pool.tensors for pool in pools)), *_state(worker)])
        marks = np.array([self.marks[step] for step in self.steps])
        begin, end = marks[:, 0, PLACE], marks[:, 1, PLACE]
        most = np.array([live[each].max() for each in map(slice, begin, end + 1)])
        inputs, left = marks[:, :, INPUTS].max(axis=1), marks[:, 1, INPUTS]
        away = marks[:, :, AWAY]
        before, after = (live[marks[:, side, PLACE]] + marks[:, side, INPUTS] for side in (0, 1))
        updates = worker.plan.graph.operation[self.steps] == Operation.OPTIMIZER
        saved = np.where(updates, before, np.maximum(before, after))
        passing, nothing = most + inputs - saved, np.zeros(len(marks))
        staying = self._staying()
        during = {
            "saved": saved,
            "transient": np.where(updates, 0.0, passing),
            "update": np.where(updates, passing, 0.0),
            "workspace": away.max(axis=1) - inputs.astype(np.float64),
        }
        left_behind = {"saved": after, "workspace": away[:, 1] - left.astype(np.float64)}
        in_steps, after_steps = (
            {PARTS[name]: staying.get(name, 0) + each.get(name, nothing) for name in FILLS}
            for each in (during, left_behind)
        )
        copies = copies_of(worker.plan.graph, worker.rank).tolist()
        copied = np.array([self.copied[task] for task in copies], dtype=np.float64)
        return MemoryRecord(worker.rank, in_steps, after_steps, copied)

    def _staying(self) -> dict[str, int]:
        """Bytes that are allocated all the time."""
        worker = self.worker
        trained = {memory_of(unit.state.weights) for unit in worker.units.values()}
        weights = {memory_of(buffer) for buffer in worker.weights.values()} - trained
        gradients = {memory_of(buffer) for buffer in worker.gradients.values()}
        modules = [
            buffer
            for unit in worker.units.values()
            for layer in unit.layers.values()
            for buffer in layer.buffers()
        ]
        return {
            "state": size_of(_state(worker), weights | gradients),
            "weights": size_of(worker.weights.values(), trained),
            "gradients": size_of(worker.gradients.values()),
            "workspace": size_of(chain(worker.pool.tensors, modules)) + self.batch,
        }


def _state(worker: Worker) -> Iterator[Tensor]:
    """The tensors that the optimizer updates and keeps, except scalars."""
    for unit in worker.units.values():
        for state in unit.states:
            yield state.weights.detach()
            if state.weights.grad is not None:
                yield state.weights.grad
    for kept in worker.updates.states():
        yield from (value for value in kept.values() if value.dim())
