"""Layers whose weights are divided over a group of ranks: tensor and sequence parallelism.

Theory of operation. As in Megatron-LM (Shoeybi et al. 2019; Korthikanti et al. 2022): a layer's
first matrices are divided by columns, so that each rank has some of the heads or of the MLP's
width; its second one by rows, so that the ranks' results are parts of a sum. Such a pair is a
region (`bfpp.executor.model.parallel.region`, which says what is exchanged around it): its output
is all-reduced in the forward pass, and its input's gradient in the backward pass.

Modules are divided in place: they keep their classes and the names of their parameters, of which
each rank has a slice (`bfpp.executor.model.parallel.slices`). A group of one rank changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.devices.messages import Form, Shape
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.model.parallel.slices import Slice
from bfpp.executor.model.transformer.corpus import IGNORED
from bfpp.executor.model.transformer.transformer import Block, Embedding, OutputHead, token_loss
from bfpp.schedules import InvalidConfiguration

# Layers: their parameters are slices of plain layers' parameters, and have their names


def _cut(module: Any, region: Region, name: str, dim: int, blocks: int = 1) -> Slice:
    """Let a module keep the rank's part of a parameter; which that is."""
    whole = getattr(module, name)
    own = Slice(whole.shape, dim, blocks, region.shards.rank, region.shards.size)
    setattr(module, name, nn.Parameter(own.of(whole.detach()), whole.requires_grad))
    module.slices = {**getattr(module, "slices", {}), name: own}
    return own


def by_columns(linear: nn.Linear, region: Region, blocks: int = 1) -> None:
    """Keep the rank's rows of a linear layer's weight: of each of the blocks that it makes."""
    region.require_divided(linear.out_features // blocks, "the rows of a layer")
    for name, _ in (*linear.named_parameters(),):
        _cut(linear, region, name, 0, blocks)


def by_rows(linear: nn.Linear, region: Region) -> None:
    """Keep the rank's columns of a linear layer's weight; its bias is added once, to the sum."""
    region.require_divided(linear.in_features, "the columns of a layer")
    _cut(linear, region, "weight", 1)
    linear.forward = partial(_sum_of_parts, linear, region)  # type: ignore[method-assign]


def _sum_of_parts(linear: nn.Linear, region: Region, value: Tensor) -> Tensor:
    result = region.leave(functional.linear(value, linear.weight))
    return result if linear.bias is None else result + region.own(linear.bias)


def keep_whole(norm: Any, region: Region) -> None:
    """A norm that each rank holds whole, over the places that it has."""
    compute, names = NORMS[type(norm)]

    def forward(value: Tensor) -> Tensor:
        parameters = [region.own(getattr(norm, name)) for name in names]
        return compute(value, norm.normalized_shape, *parameters, norm.eps)

    norm.forward = forward


NORMS: Mapping[type[nn.Module], tuple[Callable[..., Tensor], Sequence[str]]] = {
    nn.LayerNorm: (functional.layer_norm, ("weight", "bias")),
    nn.RMSNorm: (functional.rms_norm, ("weight",)),
}
"""The function of each norm, and its parameters in the order of that function's arguments."""


def by_vocabulary(embedding: nn.Embedding, region: Region) -> None:
    """Keep the vectors of some of the tokens."""
    _cut_vocabulary(embedding, region)
    embedding.forward = partial(_embedded, embedding, region)  # type: ignore[method-assign]


def _embedded(embedding: nn.Embedding, region: Region, tokens: Tensor) -> Tensor:
    slices: Mapping[str, Slice] = embedding.slices  # type: ignore[assignment]
    own, is_own = _own_tokens(tokens, slices["weight"].first, len(embedding.weight))
    return region.total(functional.embedding(own, embedding.weight) * is_own.unsqueeze(-1))


def _cut_vocabulary(module: Any, region: Region) -> Slice:
    """Keep a module's rows of the rank's tokens; the last rank has fewer, if need be."""
    ranks, tokens = region.shards.size, len(module.weight)
    if -(-tokens // ranks) * (ranks - 1) >= tokens:
        raise InvalidConfiguration("tp", f"{ranks} ranks cannot divide {tokens} tokens")
    return _cut(module, region, "weight", 0)


def _own_tokens(tokens: Tensor, first: int, own: int) -> tuple[Tensor, Tensor]:
    """Tokens among the rank's own, by their numbers there, and which they are."""
    shifted = tokens - first
    is_own = (shifted >= 0) & (shifted < own)
    return shifted.where(is_own, 0), is_own


def vocabulary_loss(scores: Tensor, targets: Tensor, region: Region) -> Tensor:
    """The mean cross entropy of scores of which each rank has those of some tokens.

    (samples, places, tokens of the rank), (samples, places); in single precision at least. What
    all ranks need of one another are three numbers for each place.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    largest = region.largest(scores.amax(dim=-1))
    scores = scores - largest.unsqueeze(-1)
    size = scores.shape[-1]
    own, is_own = _own_tokens(targets, region.shards.rank * size, size)
    of_target = scores.gather(-1, own.unsqueeze(-1)).squeeze(-1) * is_own
    losses = region.total(scores.exp().sum(dim=-1)).log() - region.total(of_target)
    counted = targets != IGNORED
    return (losses * counted).sum() / counted.sum()


# Models


def divide(layer: nn.Module, region: Region, name: str = "a layer") -> nn.Module:
    """A layer of our transformer, divided in place: with the other ranks, it computes the same.

    Raises `InvalidConfiguration` for one that cannot be divided so.
    """
    if region.shards.size > 1:
        if type(layer) not in DIVISIONS:
            raise InvalidConfiguration(
                "tp",
                f"divides layers of the built-in transformer alone: {name} is "
                f"{type(layer).__name__}",
            )
        DIVISIONS[type(layer)](layer, region)
    return layer


def divided_loss(loss: Callable[..., Tensor], region: Region) -> Callable[..., Tensor]:
    """The loss of divided layers' outputs."""
    if region.shards.size == 1:
        return loss
    if loss is not token_loss:
        raise InvalidConfiguration("tp", "divides the loss of the built-in transformer alone")
    return partial(vocabulary_loss, region=region)


def divided_form(form: Form, ranks: int) -> Form:
    """The form of each rank's output under sequence parallelism: its part of the sequence."""
    match form.values.parts:
        case (Shape(size=(samples, places, *others), dtype=dtype),) if places % ranks == 0:
            return replace(form, leaves=(Shape((samples, places // ranks, *others), dtype),))
    raise InvalidConfiguration(
        "sequence_parallel", f"{ranks} tensor-parallel ranks cannot divide the places of {form}"
    )


def _divide_embedding(layer: Any, region: Region) -> None:
    by_vocabulary(layer.tokens, region)
    layer.register_forward_hook(lambda *given: region.divide_places(given[-1]))


def _divide_block(layer: Any, region: Region) -> None:
    attention, mlp = layer.attention, layer.mlp
    heads = attention.key_value.out_features // (2 * attention.size)
    region.require_divided(heads, "heads of keys and values:")
    for norm in (layer.attention_norm, layer.mlp_norm):
        keep_whole(norm, region)
    for norm in (attention.query_norm, attention.key_norm):
        if not isinstance(norm, nn.Identity):
            # Each rank uses it for its heads, whoever has which places.
            keep_whole(norm, replace(region, is_sequence_parallel=True))
    by_columns(attention.query, region)
    by_columns(attention.key_value, region, blocks=2)
    by_rows(attention.output, region)
    for linear in filter(None, (mlp.up, mlp.gate)):
        by_columns(linear, region)
    by_rows(mlp.down, region)
    attention.project = mlp.project = region.columns


def _divide_output(layer: Any, region: Region) -> None:
    if region.is_sequence_parallel and len(layer.head):
        raise InvalidConfiguration("sequence_parallel", "the layers of a head take all places")
    keep_whole(layer.norm, region)
    width = _cut_vocabulary(layer.scores, region).width
    layer.project = region.columns
    # All ranks return as many scores as the first; the loss ignores the padding, -inf.
    layer.register_forward_hook(
        lambda *given: functional.pad(given[-1], (0, width - given[-1].shape[-1]), value=-math.inf)
    )


DIVISIONS: Mapping[type[nn.Module], Callable[[Any, Region], None]] = {
    Embedding: _divide_embedding,
    Block: _divide_block,
    OutputHead: _divide_output,
}
