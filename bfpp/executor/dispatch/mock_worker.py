"""A worker that sleeps instead of computing.

Everything else is real: dispatch, lanes, all communication and the optimizer step.
So communication can be measured with more ranks than the machine has cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import torch
from torch import Tensor

from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.devices.messages import Cell, Message
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.parallel.exchange import Shards
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Sleeps
from bfpp.schedules import Operation, Task

MOST_OVERSLEEP = 2e-4
"""Seconds; a longer one is due to other load on the machine."""


def oversleep(rounds: int = 21, seconds: float = 1e-3) -> float:
    """The overshoot of a sleep on an idle machine."""
    overshoots = []
    for _ in range(rounds):
        begin = time.perf_counter()
        time.sleep(seconds)
        overshoots.append(time.perf_counter() - begin - seconds)
    return min(*overshoots, MOST_OVERSLEEP)


class Sleeper:
    """Sleeps for exact times: as long as a sleep overshoots on this machine, it is cut short."""

    def __init__(self) -> None:
        self.oversleep = oversleep()

    @contextmanager
    def taking(self, seconds: float) -> Iterator[None]:
        """Sleep until the enclosed work has taken so long."""
        end = time.perf_counter() + seconds - self.oversleep
        yield
        time.sleep(max(end - time.perf_counter(), 0.0))


class MockWorker(Worker):
    """A worker whose passes sleep for a given time and return zeros."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        pipeline: int,
        device: DeviceRuntime,
        shards: Shards,
        sleeps: Sleeps,
    ) -> None:
        super().__init__(plan, rank, pipeline, device, shards)
        self.sleeps = sleeps
        self.sleeper = Sleeper()

    def forward(self, task: Task) -> None:
        """Pass on zeros after the given time."""
        cell = Cell(task.unit, task.microbatch)
        with self._taking(self.sleeps.forward, task):
            if cell.unit == self.plan.graph.layout.units - 1:
                self.losses[cell.microbatch] = torch.zeros(())
            else:
                zeros = _zeros(self.traced.forms[cell.unit].values)
                self._put_outgoing(Operation.TRANSFER_ACTIVATIONS, cell, zeros)

    def backward(self, task: Task) -> None:
        """Return zeros after the given time."""
        with self._taking(self.sleeps.backward, task):
            self._return_zeros(Cell(task.unit, task.microbatch))
            self._release(Cell(task.unit, task.microbatch))

    def backward_input(self, task: Task) -> None:
        """The input half of a backward pass, which returns zeros."""
        with self._taking(self.sleeps.backward_input, task):
            self._return_zeros(Cell(task.unit, task.microbatch))

    def backward_weight(self, task: Task) -> None:
        """The weight half."""
        with self._taking(self.sleeps.backward_weight, task):
            self._release(Cell(task.unit, task.microbatch))

    def _taking(self, of_units: Sequence[float], task: Task) -> AbstractContextManager[None]:
        """Sleep until the enclosed work has taken as long as a task of its unit is to."""
        factor = self.sleeps.factor(self.pipeline, task.number)
        return self.sleeper.taking(of_units[task.unit] * factor)

    def _return_zeros(self, cell: Cell) -> None:
        if cell.unit:
            zeros = _zeros(self.traced.forms[cell.unit - 1].gradients)
            self._put_outgoing(Operation.TRANSFER_GRADIENTS, cell, zeros)


@cache
def _zeros(message: Message) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(part.size, dtype=part.dtype) for part in message.parts)
