"""Model memory of one device: units, buffers, and the optimizer's state.

Weights and gradients lie in the buffers that the task graph numbers: a unit's
own, or some that units take turns in. Nothing here asks for the sharding: the
graph's gathers, reductions and buffers say it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from bfpp.executor.devices.flat_buffers import UnitState, memory_of
from bfpp.executor.memory.directions import Directions
from bfpp.executor.memory.unit import Unit
from bfpp.executor.model.parallel.exchange import Shards
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.optimizer.loss_scaling import Scaler
from bfpp.executor.optimizer.muon import PRECISION
from bfpp.executor.optimizer.nan_checks import ParameterPart, Where, largest
from bfpp.executor.optimizer.updates import Updates
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Operation, Task
from bfpp.schedules.columns import NONE


class RankMemory:
    """The units of one rank of one pipeline, and all buffers that they use."""

    def __init__(
        self, plan: Plan, rank: int, pipeline: int, device: torch.device, shards: Shards
    ) -> None:
        self.plan, self.rank, self.pipeline = plan, rank, pipeline
        self.replica, self.tp_rank = divmod(pipeline, plan.tp)
        self.region = Region(shards, plan.sequence_parallel, plan.compile)
        share = plan.share_of(rank, pipeline)
        numbers = plan.graph.layout.units_of(rank)
        self.units = {number: Unit(plan, number, share, device, self.region) for number in numbers}
        self.gathers = counts_of(plan, Operation.GATHER, rank)
        self.is_prepared = False
        for unit in self.units.values() if plan.optimization.skips else ():
            unit.moving.keep()
        rule = plan.optimization.loss_scaling
        self.scaler = Scaler(rule, device) if rule else None
        self.square_norm = torch.zeros((), dtype=torch.float64, device=device)
        self.total_square_norm: Tensor | None = None
        self.is_bad: Tensor | None = None
        self.largest: dict[int, Tensor] = {}

    @property
    def where(self) -> Where:
        """Its place among all, to be named."""
        return Where(self.rank, self.replica, self.tp_rank if self.plan.tp > 1 else None)

    # Buffers

    def prepare(self) -> None:
        """Allocate buffers to compute in, and what the optimizer needs of them, once.

        When the first step begins, or a checkpoint is read: what it took to make the units'
        layers is free by then.
        """
        if self.is_prepared:
            return
        self.is_prepared = True
        self.weights = self._buffers("weight_buffer")
        self.gradients = self._buffers("gradient_buffer")
        in_place = reduced_in_place(self.plan, self.rank)
        for number, unit in self.units.items():
            weights, gradients = (
                {each: buffers[each] for each in buffers_of(self.plan, number, column)}
                for column, buffers in (
                    ("weight_buffer", self.weights),
                    ("gradient_buffer", self.gradients),
                )
            )
            unit.attach(weights, gradients, reduces_in_place=number in in_place)
            if number not in self.gathers:
                unit.settle()
        states = {number: unit.trained for number, unit in self.units.items()}
        shapes = {
            name: unit.shape_of(name)
            for unit in self.units.values()
            for name in unit.state.flat.shapes
        }
        self.updates = Updates(self.plan.optimization, states, shapes)

    def _buffers(self, column: str) -> dict[int, Tensor]:
        """The buffers of a column, each large enough for all units that use it.

        Weights that are never gathered are all in the training state; they are
        computed with in place if the precision is the same.
        """
        is_weights = column == "weight_buffer"
        buffers = {}
        for buffer, numbers in users_of(self.plan, self.units, column).items():
            units = [self.units[number] for number in numbers]
            state = units[0].state.weights.detach()
            is_state = is_weights and not self.gathers and len(units[0].states) == 1
            if is_state and state.dtype is self.plan.dtype:
                buffers[buffer] = state
            else:
                size = max(unit.size if is_weights else unit.gradients_size for unit in units)
                dtype = self.plan.dtype if is_weights else self.plan.gradient_dtype
                buffers[buffer] = torch.zeros(size, dtype=dtype, device=state.device)
        return buffers

    def keeps(self, tensor: Tensor) -> bool:
        """True if this is in a buffer of weights."""
        return memory_of(tensor) in map(memory_of, self.weights.values())

    def weights_of(self, task: Task) -> list[tuple[Tensor, UnitState]]:
        """The parts of a buffer that a gather fills, and the states that have their shares."""
        unit = self.units[task.unit]
        return [*unit.parts(self.weights[task.weight_buffer])]

    def gradients_of(self, task: Task) -> list[tuple[Tensor, UnitState]]:
        """The parts of a buffer that a reduction empties, and the states that take their shares."""
        unit = self.units[task.unit]
        return [*unit.gradient_parts(self.gradients[task.gradient_buffer])]

    def states_of(self, task: Task) -> list[UnitState]:
        """The shares of a unit's training state."""
        return self.units[task.unit].trained

    @property
    def tied_gradients(self) -> list[Tensor]:
        """Reduced gradients of parameters that the first and last unit share, of those here."""
        return [unit.tied.gradients for unit in self.units.values() if unit.tied]

    # The update

    def measure(self) -> Tensor:
        """The square of the norm of this share's gradients.

        Unsharded copies of a unit have the same gradients, and those of the first one count.
        """
        counts = self.plan.graph.layout.rank_of_unit == self.rank
        norms = [
            torch.linalg.vector_norm(gradients, dtype=torch.float64)
            for number, unit in self.units.items()
            if self.plan.is_sharded or counts[number]
            for gradients in unit.measured
        ]
        return torch.stack([torch.zeros_like(self.square_norm), *norms]).square().sum()

    def complete(self, square_norm: Tensor | None) -> None:
        """Look at the gradients of a step, which are complete.

        With the norm of all, they are unscaled and clipped by it.
        """
        self.total_square_norm = square_norm
        self.largest = {
            number: largest(unit.gradient_pieces) for number, unit in self.units.items()
        }
        if square_norm is not None and (factor := self._factor(square_norm.sqrt())) is not None:
            for state in self._trained:
                state.gradients.mul_(factor)
        self.is_bad = None
        if self.plan.optimization.skips and square_norm is not None:
            self.is_bad = square_norm.isfinite().logical_not().to(torch.float32)
            if self.scaler:
                self.scaler.update(self.is_bad)
            for unit in self.units.values():
                unit.moving.settle(self.is_bad)

    @property
    def _trained(self) -> list[UnitState]:
        return [state for unit in self.units.values() for state in unit.trained]

    def directions(self) -> Iterator[Directions]:
        """Unit by unit, momentum of its matrices in this share; it is used once it was gathered.

        Of none, if the step is left out.
        """
        muon = self.updates.muon
        if muon is None or (self.is_bad is not None and self.is_bad.item()):
            return
        muon.advance()
        units = [unit for unit in self.units.values() if unit.state.flat.has_matrices]
        size = max((unit.state.flat.size for unit in units), default=0)
        buffer = torch.empty(size, dtype=PRECISION, device=self.square_norm.device)
        for unit in units:
            yield (each := Directions(unit.state, unit.slices, self.region.shards, buffer))
            each.make(muon.rule)

    def update(self, step: int) -> None:
        """The optimizer's update in a step."""
        self.updates.step(step, self.is_bad)
        for state in self._trained:
            state.gradients.zero_()
        self.refresh()

    def _factor(self, norm: Tensor) -> Tensor | None:
        """Factor of gradients of this norm: the loss scale undone, and clipping."""
        clip, factor = self.plan.optimization.clip, None
        if self.scaler:
            factor = self.scaler.scale.double().reciprocal()
            norm = norm * factor
        if clip is not None:
            scale = (clip / (norm + 1e-6)).clamp(max=1)
            factor = scale if factor is None else scale * factor
        return factor

    def loaded(self) -> None:
        """Take over the training state that a checkpoint restored."""
        self.updates.loaded()
        for unit in self.units.values():
            unit.moving.keep()
        self.refresh(frozen=True)

    def refresh(self, *, frozen: bool = False) -> None:
        """Take the weights of the state, `frozen` ones too, where no gather brings them."""
        for number, unit in self.units.items():
            for buffer in unit.buffers.values() if number not in self.gathers else ():
                for part, state in unit.parts(buffer):
                    if frozen or state is not unit.frozen:
                        state.write(part)

    def state_pieces(self, unit: Unit) -> Iterator[list[ParameterPart]]:
        """State of a unit between steps: of the weights, and of each moment."""
        for state in unit.trained:
            yield state.pieces(state.weights.detach())
        for _, pieces in self.updates.moments(unit.number):
            yield pieces


def buffers_of(plan: Plan, unit: int, column: str) -> list[int]:
    """The buffers of a column that tasks of a unit use, those of an evaluation among them."""
    graphs = filter(None, (plan.graph, plan.forward_graph))
    used = [getattr(graph, column)[graph.unit == unit] for graph in graphs]
    return sorted({*np.concatenate(used).tolist()} - {NONE})


def users_of(plan: Plan, units: Iterable[int], column: str) -> dict[int, list[int]]:
    """The units that take turns in each buffer of a column."""
    users: dict[int, list[int]] = {}
    for unit in units:
        for buffer in buffers_of(plan, unit, column):
            users.setdefault(buffer, []).append(unit)
    return users


def counts_of(plan: Plan, operation: Operation, rank: int) -> Counter[int]:
    """Number of gathers, or reductions, of each unit on a rank in a step."""
    graph = plan.graph
    own = (graph.operation == operation) & graph.takes_part(rank)
    return Counter(graph.unit[own].tolist())


def reduced_in_place(plan: Plan, rank: int) -> set[int]:
    """The units of a rank that reduce their gradients once, in a buffer that is theirs alone.

    The buffer is emptied by the update then, not by the reduction.
    """
    reductions = counts_of(plan, Operation.REDUCE, rank)
    users = users_of(plan, plan.graph.layout.units_of(rank), "gradient_buffer").values()
    return {units[0] for units in users if len(units) == 1 and reductions[units[0]] == 1}
