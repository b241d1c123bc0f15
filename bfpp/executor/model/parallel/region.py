"""Collectives of a tensor-parallel group inside layers, with their gradients.

A region is where a layer is divided over the ranks (`bfpp.executor.model.parallel.layers`): what
enters it is the same on all of them, and what leaves it is the sum of their parts. With sequence
parallelism, each rank has a part of the sequence outside such regions: what enters is all-gathered,
and what leaves is reduce-scattered, with gradients the other way round.

In the backward pass, the exchange of the input's gradient overlaps with computing those of the
weights (`Columns`). With sequence parallelism, a rank keeps its own part of the input, and
all-gathers it again.

Parameters that all ranks hold whole see a part of the places then, so their gradients are added
up in the backward pass itself (`Region.own`): they are the same on all ranks, like their values.
A group of one rank exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model.parallel.exchange import Result, Shards
from bfpp.schedules import InvalidConfiguration

SEQUENCE = 1
"""The dimension of places: tensors are (samples, places, ...)."""


class _Conjugate(torch.autograd.Function):
    """One function in the forward pass, and another for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        forth: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.back = back
        return forth(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return ctx.back(gradient), None, None


def _same(value: Tensor) -> Tensor:
    return value.view_as(value)


def _conjugate(*given: Any) -> Tensor:
    result: Tensor = _Conjugate.apply(*given)
    return result


def _columns(*given: Any) -> tuple[Tensor, ...]:
    made: tuple[Tensor, ...] = Columns.apply(*given)
    return made


def _largest(shards: Shards, value: Tensor) -> Tensor:
    return shards.all_reduce(value, maximum=True)()


@dataclass(frozen=True)
class Region:
    """Ranks that layers are divided over, and whether places are divided between the layers.

    If layers are compiled, what exchanges is not: it stays in Python, between what is.
    """

    shards: Shards
    is_sequence_parallel: bool = False
    is_compiled: bool = False
    _conjugate: Callable[..., Tensor] = field(init=False, repr=False)
    _columns: Callable[..., tuple[Tensor, ...]] = field(init=False, repr=False)
    _largest: Callable[..., Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for function in (_conjugate, _columns, _largest):
            own = torch.compiler.disable(function) if self.is_compiled else function
            object.__setattr__(self, function.__name__, own)

    def enter(self, value: Tensor) -> Tensor:
        """The input of a column-parallel layer: whole, also under sequence parallelism."""
        if self.is_sequence_parallel:
            return self._exchange(value, self._gather, self._scatter)
        return self._exchange(value, _same, self._sum)

    def columns(self, value: Tensor, *linears: nn.Linear) -> tuple[Tensor, ...]:
        """The outputs of column-parallel layers for one input."""
        if any(linear._forward_pre_hooks for linear in linears):  # islands of more precision
            entered = self.enter(value)
            return tuple(linear(entered) for linear in linears)
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears]
        return self._columns(self, value, len(linears), *weights, *biases)

    def gathered(self, value: Tensor) -> Result:
        """The whole input; its all-gather is begun."""
        if self.is_sequence_parallel:
            return self.shards.all_gather(value, SEQUENCE)
        return lambda: value

    def reduced(self, gradient: Tensor) -> Result:
        """The gradient of the input, summed over ranks; its exchange is begun."""
        if self.is_sequence_parallel:
            return self.shards.reduce_scatter(gradient, SEQUENCE)
        return self.shards.all_reduce(gradient)

    def leave(self, value: Tensor) -> Tensor:
        """The sum of row-parallel layers' outputs: of all places, or of the rank's."""
        if self.is_sequence_parallel:
            return self._exchange(value, self._scatter, self._gather)
        return self.total(value)

    def total(self, value: Tensor) -> Tensor:
        """The sum over the ranks, all of which go on to compute the same of it."""
        return self._exchange(value, self._sum, _same)

    def own(self, parameter: Tensor) -> Tensor:
        """A parameter that each rank holds whole, and uses for the places that it has."""
        if self.is_sequence_parallel:
            return self._exchange(parameter, _same, self._sum)
        return parameter

    def part(self, value: Tensor, dim: int) -> Tensor:
        """The rank's part of a replicated tensor."""
        return value.chunk(self.shards.size, dim)[self.shards.rank]

    def divide_places(self, value: Tensor) -> Tensor:
        """The rank's places of a tensor that all ranks have computed alike."""
        if not self.is_sequence_parallel:
            return value
        return self._exchange(value, lambda each: self.part(each, SEQUENCE).clone(), self._gather)

    def largest(self, value: Tensor) -> Tensor:
        """The largest of all ranks' numbers, each; it has no gradient."""
        return self._largest(self.shards, value.detach())

    def _exchange(
        self, value: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        return value if self.shards.size == 1 else self._conjugate(value, forth, back)

    def _sum(self, value: Tensor) -> Tensor:
        return self.shards.all_reduce(value)()

    def _gather(self, value: Tensor) -> Tensor:
        return self.shards.all_gather(value, SEQUENCE)()

    def _scatter(self, value: Tensor) -> Tensor:
        return self.shards.reduce_scatter(value, SEQUENCE)()

    def require_divided(self, size: int, what: str) -> None:
        """Raises `InvalidConfiguration` unless each rank has as much."""
        if size % self.shards.size:
            raise InvalidConfiguration("tp", f"{self.shards.size} must divide {what} {size}")


class Columns(torch.autograd.Function):
    """The outputs of several linear layers for one input of a region."""

    @staticmethod
    def forward(
        ctx: Any, region: Region, value: Tensor, count: int, *parameters: Any
    ) -> tuple[Tensor, ...]:
        """`parameters` are `count` weights, then `count` biases."""
        weights, biases = parameters[:count], parameters[count:]
        ctx.region, ctx.has_bias = region, [bias is not None for bias in biases]
        ctx.save_for_backward(value, *weights)
        whole = region.gathered(value)()
        return tuple(functional.linear(whole, *pair) for pair in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Weights' gradients are computed while the input's is added up."""
        value, *weights = ctx.saved_tensors
        needs = iter(_are_needed(ctx))
        needs_value = next(needs)
        needs_weights = [next(needs) for _ in weights]
        needs_biases = [has and next(needs) for has in ctx.has_bias]
        region: Region = ctx.region
        whole = region.gathered(value) if any(needs_weights) else None
        own = None
        if needs_value:
            parts = [each @ weight for each, weight in zip(gradients, weights, strict=True)]
            own = region.reduced(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])
        flat = [each.flatten(0, -2) for each in gradients]
        inputs = whole().flatten(0, -2) if whole else value
        of_weights = [
            each.T @ inputs if needed else None
            for each, needed in zip(flat, needs_weights, strict=True)
        ]
        of_biases = [
            each.sum(0) if needed else None for each, needed in zip(flat, needs_biases, strict=True)
        ]
        return None, own and own(), None, *of_weights, *of_biases


def _are_needed(ctx: Any) -> list[bool]:
    """For each input that has a gradient, true if the pass that runs asks for it.

    Half a backward pass does not ask for all; autograd's own functions are asked for theirs alone.
    """
    below = [node for node, _ in ctx.next_functions]
    return [node is not None and torch._C._will_engine_execute_node(node) for node in below]
