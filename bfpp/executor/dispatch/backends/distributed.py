"""One worker a process, over torch.distributed: gloo between CPUs, NCCL between GPUs.

Every directed channel has a process group of its own, since NCCL matches
messages by their order in a group; transfers that are posted in batches have one a
pipeline, in which the order is that of the posts. A process makes those groups that it is in, in
rounds (`bfpp.executor.plan.process_groups`). Gloo's messages also carry
the task's number as their tag. Announcements have none, so that the next one is
received, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

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
from bfpp.executor.plan.process_groups import Purpose, channel_rounds, memberships, use_of
from bfpp.schedules import Operation, Task


class WrongMessage(Exception):
    """A message that arrived is not the one that was due."""


class DistributedBackend:
    """The worker of this process, and the process groups that it is in."""

    posts_batches = True

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
        # Gloo's sends return once the message is in the socket: it would overlap the next pass.
        overlaps = plan.graph.communication.pp_overlap
        self.answers = not overlaps and device.device.type == "cpu"
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
        for channel in chain(*channel_rounds(self.plan.graph)):
            _, sender, receiver = channel
            if self.worker.rank == sender:
                dist.send(value, self._process(receiver), self._group_of(*channel))
            elif self.worker.rank == receiver:
                dist.recv(value, self._process(sender), self._group_of(*channel))
        dist.barrier()

    def _process(self, rank: int) -> int:
        """A rank of the worker's own pipeline, by its number among all processes."""
        return self.plan.process(rank, self.worker.pipeline)

    def _group_of(self, operation: Operation, sender: int, receiver: int) -> dist.ProcessGroup:
        """The group of a transfer."""
        communication = self.plan.graph.communication
        use = use_of(operation, sender, receiver, communication)
        assert use is not None  # noqa: S101
        return self.group_of[use]

    def parties(self, task: Task) -> list[list[Worker]]:
        """The process's worker, where its rank takes part."""
        return [[self.worker]] if self.worker.rank in (task.rank, task.peer) else []

    def meets_others(self, task: Task) -> bool:
        """True if it uses a group in which there are others."""
        communication = self.plan.graph.communication
        use = use_of(task.operation, task.rank, task.peer, communication)
        group = self.group_of.get(use) if use else None
        return group is not None and dist.get_world_size(group) > 1

    def transfer(self, task: Task, workers: Sequence[Worker]) -> None:
        """A message to, or from, the same pipeline's worker at the other end."""
        (worker,) = workers
        group = self._group_of(task.operation, task.rank, task.peer)
        if worker.rank == task.rank:
            sent, receiver = worker.sent(task), self._process(task.peer)
            if self.checks_messages:
                dist.send(self._identity(task, sent), receiver, group)
            # gloo matches messages by this tag, NCCL by their order alone.
            dist.send(sent, receiver, group, task.number)
            if self.answers:
                dist.recv(torch.empty(1), receiver, group, task.number)
            worker.pool.give(sent)
        else:
            space, sender = worker.space(task), self._process(task.rank)
            if self.checks_messages:
                announced = torch.empty(2, dtype=torch.int64, device=space.device)
                dist.recv(announced, sender, group)
                self._require(task, space, announced)
            dist.recv(space, sender, group, task.number)
            if self.answers:
                dist.send(torch.empty(1), sender, group, task.number)

    def exchange(self, tasks: Sequence[Task], worker: Worker) -> None:
        """All messages of a batch at once: with NCCL, as one kernel."""
        messages, sent = [], []
        for task in tasks:
            group = self._group_of(task.operation, task.rank, task.peer)
            how: dict[str, Any] = {"group": group, "tag": task.number}
            if worker.rank == task.rank:
                sent.append(payload := worker.sent(task))
                messages.append(dist.P2POp(dist.isend, payload, self._process(task.peer), **how))
            else:
                place = worker.space(task)
                messages.append(dist.P2POp(dist.irecv, place, self._process(task.rank), **how))
        for message in dist.batch_isend_irecv(messages):
            message.wait()
        for payload in sent:
            worker.pool.give(payload)

    def _identity(self, task: Task, payload: Tensor) -> Tensor:
        return torch.tensor([task.number, payload.numel()], device=payload.device)

    def _require(self, task: Task, space: Tensor, announced: Tensor) -> None:
        """Raise `WrongMessage` unless the message announced is the one that this task receives."""
        number, elements = announced.tolist()
        if self._identity(task, space).tolist() != [number, elements]:
            raise WrongMessage(
                f"{task} was due, with {space.numel()} elements; process "
                f"{self._process(task.rank)} sent {self.plan.graph.task(number)}, with {elements}"
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
