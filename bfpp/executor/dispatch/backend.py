"""The backend protocol: transfers and collectives for the dispatch loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.parallel.exchange import Shards
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Task

MakeWorker = Callable[[Plan, int, int, DeviceRuntime, Shards], Worker]
"""Makes the worker of a rank of a pipeline, which divides its layers with others."""


class Backend(Protocol):
    """The workers of this process, and how they reach the others.

    `parties(task)` are the workers of this process that do a task, in groups
    that act as one: all begin when all are ready, the last one acts for them,
    and all go on when it is done. The operations get such a group.
    """

    @property
    def device(self) -> DeviceRuntime:
        """The device of this process's workers."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers of this process."""

    @property
    def posts_batches(self) -> bool:
        """True if transfers that are posted together go by `exchange`, not one by one."""

    def close(self) -> None:
        """Leave the others, once nothing is under way; all processes do."""

    def parties(self, task: Task) -> list[list[Worker]]:
        """The workers of this process that run a task, by group."""

    def meets_others(self, task: Task) -> bool:
        """True if other processes take part in what this process has of a task."""

    def transfer(self, task: Task, workers: Sequence[Worker]) -> None:
        """Send and receive between two pipeline ranks."""

    def exchange(self, tasks: Sequence[Task], worker: Worker) -> None:
        """A worker's sends and receives of a batch, in their order, together."""

    def gather(self, task: Task, workers: Sequence[Worker]) -> None:
        """All shares of a unit's weights, into a buffer of each replica."""

    def reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """The sum of all replicas' gradients of a unit, to whoever keeps a share of them.

        Of the replicas of one group, where there are several.
        """

    def all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """The sum of reduced gradients over the replicas that keep the same shard of a unit."""

    def tied_all_reduce(self, task: Task, workers: Sequence[Worker]) -> None:
        """The sum of the first and last unit's gradients of their shared parameters, to both."""

    def norm(self, task: Task, workers: Sequence[Worker]) -> None:
        """The square norm of a pipeline rank's gradients, to each of its replicas.

        Of all its tensor-parallel ranks.
        """

    def orthogonalise(self, workers: Sequence[Worker]) -> None:
        """The momentum of matrices from all shares to all, unit by unit (Muon)."""

    def total_square_norm(self, worker: Worker) -> Tensor:
        """The square norm of all pipeline ranks' gradients, once each is known."""
