"""What one device holds of a run, and what each compute step does with it.

A worker is one pipeline rank of one replica. Its weights and gradients lie in
the buffers that the task graph numbers: a stage's own, or some that stages take
turns in. Nothing here asks for the sharding: the graph's gathers, reductions
and buffers say it all.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from executor.flat import StageState
from executor.lanes import Device, Pool
from executor.plan import Plan
from executor.settings import Activations
from executor.stage import Stage
from schedules import Operation, Task
from schedules.columns import NONE


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
    """A forward pass with autograd's record of it: the stage's input and its result."""

    value: Tensor
    result: Tensor


class Worker:
    """One pipeline rank of one replica: its stages, its buffers, what is under way."""

    def __init__(self, plan: Plan, rank: int, replica: int, device: Device) -> None:
        self.plan, self.rank, self.replica, self.device = plan, rank, replica, device
        self.pool = Pool(device)
        share = replica if plan.is_sharded else 0
        numbers = plan.graph.layout.stages_of(rank)
        self.stages = {number: Stage(plan, number, share, device.device) for number in numbers}
        self.gathered = self._stages_of_tasks(Operation.GATHER)
        self.weights = self._buffers("weight_buffer")
        self.gradients = self._buffers("gradient_buffer")
        for number, stage in self.stages.items():
            stage.attach(
                {each: self.weights[each] for each in self._buffers_of(number, "weight_buffer")},
                {
                    each: self.gradients[each]
                    for each in self._buffers_of(number, "gradient_buffer")
                },
            )
        self.optimizer = torch.optim.AdamW(
            [stage.state.weights for stage in self.stages.values()],
            lr=plan.optimization.learning_rate,
            weight_decay=plan.optimization.weight_decay,
        )
        for stage in self.stages.values():
            self.optimizer.state[stage.state.weights] = stage.state.moments()
        self.inputs: dict[Cell, Tensor] = {}
        self.targets: dict[int, Tensor] = {}
        self.passes: dict[Cell, Pass] = {}
        self.incoming: dict[Cell, Tensor] = {}
        self.outgoing: dict[Payload, Tensor] = {}
        self.losses: dict[int, Tensor] = {}
        self.square_norm = torch.zeros((), dtype=torch.float64, device=device.device)

    # Buffers

    def _stages_of_tasks(self, operation: Operation) -> set[int]:
        graph = self.plan.graph
        own = (graph.operation == operation) & (graph.rank == self.rank)
        return set(graph.stage[own].tolist())

    def _buffers_of(self, stage: int, column: str) -> list[int]:
        """The buffers that tasks of a stage use."""
        graph = self.plan.graph
        used = getattr(graph, column)[graph.stage == stage]
        return sorted(set(used.tolist()) - {NONE})

    def _buffers(self, column: str) -> dict[int, Tensor]:
        """The buffers of a column, each large enough for all stages that use it.

        Weights that are never gathered are all in the training state; they are
        computed with in place if the precision is the same.
        """
        users: dict[int, list[Stage]] = {}
        for number, stage in self.stages.items():
            for buffer in self._buffers_of(number, column):
                users.setdefault(buffer, []).append(stage)
        found = {}
        for buffer, stages in users.items():
            state = stages[0].state.weights.detach()
            is_state = column == "weight_buffer" and not self.gathered
            if is_state and state.dtype is self.plan.dtype:
                found[buffer] = state
            else:
                size = max(stage.flat.size for stage in stages)
                found[buffer] = torch.zeros(size, dtype=self.plan.dtype, device=state.device)
        return found

    def weights_of(self, task: Task) -> Tensor:
        """The buffer that a gather fills, as large as its stage."""
        return self.weights[task.weight_buffer][: self.stages[task.stage].flat.size]

    def gradients_of(self, task: Task) -> Tensor:
        """The buffer that a reduction empties, as large as its stage."""
        return self.gradients[task.gradient_buffer][: self.stages[task.stage].flat.size]

    def state_of(self, task: Task) -> StageState:
        """The share of a stage's training state."""
        return self.stages[task.stage].state

    def take_gradients(self, task: Task) -> None:
        """Add this share's part of what was reduced to the state, and empty the buffer."""
        buffer, state = self.gradients_of(task), self.state_of(task)
        state.gradients.add_(state.part(buffer))
        buffer.zero_()

    # The step

    def begin(self, step: int) -> None:
        """Load what the first and the last stage need of the step's batch."""
        layout = self.plan.graph.layout
        first, last = 0 in self.stages, layout.stages - 1 in self.stages
        if not (first or last):
            return
        for microbatch in range(layout.microbatches):
            samples = self.plan.samples(self.replica, microbatch)
            inputs, targets = self.plan.model.batch(step, samples)
            if first:
                dtype = self.plan.dtype if inputs.is_floating_point() else inputs.dtype
                self.inputs[Cell(0, microbatch)] = self.device.load(inputs, dtype)
            if last:
                self.targets[microbatch] = self.device.load(targets, targets.dtype)

    def finish(self, losses: list[Tensor]) -> None:
        """Tell the part of the step's loss that is known here."""
        if self.losses:
            losses.append(torch.stack(list(self.losses.values())).sum())

    def forward(self, task: Task) -> None:
        """One micro-batch through one stage; its record is kept or made again later."""
        cell, stage = Cell(task.stage, task.microbatch), self.stages[task.stage]
        stage.read(task.weight_buffer)
        if self.plan.activations is Activations.KEEP:
            with stage.remembering():
                result = self._record(cell).result
        else:
            with torch.no_grad():
                result = self._result(cell, self.inputs[cell])
        if cell.stage == self.plan.graph.layout.stages - 1:
            self.losses[cell.microbatch] = result.detach()
        else:
            self._hand_on(Operation.TRANSFER_ACTIVATIONS, cell, result.detach())

    def backward(self, task: Task) -> None:
        """Gradients of the input and of the weights."""
        cell = self._prepare(task)
        made = self.passes.pop(cell, None) or self._record(cell)
        self._backward(cell, made)
        self._hand_back(cell, made)
        self._release(cell)

    def backward_input(self, task: Task) -> None:
        """The gradient of the input, which another stage waits for."""
        cell, stage = self._prepare(task), self.stages[task.stage]
        if not cell.stage:
            return
        with stage.remembering() if cell not in self.passes else nullcontext():
            made = self.passes.get(cell) or self._record(cell)
        (made.value.grad,) = torch.autograd.grad(
            made.result, made.value, self.incoming.get(cell), retain_graph=True
        )
        self.passes[cell] = made
        self._hand_back(cell, made)

    def backward_weight(self, task: Task) -> None:
        """The gradients of the weights, after that of the input."""
        cell = self._prepare(task)
        made = self.passes.pop(cell, None) or self._record(cell)
        self._backward(cell, made)
        self._release(cell)

    def _prepare(self, task: Task) -> Cell:
        stage = self.stages[task.stage]
        stage.read(task.weight_buffer)
        if task.gradient_buffer != NONE:
            stage.add_to(task.gradient_buffer)
        return Cell(task.stage, task.microbatch)

    def _record(self, cell: Cell) -> Pass:
        value = self.inputs[cell].detach()
        value.requires_grad_(cell.stage > 0)
        made = Pass(value, self._result(cell, value))
        if self.plan.activations is Activations.KEEP:
            self.passes[cell] = made
        return made

    def _result(self, cell: Cell, value: Tensor) -> Tensor:
        """A stage's output; the last one's share of the step's loss."""
        output = self.stages[cell.stage].run(value)
        if cell.stage < self.plan.graph.layout.stages - 1:
            return output
        return self.plan.model.loss(output, self.targets[cell.microbatch]) / self.plan.microbatches

    def _backward(self, cell: Cell, made: Pass) -> None:
        made.result.backward(self.incoming.get(cell))

    # What passes between stages

    def _hand_on(self, operation: Operation, cell: Cell, value: Tensor) -> None:
        """Leave something for the next stage, here or in a tensor to be sent."""
        is_forward = operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(cell.stage + (1 if is_forward else -1), cell.microbatch)
        if target.stage in self.stages:
            (self.inputs if is_forward else self.incoming)[target] = value
        else:
            shape = self.plan.shapes[min(cell.stage, target.stage)]
            lent = self.pool.take(shape)
            lent.copy_(value)
            self.outgoing[Payload(operation, *cell)] = lent

    def _hand_back(self, cell: Cell, made: Pass) -> None:
        if cell.stage:
            assert made.value.grad is not None  # noqa: S101
            self._hand_on(Operation.TRANSFER_GRADIENTS, cell, made.value.grad)
            made.value.grad = None

    def _release(self, cell: Cell) -> None:
        """Give back what came in for a micro-batch that is done."""
        self.pool.give(self.inputs.pop(cell))
        if cell in self.incoming:
            self.pool.give(self.incoming.pop(cell))

    def sent(self, task: Task) -> Tensor:
        """What a transfer carries, at its sender."""
        return self.outgoing.pop(Payload(task.operation, task.stage, task.microbatch))

    def space(self, task: Task) -> Tensor:
        """Where a transfer arrives, at its receiver."""
        is_forward = task.operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(task.stage + (1 if is_forward else -1), task.microbatch)
        lent = self.pool.take(self.plan.shapes[min(task.stage, target.stage)])
        (self.inputs if is_forward else self.incoming)[target] = lent
        return lent

    # The update

    def measure(self) -> Tensor:
        """The square of the norm of this share's gradients."""
        norms = [
            torch.linalg.vector_norm(stage.state.gradients, dtype=torch.float64)
            for stage in self.stages.values()
        ]
        return torch.stack(norms).square().sum()

    def update(self, square_norm: Tensor | None) -> None:
        """The optimizer's step, with gradients clipped if their norm is given."""
        clip = self.plan.optimization.clip
        states = [stage.state for stage in self.stages.values()]
        if clip is not None and square_norm is not None:
            scale = (clip / (square_norm.sqrt() + 1e-6)).clamp(max=1)
            for state in states:
                state.gradients.mul_(scale)
        self.optimizer.step()
        for state in states:
            state.gradients.zero_()
        self.refresh()

    def refresh(self) -> None:
        """Take the weights of the training state, where no gather brings them."""
        for number, stage in self.stages.items():
            for buffer in stage.buffers.values() if number not in self.gathered else ():
                buffer.copy_(stage.state.weights.detach())

    def step_counts(self) -> list[Tensor]:
        """How many steps the optimizer has made, as it counts them for each stage."""
        return [self.optimizer.state[stage.state.weights]["step"] for stage in self.stages.values()]
