"""Layers whose weights are divided over a group of ranks: tensor and sequence parallelism.

Theory of operation. As in Megatron-LM (Shoeybi et al. 2019; Korthikanti et al. 2022): a layer's
first matrix is divided by columns, so that each rank has some of the heads or of the inner
numbers; its second one by rows, so that the ranks' results are parts of a sum. What enters such a
pair is the same on all ranks, and so is what leaves it: then its gradient is added up on the way
back, and the result on the way forth. With sequence parallelism, ranks have a part of the places
each between such pairs: what enters is gathered, what leaves is reduced and scattered, and the
gradients go the other way.

Parameters that all ranks hold whole see a part of the places then, so their gradients are added
up in the backward pass itself (`Region.own`): they are the same on all ranks, like their values.

A group of one rank does nothing, and its layers compute what the plain ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.corpus import IGNORED
from bfpp.executor.transformer import Block, Embedding, Output
from bfpp.schedules import InvalidConfiguration

SEQUENCE = 1
"""The dimension of places: tensors are (samples, places, ...)."""


class Shards(Protocol):
    """The ranks that layers are divided over, of which this is number `rank`."""

    size: int
    rank: int

    def all_reduce(self, value: Tensor, maximum: bool = False) -> Tensor:
        """The sum of all ranks' values, or the largest of each; a new tensor."""
        ...

    def all_gather(self, value: Tensor, dim: int) -> Tensor:
        """All ranks' values, one after another."""
        ...

    def reduce_scatter(self, value: Tensor, dim: int) -> Tensor:
        """The rank's part of the sum of all ranks' values."""
        ...


class ProcessShards:
    """A group of processes."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def all_reduce(self, value: Tensor, maximum: bool = False) -> Tensor:
        """An all-reduce of a copy."""
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, self.group)
        return total

    def all_gather(self, value: Tensor, dim: int) -> Tensor:
        """An all-gather, with parts side by side."""
        parts = value.new_empty(self.size, *value.shape)
        dist.all_gather_single(parts.flatten(0, 1), value.contiguous(), self.group)
        return torch.cat(parts.unbind(), dim)

    def reduce_scatter(self, value: Tensor, dim: int) -> Tensor:
        """A reduce-scatter of parts one behind the other."""
        parts = torch.stack(value.chunk(self.size, dim))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_single(own, parts.flatten(0, 1), group=self.group)
        return own


class _Conjugate(torch.autograd.Function):
    """One function forth, and another for the gradient."""

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


@dataclass(frozen=True)
class Region:
    """Ranks that layers are divided over, and whether places are divided between the layers."""

    shards: Shards
    is_sequence_parallel: bool = False

    def enter(self, value: Tensor) -> Tensor:
        """What a layer that is divided by columns takes: whole, whatever the ranks have of it."""
        if self.is_sequence_parallel:
            return self._conjugate(value, self._gather, self._scatter)
        return self._conjugate(value, _same, self.shards.all_reduce)

    def leave(self, value: Tensor) -> Tensor:
        """The sum of what layers that are divided by rows made: of all places, or of the rank's."""
        if self.is_sequence_parallel:
            return self._conjugate(value, self._scatter, self._gather)
        return self.total(value)

    def total(self, value: Tensor) -> Tensor:
        """The sum over the ranks, all of which go on to compute the same of it."""
        return self._conjugate(value, self.shards.all_reduce, _same)

    def own(self, parameter: Tensor) -> Tensor:
        """A parameter that each rank holds whole, and uses for the places that it has."""
        if self.is_sequence_parallel:
            return self._conjugate(parameter, _same, self.shards.all_reduce)
        return parameter

    def part(self, value: Tensor, dim: int) -> Tensor:
        """The rank's part of what all hold."""
        return value.chunk(self.shards.size, dim)[self.shards.rank]

    def divide_places(self, value: Tensor) -> Tensor:
        """The rank's places of what all ranks have computed alike."""
        if not self.is_sequence_parallel:
            return value
        return self._conjugate(value, lambda each: self.part(each, SEQUENCE).clone(), self._gather)

    def _conjugate(
        self, value: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if self.shards.size == 1:
            return value
        result: Tensor = _Conjugate.apply(value, forth, back)
        return result

    def _gather(self, value: Tensor) -> Tensor:
        return self.shards.all_gather(value, SEQUENCE)

    def _scatter(self, value: Tensor) -> Tensor:
        return self.shards.reduce_scatter(value, SEQUENCE)

    def require_divided(self, size: int, what: str) -> None:
        """Raises `InvalidConfiguration` unless each rank has as much."""
        if size % self.shards.size:
            raise InvalidConfiguration("tp", f"{self.shards.size} must divide {what} {size}")


# Layers: their parameters are parts of plain layers' parameters, and have their names


class Row(nn.Module):
    """A linear layer that is divided by rows; its bias is added once, to the sum."""

    def __init__(self, linear: nn.Linear, region: Region) -> None:
        super().__init__()
        region.require_divided(linear.in_features, "the columns of a layer")
        self.region = region
        self.weight = nn.Parameter(region.part(linear.weight.detach(), 1).clone())
        self.bias = linear.bias

    def forward(self, value: Tensor) -> Tensor:
        """The rank's part of the columns to all of the result."""
        result = self.region.leave(functional.linear(value, self.weight))
        return result if self.bias is None else result + self.region.own(self.bias)


class Norm(nn.Module):
    """A norm that each rank holds whole, over the places that it has."""

    def __init__(self, norm: Any, region: Region) -> None:
        super().__init__()
        self.compute, self.names = NORMS[type(norm)]
        self.region, self.shape, self.smallest = region, norm.normalized_shape, norm.eps
        for name in self.names:
            self.register_parameter(name, getattr(norm, name))

    def forward(self, value: Tensor) -> Tensor:
        """Of the same shape."""
        parameters = [self.region.own(getattr(self, name)) for name in self.names]
        return self.compute(value, self.shape, *parameters, self.smallest)


NORMS: Mapping[type[nn.Module], tuple[Callable[..., Tensor], Sequence[str]]] = {
    nn.LayerNorm: (functional.layer_norm, ("weight", "bias")),
    nn.RMSNorm: (functional.rms_norm, ("weight",)),
}
"""What a norm computes, and its parameters in the order in which that takes them."""


class VocabularyEmbedding(nn.Module):
    """An embedding of which each rank has some of the tokens."""

    def __init__(self, embedding: nn.Embedding, region: Region) -> None:
        super().__init__()
        region.require_divided(embedding.num_embeddings, "a vocabulary of")
        self.region = region
        self.weight = nn.Parameter(region.part(embedding.weight.detach(), 0).clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, places) whole numbers to (samples, places, hidden)."""
        own, is_own = _own_tokens(tokens, len(self.weight), self.region)
        embedded = functional.embedding(own, self.weight) * is_own.unsqueeze(-1)
        return self.region.total(embedded)


def _own_tokens(tokens: Tensor, own: int, region: Region) -> tuple[Tensor, Tensor]:
    """Tokens among the rank's own, by their numbers there, and which they are."""
    shifted = tokens - region.shards.rank * own
    is_own = (shifted >= 0) & (shifted < own)
    return shifted.where(is_own, 0), is_own


def vocabulary_loss(scores: Tensor, targets: Tensor, region: Region) -> Tensor:
    """The mean cross entropy of scores of which each rank has those of some tokens.

    (samples, places, tokens of the rank), (samples, places); in single precision at least. What
    all ranks need of one another are three numbers for each place.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    largest = region.shards.all_reduce(scores.detach().amax(dim=-1), maximum=True)
    scores = scores - largest.unsqueeze(-1)
    own, is_own = _own_tokens(targets, scores.shape[-1], region)
    of_target = scores.gather(-1, own.unsqueeze(-1)).squeeze(-1) * is_own
    losses = region.total(scores.exp().sum(dim=-1)).log() - region.total(of_target)
    counted = targets != IGNORED
    return (losses * counted).sum() / counted.sum()


def by_columns(linear: nn.Linear, region: Region, blocks: int = 1) -> None:
    """Keep the rank's rows of a linear layer: of each of the blocks that it makes at once."""
    region.require_divided(linear.out_features // blocks, "the rows of a layer")
    for name, value in (*linear.named_parameters(),):
        parts = [region.part(block, 0) for block in value.detach().chunk(blocks)]
        setattr(linear, name, nn.Parameter(torch.cat(parts)))
    linear.out_features //= region.shards.size


def enters(module: nn.Module, region: Region) -> None:
    """Let a module take what enters a pair of divided layers."""
    module.register_forward_pre_hook(lambda _, values: (region.enter(*values),))


def divide(layer: nn.Module, region: Region) -> nn.Module:
    """A layer of our transformer, divided in place: it computes what it did, with the others."""
    DIVISIONS[type(layer)](layer, region)
    return layer


def _divide_embedding(layer: Any, region: Region) -> None:
    layer.tokens = VocabularyEmbedding(layer.tokens, region)
    layer.register_forward_hook(lambda *given: region.divide_places(given[-1]))


def _divide_block(layer: Any, region: Region) -> None:
    attention, mlp = layer.attention, layer.mlp
    heads = attention.key_value.out_features // (2 * attention.size)
    region.require_divided(heads, "heads of keys and values:")
    layer.attention_norm = Norm(layer.attention_norm, region)
    layer.mlp_norm = Norm(layer.mlp_norm, region)
    for name in ("query_norm", "key_norm"):
        if not isinstance(norm := getattr(attention, name), nn.Identity):
            # Each rank uses it for its heads, whoever has which places.
            setattr(attention, name, Norm(norm, replace(region, is_sequence_parallel=True)))
    for pair in (attention, mlp):
        enters(pair, region)
    by_columns(attention.query, region)
    by_columns(attention.key_value, region, blocks=2)
    attention.output = Row(attention.output, region)
    for linear in filter(None, (mlp.up, mlp.gate)):
        by_columns(linear, region)
    mlp.down = Row(mlp.down, region)


def _divide_output(layer: Any, region: Region) -> None:
    if region.is_sequence_parallel and len(layer.head):
        raise InvalidConfiguration("sequence_parallel", "the layers of a head take all places")
    layer.norm = Norm(layer.norm, region)
    enters(layer.scores, region)
    by_columns(layer.scores, region)


DIVISIONS: Mapping[type[nn.Module], Callable[[Any, Region], None]] = {
    Embedding: _divide_embedding,
    Block: _divide_block,
    Output: _divide_output,
}
