"""Many short runs over gloo in one group of processes, which are started once.

Starting a process costs seconds, most of them to import torch. So the processes
stay, and for each case those that it needs form a default group of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from bfpp.executor.checkpoint import TensorPieces
from bfpp.executor.devices.lanes import Threads
from bfpp.executor.dispatch.backends import distributed
from bfpp.executor.dispatch.backends.distributed import DistributedBackend
from bfpp.executor.dispatch.dispatch import Dispatcher
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.model import Model
from bfpp.executor.processes import ProcessContext
from bfpp.executor.run.session import train
from bfpp.executor.run.state import pieces_of
from bfpp.executor.train.connect import make_backend
from bfpp.executor.train.job import Job
from bfpp.executor.train.trainer import Report, Trainer
from bfpp.schedules import Operation, Task
from bfpp.schedules.columns import Seconds
from tests.helpers.small_models import Averaged, chain, tied_chain


@dataclass(frozen=True)
class Chain:
    """A source of small layers."""

    layers: int
    width: int = 4
    tied: bool = False
    averages: bool = False

    def load(self, seed: int) -> Model:
        del seed
        if self.averages:
            return chain(self.layers, self.width, Averaged)
        return (tied_chain if self.tied else chain)(self.layers, self.width)


Counts = list[list[int]]


@dataclass(frozen=True)
class Ran:
    """Results of a run: its reports, all pieces of the weights, and the median step's times."""

    reports: list[Report]
    state: dict[str, TensorPieces]
    columns: Seconds


def run_all(
    context: ProcessContext, jobs: Sequence[Job], use: str = "run", one_by_one: bool = False
) -> list[Ran]:
    """Each job in turn; `context.processes` is the most that one of them needs.

    `one_by_one`, what processes do together is one chain, as in a CUDA graph.
    """
    torch.set_num_threads(1)
    found = [_run(context, job, one_by_one) for job in _own(context, jobs, use)]
    return [each for each in found if each is not None]


def run_and_count(
    context: ProcessContext, given: tuple[Sequence[Job], Sequence[Job], Sequence[Job]]
) -> tuple[list[Ran], Counts, list[Ran]]:
    """Some jobs in turn, of others the groups that processes make, and others as one chain."""
    jobs, counted, chained = given
    ran, counts = run_all(context, jobs), _count_groups(context, counted)
    return ran, counts, run_all(context, chained, "chained", one_by_one=True)


def _own(context: ProcessContext, jobs: Sequence[Job], use: str) -> Iterator[Job]:
    """The jobs that need this process, each while a default group of its processes is there."""
    for number, job in enumerate(jobs):
        if context.process < job.workers:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(f"{use} {number}", context.store),
                rank=context.process,
                world_size=job.workers,
            )
            yield job
            dist.destroy_process_group()


def _count_groups(context: ProcessContext, jobs: Sequence[Job]) -> Counts:
    """Number of groups that each process of each job makes for a backend, which is made twice."""
    made = [0]
    helper = distributed_c10d._new_process_group_helper

    def counted(*arguments: Any, **options: Any) -> Any:
        made[0] += 1
        return helper(*arguments, **options)

    distributed_c10d._new_process_group_helper = counted
    found = []
    for job in _own(context, jobs, "count"):
        made[0] = 0
        for _ in range(2):
            DistributedBackend(job.plan(), Threads(), "gloo").close()
        counts = torch.empty(job.workers, dtype=torch.int64)
        dist.all_gather_single(counts, torch.tensor([made[0]]))
        found.append((counts / 2).tolist())
    return found


def _run(context: ProcessContext, job: Job, one_by_one: bool) -> Ran | None:
    plan = job.plan()
    backend = make_backend(plan, job, context)
    trainer = Trainer(plan, backend)
    if one_by_one:
        lanes = trainer.dispatcher.lanes
        trainer.dispatcher = Dispatcher(plan, backend, lanes=lanes, one_by_one=True)
    reports = list(trainer.run(range(job.steps)))
    columns = trainer.columns_of_median()
    trainer.close()
    own = pieces_of(backend.workers)
    if columns is None:  # only the first process is asked
        dist.gather_object(own)
        return None
    parts: list[dict[str, TensorPieces]] = [{}] * job.workers
    dist.gather_object(own, parts)
    held: dict[str, list[TensorPieces]] = {}
    for part in parts:
        for name, pieces in part.items():
            held.setdefault(name, []).append(pieces)
    state = {
        name: replace(each[0], pieces=[piece for pieces in each for piece in pieces.pieces])
        for name, each in held.items()
    }
    return Ran(reports, state, columns)


class _Untagged:
    """Messages without tags, as NCCL's: they match by their order alone."""

    def __getattr__(self, name: str) -> object:
        return getattr(dist, name)

    @staticmethod
    def send(
        tensor: torch.Tensor, receiver: int, group: dist.ProcessGroup | None = None, _: int = 0
    ) -> None:
        dist.send(tensor, receiver, group)

    @staticmethod
    def recv(
        tensor: torch.Tensor, sender: int, group: dist.ProcessGroup | None = None, _: int = 0
    ) -> None:
        dist.recv(tensor, sender, group)


def swap_receives(context: ProcessContext, job: Job) -> object:
    """The last rank takes its first two micro-batches in the wrong order."""
    distributed.dist = _Untagged()  # type: ignore[assignment]
    transfer = distributed.DistributedBackend.transfer

    def swapped(self: distributed.DistributedBackend, task: Task, workers: list[Worker]) -> None:
        if self.worker.rank == task.peer and task.operation is Operation.TRANSFER_ACTIVATIONS:
            graph = self.plan.graph
            arriving = (graph.operation == task.operation) & (graph.peer == task.peer)
            first, second = arriving.nonzero()[0][:2].tolist()
            other = {first: second, second: first}.get(task.number, task.number)
            task = graph.task(other)
        transfer(self, task, workers)

    distributed.DistributedBackend.transfer = swapped  # type: ignore[assignment]
    return train(context, job)
