"""All ranks in one process, on one device: messages are copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, permutations

import torch
from torch import Tensor

from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.dispatch.backend import MakeWorker
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.parallel.exchange import ThreadExchange, ThreadShards
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Task
from bfpp.schedules.operations.operations import transfers


class LocalBackend:
    """Every worker of a run, and copies between them."""

    posts_batches = False

    def __init__(self, plan: Plan, device: DeviceRuntime, make: MakeWorker = Worker) -> None:
        self.plan, self.device = plan, device
        ranks = range(plan.graph.layout.pp)
        self.exchanges = [[ThreadExchange(plan.tp) for _ in range(plan.dp)] for _ in ranks]
        self.pipelines = [
            [make(plan, rank, pipeline, device, self._shards(rank, pipeline)) for rank in ranks]
            for pipeline in range(plan.pipelines)
        ]
        self.workers = [worker for pipeline in self.pipelines for worker in pipeline]

    def _shards(self, rank: int, pipeline: int) -> ThreadShards:
        replica, tp_rank = divmod(pipeline, self.plan.tp)
        return ThreadShards(self.exchanges[rank][replica], tp_rank)

    def close(self) -> None:
        """Release threads that wait for a tensor-parallel rank that has failed."""
        for exchanges in self.exchanges:
            for exchange in exchanges:
                exchange.end()

    def parties(self, task: Task) -> list[list[Worker]]:
        """Sender and receiver of each pipeline; or those that do it together; or each alone."""
        if task.operation in transfers():
            return [[workers[task.rank], workers[task.peer]] for workers in self.pipelines]
        ranks = sorted(task.ranks)
        return [
            [self.pipelines[each][rank] for rank in ranks for each in group]
            for group in self.plan.together(task.operation)
        ]

    def meets_others(self, task: Task) -> bool:
        """There are none."""
        del task
        return False

    def transfer(self, task: Task, workers: Sequence[Worker]) -> None:
        """A copy."""
        sender, receiver = workers
        sent = sender.sent(task)
        receiver.space(task).copy_(sent)
        sender.pool.give(sent)

    def exchange(self, tasks: Sequence[Task], worker: Worker) -> None:
        """Nothing: both ends of each transfer are here."""

    def gather(self, task: Task, workers: Sequence[Worker]) -> None:
        """Copies of all shares to all."""
        for worker in workers:
            for other in workers:
                for (buffer, _), (_, state) in zip(
                    worker.weights_of(task), other.weights_of(task), strict=True
                ):
                    state.write(buffer)

    def reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """A sum in the first one's buffer, in the order of all; or in a copy of it."""
        for parts in zip(*(worker.gradients_of(task) for worker in workers), strict=True):
            total, *others = (buffer for buffer, _ in parts)
            if others:
                total = total.to(self.plan.reduce_dtype)
            for other in others:
                total.add_(other.to(total.dtype))
            for buffer, state in reversed(parts):  # the first one's buffer is emptied last
                state.take(total, buffer)
        self._share_buffers(task, workers)

    def all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """A sum in the order of all, copied to all."""
        for states in zip(*(worker.states_of(task) for worker in workers), strict=True):
            add_up([state.gradients for state in states], self.plan.reduce_dtype)
        self._share_buffers(task, workers)

    def _share_buffers(self, task: Task, workers: Sequence[Worker]) -> None:
        """Copy the first one's, if it is time to."""
        if task.number in self.plan.shares_buffers_after:
            first, *others = (worker.units[task.unit].moving for worker in workers)
            for other in others:
                other.write(first.values)

    def tied_all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """A sum of two, copied to both: of one worker's, or of two workers' one each."""
        del task
        shares = [worker.tied_gradients for worker in workers]
        for ends in shares if len(shares[0]) > 1 else [[*chain(*shares)]]:
            if ends:
                add_up(ends, self.plan.reduce_dtype)

    def norm(self, task: Task, workers: Sequence[Worker]) -> None:
        """The sum over the shares."""
        del task
        total = torch.stack([worker.measure() for worker in workers]).sum()
        for worker in workers:
            worker.square_norm = total

    def orthogonalise(self, workers: Sequence[Worker]) -> None:
        """Copies of all shares to all."""
        for parts in zip(*(worker.directions() for worker in workers), strict=True):
            for one, other in permutations(parts, 2):
                other.state.part(one.buffer).copy_(other.own)

    def total_square_norm(self, worker: Worker) -> Tensor:
        """The sum over the pipeline's ranks."""
        return torch.stack([each.square_norm for each in self.pipelines[worker.pipeline]]).sum()


def add_up(shares: Sequence[Tensor], dtype: torch.dtype) -> None:
    """The sum of all in their order, in some precision, to all."""
    total = torch.zeros_like(shares[0], dtype=dtype)
    for share in shares:
        total.add_(share.to(dtype))
    for share in shares:
        share.copy_(total)
