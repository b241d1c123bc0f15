"""One worker a process, over torch.distributed: gloo between CPUs, NCCL between GPUs.

Every directed channel has a process group of its own, since NCCL matches
messages by their order in a group; a process makes those groups that it is in, in
rounds (`bfpp.executor.plan.process_groups`). Gloo's messages also carry
the task's number as their tag. Announcements have none, so that the next one is
received, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.dispatch.backend import MakeWorker
from bfpp.executor.dispatch.backends.groups import ProcessGroups
from bfpp.executor.dispatch.backends.local import add_up
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.parallel.exchange import ProcessShards, Shards, alone
from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import Purpose, memberships
from bfpp.schedules import Task


class WrongMessage(Exception):
    """A message that arrived is not the one that was due."""


class DistributedBackend:
    """The worker of this process, and the process groups that it is in."""

    def __init__(
        self,
        plan: Plan,
        device: DeviceRuntime,
        kind: str,
        make: MakeWorker = Worker,
        checks_messages: bool = False,
        timeout: timedelta = timedelta(hours=1),
    ) -> None:
        self.plan, self.device, self.checks_messages = plan, device, checks_messages
        rank, pipeline = divmod(dist.get_rank(), plan.pipelines)
        self.groups = ProcessGroups(kind, timeout, device.device)
        self.group_of = self.groups.make_rounds(memberships(plan, rank, pipeline))
        is_divided = Purpose.LAYERS in self.group_of
        self.shards: Shards = (
            ProcessShards(self.group_of[Purpose.LAYERS]) if is_divided else alone()
        )
        self.worker = make(plan, rank, pipeline, device, self.shards)
        self.workers = [self.worker]
        self.members = plan.group_of(rank, pipeline)
        self._warm_up()

    def _warm_up(self) -> None:
        """Open all connections before the first step, in the same order everywhere."""
        # NCCL and gloo connect with the first message of a group, for which both ends have to come.
        # Within a step, each of two ranks could be at another group first.
        value = torch.zeros(1, device=self.device.device)
        for use, group in self.group_of.items():
            if isinstance(use, Purpose):
                dist.all_reduce(value, group=group)
                continue
            _, sender, receiver = use
            if self.worker.rank == sender:
                dist.send(value, self.plan.process(receiver, self.worker.pipeline), group)
            else:
                dist.recv(value, self.plan.process(sender, self.worker.pipeline), group)
        dist.barrier()

    def parties(self, task: Task) -> list[list[Worker]]:
        """The process's worker, where its rank takes part."""
        return [[self.worker]] if self.worker.rank in (task.rank, task.peer) else []

    def transfer(self, task: Task, workers: Sequence[Worker]) -> None:
        """A message to, or from, the same pipeline's worker at the other end."""
        (worker,) = workers
        group = self.group_of[task.operation, task.rank, task.peer]
        if worker.rank == task.rank:
            sent, receiver = worker.sent(task), self.plan.process(task.peer, worker.pipeline)
            if self.checks_messages:
                dist.send(self._identity(task, sent), receiver, group)
            # gloo matches messages by this tag, NCCL by their order alone.
            dist.send(sent, receiver, group, task.number)
            worker.pool.give(sent)
        else:
            space, sender = worker.space(task), self.plan.process(task.rank, worker.pipeline)
            if self.checks_messages:
                self._require(task, space, sender, group)
            dist.recv(space, sender, group, task.number)

    def _identity(self, task: Task, payload: Tensor) -> Tensor:
        return torch.tensor([task.number, payload.numel()], device=payload.device)

    def _require(
        self, task: Task, space: Tensor, sender: int, group: dist.ProcessGroup | None
    ) -> None:
        """Raise `WrongMessage` unless the next message is the one that this task receives."""
        due, announced = self._identity(task, space), torch.empty(2, dtype=torch.int64)
        announced = announced.to(space.device)
        dist.recv(announced, sender, group)
        number, elements = announced.tolist()
        if not torch.equal(due, announced):
            raise WrongMessage(
                f"{task} was due, with {space.numel()} elements; process {sender} sent "
                f"{self.plan.graph.task(number)}, with {elements}"
            )

    def gather(self, task: Task, workers: Sequence[Worker]) -> None:
        """An all-gather in place; of frozen weights, another one."""
        (worker,) = workers
        for buffer, state in worker.weights_of(task):
            own = state.write(buffer)
            if len(self.members) > 1:
                dist.all_gather_single(buffer, own, self.group_of[Purpose.COPIES])

    def reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """A reduce-scatter in place; without sharding, an all-reduce.

        Where less precision is sent than added up in, it is in place in a copy.
        """
        (worker,) = workers
        copies = self.group_of[Purpose.COPIES]
        for buffer, state in worker.gradients_of(task):
            total = buffer
            if len(self.members) > 1:
                total = buffer.to(self.plan.reduce_dtype)
                if self.plan.is_sharded:
                    dist.reduce_scatter_single(state.part(total), total, group=copies)
                else:
                    dist.all_reduce(total, group=copies)
            state.take(total, buffer)
        self._share_buffers(task, worker, copies)

    def all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """An all-reduce in place, or in a copy of less precision."""
        (worker,) = workers
        replicas = self.group_of[Purpose.REPLICAS]
        for state in worker.states_of(task):
            self._all_reduce(state.gradients, replicas)
        self._share_buffers(task, worker, replicas)

    def _share_buffers(self, task: Task, worker: Worker, group: dist.ProcessGroup) -> None:
        """Take those of the group's first process, if it is time to: one message for a unit."""
        if task.number not in self.plan.shares_buffers_after:
            return
        if own := worker.units[task.unit].moving.bytes():
            sent = torch.cat(own)
            dist.broadcast(sent, group=group, group_src=0)
            for place, values in zip(own, sent.split([*map(len, own)]), strict=True):
                place.copy_(values)

    def tied_all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """The all-reduce of two processes; or a sum, in one that has both ends."""
        del task
        (worker,) = workers
        match worker.tied_gradients:
            case [share]:
                self._all_reduce(share, self.group_of[Purpose.TIED])
            case [*shares] if shares:
                add_up(shares, self.plan.reduce_dtype)

    def _all_reduce(self, share: Tensor, group: dist.ProcessGroup) -> None:
        sent = share.to(self.plan.reduce_dtype)
        dist.all_reduce(sent, group=group)
        share.copy_(sent)

    def norm(self, task: Task, workers: Sequence[Worker]) -> None:
        """The sum over the shares, and over tensor-parallel ranks."""
        del task
        (worker,) = workers
        worker.square_norm = worker.measure()
        if self.plan.is_sharded or self.plan.tp > 1:
            dist.all_reduce(worker.square_norm, group=self.group_of[Purpose.NORMS])

    def orthogonalise(self, workers: Sequence[Worker]) -> None:
        """An all-gather in place, if the state is sharded."""
        (worker,) = workers
        for each in worker.directions():
            if self.plan.is_sharded and len(self.members) > 1:
                dist.all_gather_single(each.buffer, each.own, self.group_of[Purpose.COPIES])

    def total_square_norm(self, worker: Worker) -> Tensor:
        """The sum over the pipeline's ranks."""
        total = worker.square_norm.clone()
        dist.all_reduce(total, group=self.group_of[Purpose.PIPELINE])
        return total

    def close(self) -> None:
        """Leave all groups."""
        self.groups.close()
