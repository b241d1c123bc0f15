"""Names of our transformer's parameters in other programs: one table for each form.

Ours has the same numbers, with keys and values in one GEMM: so each of our parameters is one of
theirs, or two, one above the other. Rotary positions turn pairs of a head's numbers: of each half
one (Hugging Face, as ours), or neighbours, as torchtitan's Llama does; then the rows of queries and
keys come in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.schedules import InvalidConfiguration

Table = Mapping[str, tuple[str, ...]]

QUERY, KEY_VALUE = "attention.query", "attention.key_value"


@dataclass(frozen=True)
class WeightNames:
    """The names of one form, and whose `models` have these layers.

    `embedding` and `output` have those of our parameters, `block` those of our modules, below
    `layers` and the layer's number. Linear layers may have `biases`. Rotary positions turn
    neighbours in models whose queries have no norm, if it `turns_neighbours`.
    """

    models: str
    embedding: Table
    output: Table
    layers: str
    block: Table
    biases: bool = True
    turns_neighbours: bool = False

    @property
    def words(self) -> str:
        """The name of the embedding's matrix."""
        return self.embedding["tokens.weight"][0]

    @property
    def head(self) -> str:
        """The name of the output layer's matrix."""
        return self.output["scores.weight"][0]

    def names(self, layer: int, name: str, sizes: TransformerSizes) -> tuple[str, ...]:
        """The names of a layer's parameter; raises `InvalidConfiguration` if there are none."""
        module, _, key = name.rpartition(".")
        known = (
            self.embedding if layer == 0 else self.output if layer > sizes.layers else self.block
        )
        own = module if known is self.block else name
        if own not in known or (key != "weight" and not self.biases):
            raise InvalidConfiguration(
                "weights",
                f"are read of models laid out as {self.models}, and layer {layer} of this one "
                f"has {name}, which these have not: train it without --weights, or give the "
                "network as FILE.py:FUNCTION",
            )
        if known is not self.block:
            return known[own]
        return tuple(f"{self.layers}.{layer - 1}.{each}.{key}" for each in known[own])

    def theirs(
        self, layer: int, name: str, value: Tensor, sizes: TransformerSizes
    ) -> Iterator[tuple[str, Tensor]]:
        """A parameter of ours in their parts."""
        names = self.names(layer, name, sizes)
        for number, (own, part) in enumerate(zip(names, value.chunk(len(names)), strict=True)):
            turns = self._turns(name, number, sizes)
            yield own, _paired(part, 2, sizes.head_width // 2) if turns else part

    def ours(self, name: str, number: int, part: Tensor, sizes: TransformerSizes) -> Tensor:
        """One of their parts of a parameter, as it is in ours."""
        turns = self._turns(name, number, sizes)
        return _paired(part, sizes.head_width // 2, 2) if turns else part

    def _turns(self, name: str, number: int, sizes: TransformerSizes) -> bool:
        """True if rows of a part come in another order: of queries, and of keys."""
        is_turned = number == 0 and name.rpartition(".")[0] in (QUERY, KEY_VALUE)
        return is_turned and self.turns_neighbours and not sizes.norms_queries


def _paired(value: Tensor, outer: int, inner: int) -> Tensor:
    """Rows of heads in another order: the inner number counts them first from then on."""
    heads: Tensor = value.unflatten(0, (-1, outer, inner))
    return heads.transpose(1, 2).flatten(0, 2)


HUGGING_FACE = WeightNames(
    "Llama, Mistral or Qwen",
    {"tokens.weight": ("model.embed_tokens.weight",)},
    {"norm.weight": ("model.norm.weight",), "scores.weight": ("lm_head.weight",)},
    "model.layers",
    {
        "attention_norm": ("input_layernorm",),
        QUERY: ("self_attn.q_proj",),
        KEY_VALUE: ("self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": ("self_attn.o_proj",),
        "attention.query_norm": ("self_attn.q_norm",),
        "attention.key_norm": ("self_attn.k_norm",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.gate": ("mlp.gate_proj",),
        "mlp.up": ("mlp.up_proj",),
        "mlp.down": ("mlp.down_proj",),
    },
)


def _torchtitan(attention: str, head: str) -> WeightNames:
    return WeightNames(
        "torchtitan's Llama 3 or Qwen3",
        {"tokens.weight": ("tok_embeddings.weight",)},
        {"norm.weight": ("norm.weight",), "scores.weight": (head,)},
        "layers",
        {
            "attention_norm": ("attention_norm",),
            QUERY: (f"{attention}.wq",),
            KEY_VALUE: (f"{attention}.wk", f"{attention}.wv"),
            "attention.output": ("attention.wo",),
            "attention.query_norm": ("attention.q_norm",),
            "attention.key_norm": ("attention.k_norm",),
            "mlp_norm": ("ffn_norm",),
            "mlp.gate": ("feed_forward.w1",),
            "mlp.up": ("feed_forward.w3",),
            "mlp.down": ("feed_forward.w2",),
        },
        biases=False,
        turns_neighbours=True,
    )


TORCHTITAN = {
    (0, 2): _torchtitan("attention", "output.weight"),
    (0, 3): _torchtitan("attention.qkv_linear", "lm_head.weight"),
}
"""The forms of torchtitan's releases, the first of each; the last one is the newest."""
