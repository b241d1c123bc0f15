"""CUDA graphs: the tasks of a process in a step, captured once and replayed from then on.

Theory of operation. All steps have the same tasks, on the same memory. After a few that are
dispatched as usual, in which libraries choose kernels and take their memory, the tasks are
dispatched once more while CUDA records them: all lanes fork from one stream and join it again, so
the graph has the streams of all of this process's ranks, and the waits between them. The host
replays it with one call.

Everything that differs from step to step stays outside:

- Batches are copied into the memory of the captured step's batch.
- Updates are dispatched as usual: a few kernels of any optimizer, at rates that change. No other
  task of a step waits for them.
- Evaluations are dispatched as usual.

Invariants:

- No lane in the graph can wait for a mark that was made outside of it. So the graph keeps memory of
  its own, and its lanes use a pool of their own.
- Nothing is collected while CUDA records, or the events of freed pinned memory would become part of
  the graph.
- Runs whose steps are not the same are refused before training (`require_capturable`): sequences of
  varying length, layers that draw random numbers, announced messages, and offloading.

- CUDA does not promise that branches of a graph run side by side. So what other processes take part
  in is one chain, in the order of the tasks' numbers, which is one order of all processes: of all
  that is left, all who take part in the first have nothing before it. Whatever order CUDA runs
  branches in, they come to an end.

Not done: layers that draw random numbers. A captured pass takes its seed from a generator that is
registered with the graph, and each pass has a seed of its own, of the step, the micro-batch and the
layer: a generator each, for which a replay launches two kernels. That is as much as the
passes of small models, which graphs are for; and only a GPU could show that numbers are right.

Rejected: a graph for each pass, as `torch.cuda.make_graphed_callables` makes. Each pass would still
be a launch, and waits between lanes several calls, which is what small models are bound by.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bfpp.executor.devices.lanes import StreamLane, Streams
from bfpp.executor.devices.messages import Cell, Parcel, Tree, tensors_of
from bfpp.executor.devices.pool import Pool
from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.dispatch import Dispatcher, JointTask, Observe, Step, TaskMarks, ignore
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.operations.operations import updates

FIELD = "cuda_graphs"

WARM_UP = 3
"""Steps before the captured one, in which libraries choose kernels and take their memory."""


@dataclass
class Fixed:
    """A worker's inputs and outputs of a captured graph, in the same memory in each step."""

    inputs: dict[Cell, Parcel]
    targets: dict[int, Tree]
    losses: dict[int, Tensor]

    def fill(self, worker: Worker) -> None:
        """Copy the batch that a worker has just loaded."""
        for cell, parcel in self.inputs.items():
            for place, value in zip(parcel.tensors, worker.inputs.pop(cell).tensors, strict=True):
                place.copy_(value)
        for microbatch, targets in self.targets.items():
            loaded = tensors_of(worker.targets[microbatch])
            for place, value in zip(tensors_of(targets), loaded, strict=True):
                place.copy_(value)


class GraphDispatcher(Dispatcher):
    """Dispatches some steps; then replays all tasks of a step except updates."""

    def __init__(self, plan: Plan, backend: Backend, observe: Observe = ignore) -> None:
        super().__init__(plan, backend, observe, times=False, one_by_one=True)
        assert isinstance(backend.device, Streams)  # noqa: S101
        self.main = StreamLane(backend.device)
        self.warm_up = WARM_UP
        self.cuda_graph: torch.cuda.CUDAGraph | None = None
        self.fixed: dict[Worker, Fixed] = {}

    def _load(self, worker: Worker, number: int) -> None:
        super()._load(worker, number)
        if self.cuda_graph is not None:
            self.fixed[worker].fill(worker)

    def _put(self, step: Step) -> None:
        if self.warm_up:
            self.warm_up -= 1
            super()._put(step)
            return
        self.cuda_graph = self.cuda_graph or self._captured(step.number)
        self._replay(self.cuda_graph, step)
        for joint in filter(_is_update, self.program):
            self._dispatch(joint, step)

    def _captured(self, number: int) -> torch.cuda.CUDAGraph:
        """Dispatch all but updates, with the batch that was loaded; they are recorded, not run."""
        workers, step = self.backend.workers, Step(number)
        inputs = [dict(worker.inputs) for worker in workers]
        pools = [worker.pool for worker in workers]
        before = [
            (unit.moving, unit.moving.values)
            for worker in workers
            for unit in worker.units.values()
        ]
        for worker in workers:
            worker.pool = Pool(self.backend.device)
        graph, stream = torch.cuda.CUDAGraph(), self.main.stream
        # Other threads load batches meanwhile.
        with (
            _no_collection(),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            forked = self.main.mark()
            for lane in self.lanes.values():
                lane.wait(forked)
            for joint in self.program:
                if _is_update(joint):
                    step.ends.append(forked)  # in its place; nobody waits for it
                else:
                    self._dispatch(joint, step)
            for lane in self.lanes.values():
                self.main.wait(lane.mark())
            for buffers, values in before:
                buffers.settle_in(values)
        for worker, own, pool in zip(workers, inputs, pools, strict=True):
            self.fixed[worker] = Fixed(own, dict(worker.targets), dict(worker.losses))
            worker.pool = pool
        return graph

    def _replay(self, graph: torch.cuda.CUDAGraph, step: Step) -> None:
        """All lanes wait for the graph, and it for them; for the watch, all tasks are one."""
        posted = time.perf_counter()
        for lane in self.lanes.values():
            self.main.wait(step.mark(lane))
        begun = step.mark(self.main, timed=True)
        self.main.run(graph.replay)
        over = step.mark(self.main)
        for lane in self.lanes.values():
            lane.wait(over)
        for worker in self.backend.workers:
            worker.losses = dict(self.fixed[worker].losses)
        for ends, _ in self.program:
            step.ends.append(over)
            step.times.extend(
                TaskMarks(end.task.number, end.worker, posted, begun, over) for end in ends
            )

    def close(self) -> None:
        """Release the graph, too."""
        super().close()
        self.main.close()
        self.cuda_graph = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is collected before, not meanwhile.

    Of pinned memory that is freed, torch marks when the streams that used it are done: on one that
    is recorded, the mark would be part of the graph, and nobody could ever ask for it.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_update(joint: JointTask) -> bool:
    return joint.ends[0].task.operation in updates()


def require_capturable(plan: Plan, uses_gpu: bool, checks_messages: bool) -> None:
    """Raise `InvalidConfiguration` for a run whose steps are not the same on a GPU."""
    reasons = {
        "are for --backend cuda, or --backend local --device cuda": not uses_gpu,
        "cannot read what is announced: not with --check-messages": checks_messages,
        "have sequences of one length, and those of the model vary": plan.model.varies,
        "take no memory of the host's: not with --offload": plan.graph.communication.offload > 0,
        "have one order for what processes do together: not with --p2p batched, coalesced": (
            plan.graph.communication.in_groups
        ),
        "draw no random numbers, as layers of the model do, with seeds of each pass and step": (
            bool(plan.traced.random)
        ),
    }
    for reason, is_refused in reasons.items():
        if is_refused:
            raise InvalidConfiguration(FIELD, reason)
