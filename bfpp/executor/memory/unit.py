"""A unit: layers that compute in whichever buffers a task names, and a share of their state.

Theory of operation. The weights that layers compute with are views of flat buffers, several of
which may hold a unit's weights in turn. Every buffer has leaf parameters of its own, made once; a
task that reads another buffer exchanges them in the modules (`read`). Gradients are added to the
buffer that a task names (`add_to`), whichever buffer the weights were read from.

Invariants:

- Autograd keeps places of weights instead of tensors (`place`). A backward pass finds them in the
  buffer that is read by that time: the one of the forward pass may hold another unit's weights.
- Where sums of gradients have more precision than gradients, a hook adds each micro-batch's. With
  `Tensor.grad_dtype` autograd would first make a copy in that precision.
- A unit's layers are made one at a time (`bfpp.executor.memory.building`), with random numbers of
  their own, so weights do not depend on the cut.
- Its training state has up to three parts: weights of its own, those that it shares with another
  unit, and frozen ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bfpp.executor.devices.compiled import compile_layers
from bfpp.executor.devices.flat_buffers import UnitState, memory_of
from bfpp.executor.devices.messages import Tree, tensors_of
from bfpp.executor.devices.storages import Placed, place
from bfpp.executor.memory.building import layout_of, made_in_turn, take_values
from bfpp.executor.model.buffers import MovingBuffers
from bfpp.executor.model.gradient_check import Result, require_own_leaves
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.model.parallel.slices import slices_of
from bfpp.executor.model.recomputation import counted_layers, recompute
from bfpp.executor.optimizer.nan_checks import ParameterPart
from bfpp.executor.plan.parameter_names import places_of
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import NONE


class Unit:
    """A unit of the model on one device, and the device's share of its training state."""

    def __init__(
        self, plan: Plan, number: int, share: int, device: torch.device, region: Region
    ) -> None:
        self.plan, self.number = plan, number
        layout = layout_of(plan, number, region)
        keep = partial(UnitState, number=share, dtype=plan.state_dtype, device=device)
        self.state = keep(layout.own)
        self.tied = keep(layout.tied) if layout.tied else None
        self.frozen = keep(layout.frozen, is_trained=False) if layout.frozen else None
        self.flat = self.state.flat
        made: dict[int, nn.Module] = {}
        for layers in made_in_turn(plan, number, region):
            take_values(layers, self.states, device)
            made |= layers
        self.layers = {each: made[each] for each in plan.cuts[number]}
        self.places = places_of(plan, self.layers)
        self.slices = slices_of(self.places)
        for layer in self.layers.values():
            plan.compute_in(layer)
        self.moving = MovingBuffers.of(self.layers, plan.traced.moving)
        stage = int(plan.graph.layout.stage_of_unit[number])
        policy = plan.recomputation.of_stage(stage)
        recompute(self.layers, counted_layers(plan.model), policy, self.moving)
        if plan.compile:
            compile_layers(self.layers.values(), plan.model.varies)
        self.training = [
            module
            for layer in self.layers.values()
            for module in layer.modules()
            if module.training
        ]
        self.is_first_of_tp = region.shards.rank == 0
        self.buffers: Mapping[int, Tensor] = {}
        self.leaves: dict[int, dict[str, nn.Parameter]] = {}
        self.gradients: dict[int, dict[str, Tensor]] = {}
        self.reads, self.adds_to = NONE, NONE
        self.has_own_leaves = False

    @cached_property
    def gradient_pieces(self) -> list[ParameterPart]:
        """The reduced gradients of each parameter."""
        return [piece for state in self.trained for piece in state.pieces(state.gradients)]

    @cached_property
    def measured(self) -> list[Tensor]:
        """The reduced gradients that the norm counts here."""
        if self.is_first_of_tp:
            return [state.gradients for state in self._counted]
        return self._own_gradients()

    def _own_gradients(self) -> list[Tensor]:
        """Gradients of this tensor-parallel rank alone: the norm counts replicated ones once."""
        return [
            piece
            for state in self._counted
            for name, _, piece in state.pieces(state.gradients)
            if name in self.slices
        ]

    @property
    def _counted(self) -> list[UnitState]:
        """States whose gradients the norm counts: shared parameters in the first unit only."""
        return [self.state] if self.number else self.trained

    def placed(self, pieces: Iterable[ParameterPart]) -> Iterator[ParameterPart]:
        """Pieces by their places in whole parameters, of which this unit may have a slice."""
        for name, first, values in pieces:
            if own := self.slices.get(name):
                yield from ((name, *piece) for piece in own.pieces(first, values))
            else:
                yield name, first, values

    def shape_of(self, name: str) -> torch.Size:
        """The shape of a whole parameter, of which this unit may have a slice."""
        if own := self.slices.get(name):
            return own.shape
        (shape,) = (it.flat.shapes[name] for it in self.states if name in it.flat.shapes)
        return shape

    @property
    def trained(self) -> list[UnitState]:
        """States of trained weights: the unit's own; then those that it shares, if any."""
        return [self.state] if self.tied is None else [self.state, self.tied]

    @property
    def states(self) -> list[UnitState]:
        """States of trained weights; then that of the frozen ones, if there are any."""
        return self.trained if self.frozen is None else [*self.trained, self.frozen]

    @property
    def size(self) -> int:
        """Elements of all its weights in a buffer."""
        return sum(state.flat.size for state in self.states)

    @property
    def gradients_size(self) -> int:
        """Elements of all its gradients in a buffer."""
        return sum(state.flat.size for state in self.trained)

    def parts(self, buffer: Tensor) -> Iterator[tuple[Tensor, UnitState]]:
        """The parts of a buffer of weights, and the state that each is gathered from."""
        return _divided(buffer, self.states)

    def gradient_parts(self, buffer: Tensor) -> Iterator[tuple[Tensor, UnitState]]:
        """The parts of a buffer of gradients, and the state that takes its share of each."""
        return _divided(buffer, self.trained)

    def attach(
        self,
        weights: Mapping[int, Tensor],
        gradients: Mapping[int, Tensor],
        *,
        reduces_in_place: bool,
    ) -> None:
        """Give it the buffers that its weights and its gradients may be in.

        What is reduced stays in the buffer of gradients if it `reduces_in_place`.
        """
        self.buffers = weights
        self.leaves = {
            number: {
                name: nn.Parameter(view, requires_grad=state is not self.frozen)
                for part, state in self.parts(buffer)
                for name, view in state.flat.views(part).items()
            }
            for number, buffer in weights.items()
        }
        self.gradients = {
            number: {
                name: view
                for part, state in self.gradient_parts(buffer)
                for name, view in state.flat.views(part).items()
            }
            for number, buffer in gradients.items()
        }
        for buffer in [*gradients.values()][:1]:
            for part, state in self.gradient_parts(buffer):
                own = state.part(part) if reduces_in_place else torch.zeros_like(state.weights)
                state.reduce_to(own)
        if self.plan.gradient_dtype is not self.plan.dtype:
            unit = proxy(self)  # what a tensor's hook refers to is never collected
            for leaves in self.leaves.values():
                for name, leaf in leaves.items():
                    if leaf.requires_grad:
                        add = partial(Unit._add, unit, name)
                        leaf.register_post_accumulate_grad_hook(add)
        self.read(next(iter(weights)))

    def settle(self) -> None:
        """Put weights in the one buffer that they are read from, and keep them there.

        For units whose weights no gather brings.
        """
        for buffer in self.buffers.values():
            for part, state in self.parts(buffer):
                state.write(part)
                if state.weights.dtype is part.dtype:
                    state.weights.data = part

    def train(self, mode: bool) -> None:
        """Let modules train or evaluate, except for those that were given to evaluate alone."""
        for module in self.training:
            module.training = mode

    def read(self, buffer: int) -> None:
        """Compute with the weights in this buffer from now on."""
        if buffer != self.reads:
            for name, leaf in self.leaves[buffer].items():
                for module, key in self.places[name]:
                    module._parameters[key] = leaf  # setattr takes ten times as long
            self.reads = buffer

    def add_to(self, buffer: int) -> None:
        """Add gradients to this buffer from now on, whichever buffer the weights were read from."""
        if buffer != self.adds_to and self.plan.gradient_dtype is self.plan.dtype:
            for leaves in self.leaves.values():
                for name, gradient in self.gradients[buffer].items():
                    leaves[name].grad = gradient
        self.adds_to = buffer

    def _add(self, name: str, leaf: Tensor) -> None:
        """Add a micro-batch's gradient where sums have a higher precision than it has.

        Autograd itself (`Tensor.grad_dtype`) would make a copy in that precision first.
        """
        assert leaf.grad is not None  # noqa: S101
        self.gradients[self.adds_to][name].add_(leaf.grad)
        leaf.grad = None

    def check_leaves(self, values: Sequence[Tensor], results: Sequence[Result]) -> None:
        """Check, before the first backward pass, that it trains this unit's parameters alone."""
        if self.has_own_leaves:
            return
        model, cut = self.plan.model, self.plan.cuts[self.number]
        own = [*values, *(leaf for leaves in self.leaves.values() for leaf in leaves.values())]
        known: dict[str, object] = {f"layer {each}": self.layers[each] for each in cut}
        known["the loss"] = model.loss
        for each, layer in enumerate(model.layers):
            known[f"layer {each} as it is given"] = layer
        require_own_leaves(results, own, known)
        self.has_own_leaves = True

    def run(self, value: Tree, step: int, microbatch: int) -> tuple[Tree, list[GradientEdge]]:
        """All layers, one after another; `microbatch` is numbered among those of all replicas.

        Also returns the first places with a gradient: the inputs, or what a first layer returned.
        Raises `InvalidConfiguration` if a layer changed the unit's input.
        """
        given = tensors_of(value)
        versions, starts = [tensor._version for tensor in given], _places_of(value)
        result = value
        for number, layer in self.layers.items():
            with self.plan.drawing(step, microbatch, number):
                result = layer(result)
            starts = starts or _places_of(result)
        if [tensor._version for tensor in given] != versions:
            raise InvalidConfiguration(
                "model",
                f"layers {self.plan.cuts[self.number]} change the input of stage {self.number} in "
                "place, which a backward pass still needs",
            )
        return result, starts

    @property
    def bytes(self) -> Tensor:
        """The buffer that its weights are read from now."""
        return self.buffers[self.reads].view(torch.uint8)

    def place(self, tensor: Tensor) -> Tensor | Placed:
        """The place of weights, for autograd to save; anything else stays a tensor.

        A backward pass then finds them in the buffer that is read by that time:
        the one they were in may hold another unit's, or may have done so.
        """
        if memory_of(tensor) != memory_of(self.buffers[self.reads]):
            return tensor.detach()  # with its node, one that keeps its result would keep itself
        return place(tensor, self)


def _divided(buffer: Tensor, states: Sequence[UnitState]) -> Iterator[tuple[Tensor, UnitState]]:
    """A buffer in parts, one behind the other; it may be larger, for a unit that takes turns."""
    first = 0
    for state in states:
        yield buffer[first : first + state.flat.size], state
        first += state.flat.size


def _places_of(value: Tree) -> list[GradientEdge]:
    """Edges where gradients of tensors arrive, of those that autograd records."""
    if not torch.is_grad_enabled():
        return []
    return [get_gradient_edge(tensor) for tensor in tensors_of(value) if tensor.requires_grad]
