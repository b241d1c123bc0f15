"""A worker that sleeps instead of computing.

Everything else is real: the dispatch, the lanes, what is sent, gathered and
reduced, and the optimizer's step. So communication can be measured with more
ranks than the machine has cores.
"""

from __future__ import annotations

import time

import torch

from executor.lanes import Device
from executor.plan import Plan
from executor.settings import Sleeps
from executor.worker import Cell, Worker
from schedules import Operation, Task


class SleepingWorker(Worker):
    """A worker whose passes take the time that they are told to, and return zeros."""

    def __init__(self, plan: Plan, rank: int, replica: int, device: Device, sleeps: Sleeps) -> None:
        super().__init__(plan, rank, replica, device)
        self.sleeps = sleeps
        self.zeros = {
            number: torch.zeros(plan.shapes[number].size, dtype=plan.shapes[number].dtype)
            for stage in self.stages
            for number in (stage - 1, stage)
            if number >= 0
        }

    def forward(self, task: Task) -> None:
        """Sleep, and hand on zeros."""
        cell = Cell(task.stage, task.microbatch)
        time.sleep(self.sleeps.forward[task.stage])
        if cell.stage == self.plan.graph.layout.stages - 1:
            self.losses[cell.microbatch] = torch.zeros(())
        else:
            self._hand_on(Operation.TRANSFER_ACTIVATIONS, cell, self.zeros[cell.stage])

    def backward(self, task: Task) -> None:
        """Sleep, and hand back zeros."""
        time.sleep(self.sleeps.backward[task.stage])
        self._return_zeros(Cell(task.stage, task.microbatch))
        self._release(Cell(task.stage, task.microbatch))

    def backward_input(self, task: Task) -> None:
        """Half of a backward pass."""
        time.sleep(self.sleeps.backward[task.stage] / 2)
        self._return_zeros(Cell(task.stage, task.microbatch))

    def backward_weight(self, task: Task) -> None:
        """The other half."""
        time.sleep(self.sleeps.backward[task.stage] / 2)
        self._release(Cell(task.stage, task.microbatch))

    def _return_zeros(self, cell: Cell) -> None:
        if cell.stage:
            self._hand_on(Operation.TRANSFER_GRADIENTS, cell, self.zeros[cell.stage - 1])
