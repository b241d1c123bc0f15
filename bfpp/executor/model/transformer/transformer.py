"""A transformer in layers: an embedding, blocks, and an output layer.

As GPT and BERT are, with LayerNorm, learned positions and biases; or as Llama, Mistral and Qwen
are, with RMSNorm, rotary positions, gates and none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model.model import Model
from bfpp.executor.model.transformer.corpus import IGNORED, Text
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, MLP


@dataclass(frozen=True)
class Rotary:
    """Angles by which pairs of a head's numbers are turned, each by its place times a frequency.

    Frequencies fall from 1 to 1 / `base`. Llama 3.1 and later divide low ones by `factor`: those
    that turn less than `low` times in `context` tokens; those that turn more than `high` times
    stay, and between them is a straight line.
    """

    base: float = 10_000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    context: int = 8192

    def cosines_and_sines(self, places: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """(places, 1, size / 2) of the angles, which are in single precision."""
        device = like.device
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
        frequencies = self.base**-exponents
        turns = self.context * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / self.factor)
        angles = torch.arange(places, dtype=torch.float32, device=device).outer(frequencies)
        angles = angles.unsqueeze(1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(samples, places, heads, size) to the same: each number of the first half with its other."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


@dataclass(frozen=True)
class TransformerSizes:
    """The sizes of a transformer; `context` is the tokens of a sample.

    `causal` attends to earlier tokens alone and predicts the next (GPT);
    otherwise to all, and predicts those that are masked (BERT). `kv_heads` are
    fewer for grouped-query attention, `head_dim` the width of a head, S_hidden / N_heads by
    default; `gated` is an MLP with a gate. `head_layers` come between the last block and the
    output layer. `norm` is `layer` or `rms`, with `epsilon`; `positions` are `learned` or `rotary`.
    With a `window`, a token attends to no more than the last `window` ones. Without `biases`,
    no linear layer has one, except those of queries, keys and values with `query_biases` (Qwen2),
    and of the attention's output with `output_biases` (a Llama with `attention_bias`).
    `norms_queries` is a norm of each head of queries and keys (Qwen3). If `tied`, the embedding's
    matrix is that of the output layer, too.
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
    norm: str = "layer"
    epsilon: float = 1e-5
    positions: str = "learned"
    rotary: Rotary = Rotary()
    head_dim: int | None = None
    window: int | None = None
    biases: bool = True
    query_biases: bool = True
    output_biases: bool = False
    norms_queries: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        hidden = () if self.head_dim else (("hidden", "heads"),)
        for divided, by in (*hidden, ("heads", "kv_heads")):
            if getattr(self, divided) % getattr(self, by):
                raise InvalidConfiguration(
                    by,
                    f"{getattr(self, by)} must divide {divided} {getattr(self, divided)}",
                )

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.hidden // self.heads

    def make_norm(self, width: int) -> nn.Module:
        """A norm of vectors of some width."""
        kind = nn.RMSNorm if self.norm == "rms" else nn.LayerNorm
        return kind(width, eps=self.epsilon)


class Embedding(nn.Module):
    """Tokens, and their places if these are learned, as vectors."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.places: nn.Parameter | None = None
        if sizes.positions == "learned":
            self.places = nn.Parameter(torch.randn(sizes.context, sizes.hidden) * 0.02)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, context) whole numbers to (samples, context, hidden)."""
        embedded: Tensor = self.tokens(tokens)
        return embedded if self.places is None else embedded + self.places


def project(value: Tensor, *linears: nn.Linear) -> tuple[Tensor, ...]:
    """The outputs of several linear layers for one input."""
    return tuple(linear(value) for linear in linears)


class CoreAttention(nn.Module):
    """Attention without parameters: each query's mean of the values, weighted by its keys."""

    recomputed_as = CORE_ATTENTION

    def __init__(self, causal: bool, window: int | None = None) -> None:
        super().__init__()
        self.causal, self.window = causal, window

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(samples, heads, context, size) to the same; groups of heads may share keys."""
        shares = keys.shape[1] < queries.shape[1]
        near = self._near(queries.shape[2], queries.device)
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=near,
            is_causal=self.causal and near is None,
            enable_gqa=shares,
        )

    def _near(self, context: int, device: torch.device) -> Tensor | None:
        """The mask of a sliding window, unless it covers all earlier positions."""
        if self.window is None or self.window >= context:
            return None
        everybody = torch.ones(context, context, dtype=torch.bool, device=device)
        return everybody.tril().triu(1 - self.window)


class SelfAttention(nn.Module):
    """Self-attention; groups of heads may share keys and values."""

    project = staticmethod(project)

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.size = size = sizes.head_width
        self.core = CoreAttention(sizes.causal, sizes.window)
        biases = sizes.biases or sizes.query_biases
        self.query = nn.Linear(sizes.hidden, sizes.heads * size, biases)
        self.key_value = nn.Linear(sizes.hidden, 2 * sizes.kv_heads * size, biases)
        self.output = nn.Linear(
            sizes.heads * size, sizes.hidden, sizes.biases or sizes.output_biases
        )
        self.query_norm = sizes.make_norm(size) if sizes.norms_queries else nn.Identity()
        self.key_norm = sizes.make_norm(size) if sizes.norms_queries else nn.Identity()
        self.rotary = sizes.rotary if sizes.positions == "rotary" else None

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        query, key_value = self.project(value, self.query, self.key_value)
        queries = self.query_norm(self._heads(query))
        keys, values = map(self._heads, key_value.chunk(2, dim=-1))
        keys = self.key_norm(keys)
        if self.rotary is not None:
            angles = self.rotary.cosines_and_sines(keys.shape[1], self.size, value)
            queries, keys = turned(queries, *angles), turned(keys, *angles)
        mixed = self.core(*(heads.transpose(1, 2) for heads in (queries, keys, values)))
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, value: Tensor) -> Tensor:
        """(samples, context, heads x size) to (samples, context, heads, size).

        Heads stay behind places in memory, so that attention's result need not be copied.
        """
        heads: Tensor = value.unflatten(-1, (-1, self.size))
        return heads


class Perceptron(nn.Module):
    """The two matrices of a block with a GELU between them; or three, with a gate."""

    recomputed_as = MLP
    project = staticmethod(project)

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.hidden, sizes.mlp, sizes.biases)
        self.gate = nn.Linear(sizes.hidden, sizes.mlp, sizes.biases) if sizes.gated else None
        self.down = nn.Linear(sizes.mlp, sizes.hidden, sizes.biases)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        if self.gate is None:
            (inner,) = self.project(value, self.up)
            active = functional.gelu(inner)
        else:
            inner, gate = self.project(value, self.up, self.gate)
            active = functional.silu(gate) * inner
        result: Tensor = self.down(active)
        return result


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.attention_norm = sizes.make_norm(sizes.hidden)
        self.attention = SelfAttention(sizes)
        self.mlp_norm = sizes.make_norm(sizes.hidden)
        self.mlp = Perceptron(sizes)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to the same."""
        value = value + self.attention(self.attention_norm(value))
        result: Tensor = value + self.mlp(self.mlp_norm(value))
        return result


class HeadLayer(nn.Sequential):
    """BERT's transform before the output layer."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__(
            nn.Linear(sizes.hidden, sizes.hidden), nn.GELU(), nn.LayerNorm(sizes.hidden)
        )


class OutputHead(nn.Module):
    """Scores of every token at every place."""

    project = staticmethod(project)

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.norm = sizes.make_norm(sizes.hidden)
        self.head = nn.Sequential(*(HeadLayer(sizes) for _ in range(sizes.head_layers)))
        self.scores = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        """(samples, context, hidden) to (samples, context, vocabulary)."""
        (scores,) = self.project(self.head(self.norm(value)), self.scores)
        return scores


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy, in single precision at least."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


Fill = Callable[[int, Callable[[], nn.Module]], nn.Module]
"""Makes a layer, by its number, with weights from elsewhere."""


def transformer(
    sizes: TransformerSizes,
    text: Text,
    held_out: Text | None = None,
    fill: Fill | None = None,
) -> Model:
    """The transformer of these sizes, trained on a text; with random weights, or filled ones.

    It is evaluated on another text, if one is `held_out`.
    """
    layers: list[Callable[[], nn.Module]] = [
        partial(Embedding, sizes),
        *(partial(Block, sizes) for _ in range(sizes.layers)),
        partial(OutputHead, sizes),
    ]
    return Model(
        layers=[partial(fill, *each) for each in enumerate(layers)] if fill else layers,
        loss=token_loss,
        batch=text.batches(sizes.causal),
        attached=(1, 1),
        held_out=None if held_out is None else held_out.batches(sizes.causal),
        tied={f"{len(layers) - 1}.scores.weight": "0.tokens.weight"} if sizes.tied else {},
    )
