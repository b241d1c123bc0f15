"""The compute steps of one device, and the state between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import proxy

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, saved_tensors_hooks
from torch.utils import _pytree as pytree

from bfpp.executor.devices.compiled import compiled_loss
from bfpp.executor.devices.flat_buffers import memory_of
from bfpp.executor.devices.lanes import DeviceRuntime
from bfpp.executor.devices.messages import Cell, Form, Parcel, Tree, in_precision, tensors_of
from bfpp.executor.devices.pool import Pool
from bfpp.executor.devices.storages import Placed, find
from bfpp.executor.dispatch.data_loading import Loader
from bfpp.executor.dispatch.split_backward import (
    Branch,
    backward,
    backward_input,
    backward_weight,
)
from bfpp.executor.memory.offloading import Kept, Offloading
from bfpp.executor.memory.rank_memory import RankMemory
from bfpp.executor.memory.unit import Unit
from bfpp.executor.model.buffers import Replaced
from bfpp.executor.model.gradient_check import Result, edge_of
from bfpp.executor.model.parallel.exchange import Shards
from bfpp.executor.model.parallel.layers import divided_loss
from bfpp.executor.model.tracing.originals import first_watched
from bfpp.executor.optimizer.nan_checks import Seen, Where
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations
from bfpp.schedules import Operation, Task
from bfpp.schedules.columns import NONE


@dataclass
class Pass:
    """A forward pass with autograd's record of it: of the unit's input and its result.

    Those of its tensors that have a gradient; `starts` are the first places with one.
    """

    values: tuple[Tensor, ...]
    results: tuple[Result, ...]
    starts: list[GradientEdge]

    def detached(self) -> Pass:
        """The pass without its result: autograd needs its edge alone.

        Several results are made one before they run backward, and stay.
        """
        if len(self.results) != 1:
            return self
        return replace(self, results=tuple(map(edge_of, self.results)))


class Taken(NamedTuple):
    """Times of a pass that another runtime runs: its begin and end.

    It is `posted` as long before its begin as that runtime's thread has worked since the last pass.
    """

    posted: float
    begin: float
    end: float


class Worker(RankMemory):
    """A worker: one rank of one pipeline, with its memory and the micro-batches under way."""

    def __init__(
        self, plan: Plan, rank: int, pipeline: int, device: DeviceRuntime, shards: Shards
    ) -> None:
        super().__init__(plan, rank, pipeline, device.device, shards)
        self.pool = Pool(device)
        self.loader = Loader(plan.loader_threads, self.replica)
        loss = divided_loss(plan.model.loss, self.region)
        fast = compiled_loss(loss, plan.model.varies) if plan.compile else loss
        self.loss = first_watched(loss, fast, plan.traced.originals)
        self.traced = plan.traced
        self.number = 0
        self.inputs: dict[Cell, Parcel] = {}
        self.offloading = Offloading(self.pool, self.inputs)
        self.targets: dict[int, Tree] = {}
        self.passes: dict[Cell, Pass] = {}
        self.halves: dict[Cell, list[Branch]] = {}
        self.before: dict[Cell, Replaced] = {}
        self.incoming: dict[Cell, Parcel] = {}
        self.outgoing: dict[tuple[Operation, Cell], Tensor] = {}
        self.losses: dict[int, Tensor] = {}
        self.own_times: dict[int, Taken] = {}

    # The step

    def begin(self, step: int, plan: Plan) -> None:
        """Load the first and the last unit's parts of the batch of a step or an evaluation."""
        self.prepare()
        if plan is not self.plan:
            self.plan = plan
            for unit in self.units.values():
                unit.train(plan.graph.trains)
        self.number, self.traced = step, plan.traced_at(step)
        cells = self.plan.graph.rank_of_cell == self.rank
        first, last = cells[0], cells[-1]
        load = self.pool.device.load
        for microbatch in np.flatnonzero(first | last).tolist():
            inputs, targets = self.loader.batch(plan, step, microbatch)
            if first[microbatch]:
                tensors = tensors_of(in_precision(inputs, self.plan.dtype))
                self.inputs[Cell(0, microbatch)] = Parcel(tuple(map(load, tensors)))
            if last[microbatch]:
                self.targets[microbatch] = pytree.tree_map_only(Tensor, load, targets)

    def finish(self, losses: dict[Where, Tensor], seen: list[Seen]) -> None:
        """Report the part of the step's loss that is known here, and values to be checked.

        They are checked once the step is done: the host does not wait for them here.
        """
        own = torch.stack(list(self.losses.values())) if self.losses else None
        if own is not None and self.tp_rank == 0:
            losses[self.where] = own.sum(dtype=torch.float64)
        seen.append(
            Seen(
                self.where,
                own,
                tuple(self.losses),
                self.largest,
                {
                    number: [name for name, _, _ in unit.gradient_pieces]
                    for number, unit in self.units.items()
                },
                self.total_square_norm,
            )
        )

    def forward(self, task: Task) -> None:
        """The forward pass of a micro-batch; autograd's record is kept or made again later.

        In an evaluation, nothing is.
        """
        cell, unit = Cell(task.unit, task.microbatch), self.units[task.unit]
        unit.read(task.weight_buffer)
        trains, kept = self.plan.graph.trains, self._kept(cell)
        if trains and self.plan.activations is Activations.KEEP:
            with self._remembering(unit, kept):
                self.passes[cell], results = self._record(cell)
        else:
            before = unit.moving.before()
            if trains:
                self.before[cell] = before
            with torch.no_grad(), nullcontext() if trains else before:
                results, _ = self._result(cell, self.inputs[cell].tensors)
        if self._is_last(cell):
            (self.losses[cell.microbatch],) = _detached(results)
        else:
            self._put_outgoing(Operation.TRANSFER_ACTIVATIONS, cell, _detached(results))
            if cell in self.passes:
                self.passes[cell] = self.passes[cell].detached()
        if kept:
            leaves = self.passes[cell].values if cell in self.passes else ()
            after = self.inputs.get(cell._replace(unit=cell.unit + 1))
            kept.complete(self.plan.cuts[cell.unit], leaves, after.tensors if after else ())
        if not trains:
            self._release(cell)

    def backward(self, task: Task) -> None:
        """Gradients of the input and of the weights."""
        cell = self._prepare(task)
        made = self.passes.pop(cell, None) or self._again(cell)
        self._mark_bad_loss(cell)
        if self._is_trained(cell, made):
            backward(made.results, self._gradients(cell))
        self._return_gradients(cell, made.values, [value.grad for value in made.values])
        self._release(cell)

    def backward_input(self, task: Task) -> None:
        """The gradient of the input, which another unit waits for."""
        cell = self._prepare(task)
        with self._remembering(self.units[cell.unit]):
            made = self.passes.pop(cell, None) or self._again(cell)
        gradients: Sequence[Tensor | None] = [None for _ in made.values]
        self.halves[cell] = []
        if self._is_trained(cell, made):
            gradients, self.halves[cell] = backward_input(
                made.values, made.starts, made.results, self._gradients(cell)
            )
        self._return_gradients(cell, made.values, gradients)

    def backward_weight(self, task: Task) -> None:
        """The gradients of the weights, after that of the input."""
        cell = self._prepare(task)
        self._mark_bad_loss(cell)
        backward_weight(self.halves.pop(cell))
        self._release(cell)

    def _prepare(self, task: Task) -> Cell:
        unit = self.units[task.unit]
        unit.read(task.weight_buffer)
        if task.gradient_buffer != NONE:
            unit.add_to(task.gradient_buffer)
        cell = Cell(task.unit, task.microbatch)
        self.offloading.forget(cell)
        return cell

    def _kept(self, cell: Cell) -> Kept | None:
        """Activations of a forward pass that is offloaded: neither the model, nor the batch."""
        if cell not in self.plan.offloads.cells:
            return None
        layers = self.units[cell.unit].layers.values()
        staying = [
            *self.weights.values(),
            *(buffer for layer in layers for buffer in layer.buffers()),
            *(self.inputs[cell].tensors if cell.unit == 0 else ()),
            *(tensors_of(self.targets[cell.microbatch]) if self._is_last(cell) else ()),
        ]
        return self.offloading.keep(cell, {*map(memory_of, staying)})

    def _remembering(self, unit: Unit, kept: Kept | None = None) -> AbstractContextManager[None]:
        """Hooks for tensors that autograd saves now and uses in a later task.

        Weights that are gathered more than once a step may be elsewhere by then,
        or have been somewhere else in between; and what is offloaded comes back elsewhere.
        """
        is_moved = self.gathers[unit.number] > 1
        if kept is None and not is_moved:
            return nullcontext()

        own = kept and proxy(kept)  # autograd keeps its hooks until the backward pass is over

        def saved(tensor: Tensor) -> Tensor | Placed:
            placed = unit.place(tensor) if is_moved else tensor
            return own.place(placed) if own and isinstance(placed, Tensor) else placed

        return saved_tensors_hooks(saved, find)

    def _form(self, unit: int) -> Form:
        """A unit's output; of the one before the first, the batch."""
        return self.traced.forms[unit] if unit >= 0 else self.traced.inputs

    def _record(self, cell: Cell) -> tuple[Pass, tuple[Tensor, ...]]:
        """A forward pass with autograd's record, and its output."""
        tensors = _detached(self.inputs[cell].tensors)
        values = self._form(cell.unit - 1).with_gradient(tensors)
        for value in values:
            value.requires_grad_()
        results, starts = self._result(cell, tensors)
        return Pass(values, tuple(each for each in results if each.requires_grad), starts), results

    def _again(self, cell: Cell) -> Pass:
        """A forward pass that is run again for its record, with the buffers that it had."""
        with self.before.pop(cell):
            return self._record(cell)[0]

    def _result(
        self, cell: Cell, tensors: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], list[GradientEdge]]:
        """A unit's output, of the last one its share of the step's loss; and where it starts."""
        number = self.plan.number_of(self.replica, cell.microbatch)
        value = self._form(cell.unit - 1).filled(tensors)
        output, starts = self.units[cell.unit].run(value, self.number, number)
        if not self._is_last(cell):
            return self._form(cell.unit).require(output, f"stage {cell.unit} returns"), starts
        loss = self.loss(output, self.targets[cell.microbatch])
        return (loss / self.plan.microbatches,), starts

    def _gradients(self, cell: Cell) -> tuple[Tensor, ...] | None:
        """The gradients of a unit's results: of a loss its scale, if it has one."""
        if self.scaler and self._is_last(cell):
            return (self.scaler.scale.to(self.losses[cell.microbatch].dtype),)
        return self.incoming[cell].tensors if cell in self.incoming else None

    def _is_last(self, cell: Cell) -> bool:
        return cell.unit == self.plan.graph.layout.units - 1

    def _mark_bad_loss(self, cell: Cell) -> None:
        """A loss may be no number and its gradients zero: all ranks learn of it by the norm."""
        if self.plan.optimization.skips and self._is_last(cell):
            first = self.gradients[self.units[cell.unit].adds_to][:1]
            is_bad = self.losses[cell.microbatch].isfinite().logical_not()
            first.masked_fill_(is_bad, torch.nan)

    def _is_trained(self, cell: Cell, made: Pass) -> bool:
        """True if a gradient is due: none is up to the first unit with trained parameters."""
        if made.results:
            self.units[cell.unit].check_leaves(made.values, made.results)
        return bool(made.results)

    # What passes between units

    def _put_outgoing(self, operation: Operation, cell: Cell, tensors: Sequence[Tensor]) -> None:
        """Leave something for the next unit, here or in a tensor to be sent."""
        is_forward = operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(cell.unit + (1 if is_forward else -1), cell.microbatch)
        if self.plan.graph.rank_of_cell[target] == self.rank:
            # A layer may return its input, which is given back when this cell is done, or
            # a view of its weights, whose place others take.
            kept = Parcel(tuple(map(self._own, tensors)))
            (self.inputs if is_forward else self.incoming)[target] = kept
        else:
            parcel = self._parcel(operation, cell.unit)
            for place, tensor in zip(parcel.tensors, tensors, strict=True):
                place.copy_(tensor)
            assert parcel.lent is not None  # noqa: S101
            self.outgoing[operation, cell] = parcel.lent

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self.pool.lends(tensor) or self.keeps(tensor) else tensor

    def _parcel(self, operation: Operation, unit: int) -> Parcel:
        """A buffer for a unit's output, or for the gradient of its input."""
        is_forward = operation is Operation.TRANSFER_ACTIVATIONS
        form = self._form(unit if is_forward else unit - 1)
        message = form.values if is_forward else form.gradients
        lent = self.pool.take(message.shape)
        return Parcel(message.views(lent), lent)

    def _return_gradients(
        self, cell: Cell, values: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> None:
        if cell.unit:
            outgoing = [
                torch.zeros_like(value) if gradient is None else gradient
                for value, gradient in zip(values, gradients, strict=True)
            ]
            self._put_outgoing(Operation.TRANSFER_GRADIENTS, cell, outgoing)

    def _release(self, cell: Cell) -> None:
        """Free the input of a micro-batch that is done."""
        for parcel in (self.inputs.pop(cell), self.incoming.pop(cell, None)):
            if parcel is not None and parcel.lent is not None:
                self.pool.give(parcel.lent)

    def sent(self, task: Task) -> Tensor:
        """The payload of a transfer, at its sender."""
        return self.outgoing.pop((task.operation, Cell(task.unit, task.microbatch)))

    def space(self, task: Task) -> Tensor:
        """The buffer of a transfer, at its receiver."""
        is_forward = task.operation is Operation.TRANSFER_ACTIVATIONS
        target = Cell(task.unit + (1 if is_forward else -1), task.microbatch)
        parcel = self._parcel(task.operation, task.unit)
        (self.inputs if is_forward else self.incoming)[target] = parcel
        assert parcel.lent is not None  # noqa: S101
        return parcel.lent


def _detached(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach() for tensor in tensors)
