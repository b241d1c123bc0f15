"""A transformer in layers: an embedding, blocks, and an output layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.corpus import IGNORED, Text
from bfpp.executor.model import Model
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.recomputation import CORE_ATTENTION, MLP


@dataclass(frozen=True)
class TransformerSizes:
    """The sizes of a transformer; `context` is the tokens of a sample.

    `causal` attends to earlier tokens alone and predicts the next (GPT);
    otherwise to all, and predicts those that are masked (BERT). `kv_heads` are
    fewer for grouped-query attention; `gated` is an MLP with a gate. `head_layers`
    come between the last block and the output layer.
    """

    layers: int
    hidden: int
    heads: int
    context: int
    vocabulary: int
    mlp: int
    kv_heads: int
    causal: bool = True
    gated: bool = False
    head_layers: int = 0

    def __post_init__(self) -> None:
        for divided, by in (("hidden", "heads"), ("heads", "kv_heads")):
            if getattr(self, divided) % getattr(self, by):
                raise InvalidConfiguration(
                    by,
                    f"{getattr(self, by)} must divide {divided} {getattr(self, divided)}",
                )


class Embedding(nn.Module):
    """Tokens and their places, as vectors."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.places = nn.Parameter(torch.randn(sizes.context, sizes.hidden) * 0.02)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, context) whole numbers to (samples, context, hidden)."""
        embedded: Tensor = self.tokens(tokens)
        return embedded + self.places


class CoreAttention(nn.Module):
    """Each query's mean of the values, by how well the keys match: nothing of it is learned."""

    recomputed_as = CORE_ATTENTION

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(samples, heads, context, size) to the same; groups of heads may share keys."""
        shares = keys.shape[1] < queries.shape[1]
        return functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=self.causal, enable_gqa=shares
        )


class Attention(nn.Module):
    """Self-attention; groups of heads may share keys and values."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.size = sizes.hidden // sizes.heads
        self.kv_heads = sizes.kv_heads
        self.core = CoreAttention(sizes.causal)
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key_value = nn.Linear(sizes.hidden, 2 * sizes.kv_heads * self.size)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        queries = self._heads(self.query(value))
        keys, values = map(self._heads, self.key_value(value).chunk(2, dim=-1))
        mixed = self.core(queries, keys, values)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, value: Tensor) -> Tensor:
        """(samples, context, heads x size) to (samples, heads, context, size)."""
        heads: Tensor = value.unflatten(-1, (-1, self.size)).transpose(1, 2)
        return heads


class Perceptron(nn.Module):
    """The two matrices of a block with a GELU between them; or three, with a gate."""

    recomputed_as = MLP

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.hidden, sizes.mlp)
        self.gate = nn.Linear(sizes.hidden, sizes.mlp) if sizes.gated else None
        self.down = nn.Linear(sizes.mlp, sizes.hidden)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        inner = self.up(value)
        active = (
            functional.gelu(inner)
            if self.gate is None
            else functional.silu(self.gate(value)) * inner
        )
        result: Tensor = self.down(active)
        return result


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden)
        self.attention = Attention(sizes)
        self.mlp_norm = nn.LayerNorm(sizes.hidden)
        self.mlp = Perceptron(sizes)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        value = value + self.attention(self.attention_norm(value))
        result: Tensor = value + self.mlp(self.mlp_norm(value))
        return result


class HeadLayer(nn.Sequential):
    """What BERT has before its output layer."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__(
            nn.Linear(sizes.hidden, sizes.hidden), nn.GELU(), nn.LayerNorm(sizes.hidden)
        )


class Output(nn.Module):
    """Scores of every token at every place."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Sequential(*(HeadLayer(sizes) for _ in range(sizes.head_layers)))
        self.scores = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to (samples, context, vocabulary)."""
        scores: Tensor = self.scores(self.head(self.norm(value)))
        return scores


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy, in single precision at least."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def transformer(sizes: TransformerSizes, text: Text) -> Model:
    """The transformer of these sizes, trained on a text."""
    return Model(
        layers=[
            partial(Embedding, sizes),
            *(partial(Block, sizes) for _ in range(sizes.layers)),
            partial(Output, sizes),
        ],
        loss=token_loss,
        batch=text.next_bytes if sizes.causal else text.masked_bytes,
        attached=(1, 1),
    )
