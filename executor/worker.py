"""What each compute step does on one device, and what it leaves for the next one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from bfpp.executor.finite import Seen, Where
from bfpp.executor.halves import Branch, backward, backward_input, backward_weight
from bfpp.executor.lanes import Device
from bfpp.executor.loading import Loader
from bfpp.executor.memory import Memory
from bfpp.executor.plan import Plan
from bfpp.executor.pool import Pool
from bfpp.executor.settings import Activations
from bfpp.executor.stage import Stage
from bfpp.schedules import Operation, Task
from bfpp.schedules.columns import NONE


class Cell(NamedTuple):
    """A micro-batch at a stage."""

    stage: int
    microbatch: int


class Payload(NamedTuple):
    """What a transfer carries: a stage's activations, or its input's gradients."""

    operation: Operation
    stage: int
    microbatch: int


@dataclass
class Pass:
    """A forward pass with autograd's record of it: the stage's input and its result.

    `start` is the first place with a gradient.
    """

    value: Tensor
    result: Tensor
    start: GradientEdge | None


class Worker(Memory):
    """One pipeline rank of one replica: what it keeps, and the micro-batches under way."""

    def __init__(self, plan: Plan, rank: int, replica: int, device: Device) -> None:
        super().__init__(plan, rank, replica, device.device)
        self.pool = Pool(device)
        self.loader = Loader(plan, replica)
        self.shapes = plan.shapes
        self.number = 0
        self.inputs: dict[Cell, Tensor] = {}
        self.targets: dict[int, Tensor] = {}
        self.passes: dict[Cell, Pass] = {}
        self.halves: dict[Cell, list[Branch]] = {}
        self.incoming: dict[Cell, Tensor] = {}
        self.outgoing: dict[Payload, Tensor] = {}
        self.losses: dict[int, Tensor] = {}

    # The step

    def begin(self, step: int) -> None:
        """Load what the first and the last stage need of the step's batch."""
        self.number = step
        cells = self.plan.graph.rank_of_cell == self.rank
        first, last = cells[0], cells[-1]
        load = self.pool.device.load
        for microbatch in np.flatnonzero(first | last).tolist():
            inputs, targets = self.loader.batch(step, microbatch)
            if first[microbatch]:
                dtype = self.plan.dtype if inputs.is_floating_point() else inputs.dtype
                self.inputs[Cell(0, microbatch)] = load(inputs.to(dtype))
            if last[microbatch]:
                self.targets[microbatch] = load(targets)

    def finish(self, losses: dict[Where, Tensor], seen: list[Seen]) -> None:
        """Tell the part of the step's loss that is known here; and what to look at.

        What that is, is looked at once the step is done: the host does not wait for it here.
        """
        own = torch.stack(list(self.losses.values())) if self.losses else None
        where = Where(self.rank, self.replica)
        if own is not None:
            losses[where] = own.sum(dtype=torch.float64)
        seen.append(
            Seen(
                where,
                own,
                tuple(self.losses),
                self.largest,
                {
                    number: [name for name, _, _ in stage.gradient_pieces]
                    for number, stage in self.stages.items()
                },
                self.total_square_norm,
            )
        )

    def forward(self, task: Task) -> None:
        """One micro-batch through one stage; its record is kept or made again later."""
        cell, stage = Cell(task.unit, task.microbatch), self.stages[task.unit]
        stage.read(task.weight_buffer)
        if self.plan.activations is Activations.KEEP:
            with self._remembering(stage):
                made = self.passes[cell] = self._record(cell)
            result = made.result
        else:
            with torch.no_grad():
                result, _ = self._result(cell, self.inputs[cell])
        if self._is_last(cell):
            self.losses[cell.microbatch] = result.detach()
        else:
            self._hand_on(Operation.TRANSFER_ACTIVATIONS, cell, result.detach())

    def backward(self, task: Task) -> None:
        """Gradients of the input and of the weights."""
        cell = self._prepare(task)
        made = self.passes.pop(cell, None) or self._record(cell)
        self._tell_of_loss(cell)
        if self._is_trained(cell, made):
            backward(made.result, self._arrived(cell, made.result))
        self._hand_back(cell, made.value, made.value.grad)
        self._release(cell)

    def backward_input(self, task: Task) -> None:
        """The gradient of the input, which another stage waits for."""
        cell = self._prepare(task)
        with self._remembering(self.stages[cell.stage]):
            made = self.passes.pop(cell, None) or self._record(cell)
        gradient, self.halves[cell] = None, []
        if self._is_trained(cell, made):
            assert made.start is not None  # noqa: S101
            gradient, self.halves[cell] = backward_input(
                made.value, made.start, made.result, self._arrived(cell, made.result)
            )
        self._hand_back(cell, made.value, gradient)

    def backward_weight(self, task: Task) -> None:
        """The gradients of the weights, after that of the input."""
        cell = self._prepare(task)
        self._tell_of_loss(cell)
        backward_weight(self.halves.pop(cell))
        self._release(cell)

    def _prepare(self, task: Task) -> Cell:
        stage = self.stages[task.unit]
        stage.read(task.weight_buffer)
        if task.gradient_buffer != NONE:
            stage.add_to(task.gradient_buffer)
        return Cell(task.unit, task.microbatch)

    def _remembering(self, stage: Stage) -> AbstractContextManager[None]:
        """For what autograd records now and uses in a later task.

        Weights that are gathered more than once a step may be elsewhere by then,
        or have been somewhere else in between.
        """
        is_moved = self.gathers[stage.number] > 1
        return stage.remembering() if is_moved else nullcontext()

    def _record(self, cell: Cell) -> Pass:
        value = self.inputs[cell].detach()
        value.requires_grad_(cell.stage > 0)
        return Pass(value, *self._result(cell, value))

    def _result(self, cell: Cell, value: Tensor) -> tuple[Tensor, GradientEdge | None]:
        """A stage's output, of the last one its share of the step's loss; and where it starts."""
        number = self.plan.number_of(self.replica, cell.microbatch)
        output, start = self.stages[cell.stage].run(value, self.number, number)
        if not self._is_last(cell):
            return output, start
        loss = self.plan.model.loss(output, self.targets[cell.microbatch])
        return loss / self.plan.microbatches, start

    def _arrived(self, cell: Cell, result: Tensor) -> Tensor | None:
        """The gradient of a stage's result: of a loss its scale, if it has one."""
        if self.scaler and self._is_last(cell):
            return self.scaler.scale.to(result.dtype)
        return self.incoming.get(cell)

    def _is_last(self, cell: Cell) -> bool:
        return cell.stage == self.plan.graph.layout.units - 1

    def _tell_of_loss(self, cell: Cell) -> None:
        """A loss may be no number and its gradients zero: all ranks learn of it by the norm."""
        if self.plan.optimization.skips and self._is_last(cell):
            first = self.gradients[self.stages[cell.stage].adds_to][:1]
            is_number = self.losses[cell.microbatch].isfinite()
            first.copy_(torch.where(is_number, first, torch.nan))

    def _is_trained(self, cell: Cell, made: Pass) -> bool:
        """Nothing is in a first stage without parameters."""
        if made.result.requires_grad:
            self.stages[cell.stage].check_leaves(made.value, made.result)
        return made.result.requires_grad

    # What passes between stages

    def _hand_on(self, operation: Operation, cell: Cell, value: Tensor) -> None:
        """Leave something for the next stage, here or in a tensor to be sent."""
        is_forward = operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(cell.stage + (1 if is_forward else -1), cell.microbatch)
        if self.plan.graph.rank_of_cell[target] == self.rank:
            # A layer may return its input, which is given back when this cell is done, or
            # a view of its weights, whose place others take.
            kept = value.clone() if self.pool.lends(value) or self.keeps(value) else value
            (self.inputs if is_forward else self.incoming)[target] = kept
        else:
            shape = self.shapes[min(cell.stage, target.stage)]
            lent = self.pool.take(shape)
            lent.copy_(value)
            self.outgoing[Payload(operation, *cell)] = lent

    def _hand_back(self, cell: Cell, value: Tensor, gradient: Tensor | None) -> None:
        if cell.stage:
            found = torch.zeros_like(value) if gradient is None else gradient
            self._hand_on(Operation.TRANSFER_GRADIENTS, cell, found)

    def _release(self, cell: Cell) -> None:
        """Give back what came in for a micro-batch that is done."""
        self.pool.give(self.inputs.pop(cell))
        if cell in self.incoming:
            self.pool.give(self.incoming.pop(cell))

    def sent(self, task: Task) -> Tensor:
        """What a transfer carries, at its sender."""
        return self.outgoing.pop(Payload(task.operation, task.unit, task.microbatch))

    def space(self, task: Task) -> Tensor:
        """Where a transfer arrives, at its receiver."""
        is_forward = task.operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(task.unit + (1 if is_forward else -1), task.microbatch)
        lent = self.pool.take(self.shapes[min(task.unit, target.stage)])
        (self.inputs if is_forward else self.incoming)[target] = lent
        return lent
