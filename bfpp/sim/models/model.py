"""A transformer by its sizes: parameters, operations and bytes of its parts.

Sizes of the parts on one device take `tp` (N_TP), sizes for one
micro-batch take `microbatch_size` (S_mb). Symbols and sections are those of
"Breadth-First Pipeline Parallelism", appendix Analysis. Weights, activations
and what is sent are in half precision: two bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.hugging_face import is_config, read_config
from bfpp.sim.models.matrices import Experts, HeadSizes, LatentAttention, Matrices
from bfpp.sim.models.model_text import is_text, read_text
from bfpp.sim.presets.file_kinds import MODEL, require_kind
from bfpp.sim.presets.files import read_settings, require_fields

HALF_PRECISION = 2
"""Bytes of a half-precision number."""

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times N_TP."""


KINDS = {"norm": ("layer", "rms"), "positions": ("learned", "rotary")}
"""Allowed values; the first is the default."""


@dataclass(frozen=True)
class Transformer:
    """Layers of attention and an MLP, between an embedding and an output layer.

    `hidden` (S_hidden), `mlp` (S_mlp, 4 S_hidden by default) and `vocabulary`
    (S_voc) are widths, `heads` (N_heads) the attention heads, `kv_heads` those
    of keys and values (as many by default), `sequence` (S_seq) tokens.
    `head_layers` are the layers of hidden size, whole on each tensor-parallel
    device, between the last layer and the output layer (BERT has one). A
    `gated` MLP has a third matrix: the product of a gate and what it lets
    through goes down again. Without `tied_embeddings` the output layer's
    weights are not the word embedding's, but its own. `norm` is `layer`
    (LayerNorm) or `rms` (RMSNorm, which has no bias); `positions` are `learned`,
    or `rotary`, which have no parameters; with `scaled_rotary` their cosines and sines
    are scaled (YaRN), for which there is no fused kernel. A head is `head_dim` wide, S_hidden /
    N_heads by default. `causal` attends to no later tokens, with a `window` to
    no more than the last `window` tokens, and every `global_every`-th layer to all. With
    `dropout` it is trained with dropout, by default where the MLP is not gated.

    With `experts` those take the place of the MLP, except for the first `dense_layers`. `latent`
    attention makes heads of narrow latents; those of values may be `value_head_dim` wide.
    `prediction_modules` predict further tokens in training: a layer each, that takes the hidden
    state and the next embedding.

    >>> import bfpp
    >>> model = bfpp.Transformer("small", 24, 1024, 16, sequence=1024, vocabulary=50257)
    >>> f"{model.parameters / 1e6:.0f} million parameters"
    '355 million parameters'
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    mlp: int | None = None
    kv_heads: int | None = None
    head_layers: int = 0
    gated: bool = False
    tied_embeddings: bool = True
    norm: str = "layer"
    positions: str = "learned"
    scaled_rotary: bool = False
    head_dim: int | None = None
    window: int | None = None
    causal: bool = True
    dropout: bool | None = None
    value_head_dim: int | None = None
    global_every: int | None = None
    dense_layers: int = 0
    prediction_modules: int = 0
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for key, known in KINDS.items():
            if (value := getattr(self, key)) not in known:
                raise InvalidConfiguration(
                    "model", f"{self.name}: {key} must be {' or '.join(known)}, not {value!r}"
                )
        divided = self.hidden if self.head_dim is None else self.heads
        for heads, among in ((self.heads, divided), (self.kv_heads or 1, self.heads)):
            if among % heads:
                raise InvalidConfiguration(
                    "model", f"{self.name}: {heads} heads do not divide {among}"
                )
        if self.scaled_rotary and self.positions != "rotary":
            raise InvalidConfiguration(
                "model", f"{self.name}: scaled_rotary needs rotary positions"
            )
        if self.window is not None and not self.causal:
            raise InvalidConfiguration("model", f"{self.name}: a window needs causal attention")
        if self.experts is not None and self.experts.chosen > self.experts.routed:
            raise InvalidConfiguration(
                "model",
                f"{self.name}: {self.experts.chosen} experts cannot be chosen of "
                f"{self.experts.routed}",
            )

    @cached_property
    def kinds(self) -> dict[Transformer, tuple[int, ...]]:
        """Its layers by kind: a model whose layers are all like these, and their numbers.

        Sizes of a layer are those of such a model.
        """
        layers_of: dict[Transformer, list[int]] = {}
        for layer in range(self.layers):
            layers_of.setdefault(self._kind(layer), []).append(layer)
        return {kind: tuple(numbers) for kind, numbers in layers_of.items()}

    def _kind(self, layer: int) -> Transformer:
        whole = self.global_every is not None and (layer + 1) % self.global_every == 0
        return replace(
            self,
            dense_layers=0,
            global_every=None,
            experts=None if layer < self.dense_layers else self.experts,
            window=None if whole else self.window,
        )

    @property
    def last_kind(self) -> Transformer:
        """The kind of the last layer, which those of prediction modules are of too."""
        return self._kind(self.layers - 1)

    @property
    def key_head_dim(self) -> int:
        """The width of a head of queries, or of keys."""
        return self.head_dim or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """The width of a head of values."""
        return self.value_head_dim or self.key_head_dim

    @property
    def head_sizes(self) -> HeadSizes:
        """The number of heads, and their widths."""
        return HeadSizes(self.heads, self.key_head_dim, self.value_dim)

    @property
    def query_width(self) -> int:
        """The width of all queries together."""
        return self.heads * self.key_head_dim

    @property
    def key_width(self) -> int:
        """The width of all keys together."""
        return self.key_head_dim * (self.kv_heads or self.heads)

    @property
    def value_width(self) -> int:
        """The width of all values together."""
        return self.value_dim * (self.kv_heads or self.heads)

    @property
    def context_width(self) -> int:
        """The width of attention's output, over all heads."""
        return self.heads * self.value_dim

    @property
    def mlp_width(self) -> int:
        """S_mlp, the width of the down-projection's input."""
        return self.mlp or 4 * self.hidden

    @property
    def expanded_width(self) -> int:
        """The width that the MLP's first GEMM makes of S_hidden: gate and up are one GEMM."""
        return self.expanded(self.mlp_width)

    def expanded(self, width: int) -> int:
        """Width after the first GEMM of an MLP, or an expert, of that width."""
        return (2 if self.gated else 1) * width

    @property
    def attended(self) -> float:
        """Mean number of tokens that a token attends to: half of the sequence if causal."""
        return self.attended_beyond(0)

    def attended_beyond(self, beyond: int) -> float:
        """Mean number of attended tokens with a window that is `beyond` tokens wider."""
        if not self.causal:
            return self.sequence
        window = min(self.window + beyond if self.window else self.sequence, self.sequence)
        return window - window**2 / (2 * self.sequence)

    @property
    def has_dropout(self) -> bool:
        """True if it is trained with dropout."""
        return not self.gated if self.dropout is None else self.dropout

    @property
    def parameters(self) -> float:
        """All parameters (N_params, about 12 N_layers S_hidden^2); a tied embedding counts once.

        As published, those of prediction modules do not count.
        """
        layers = sum(
            len(numbers) * (kind.layer_parameters() + kind.expert_parameters())
            for kind, numbers in self.kinds.items()
        )
        output = 0.0 if self.tied_embeddings else self.word_parameters()
        return layers + self.embedding_parameters() + output

    @property
    def active_parameters(self) -> float:
        """Parameters that a token goes through: all, except for the experts that are not chosen."""
        idle = sum(
            len(numbers) * (kind.matrices.routed - kind.matrices.chosen)
            for kind, numbers in self.kinds.items()
        )
        return self.parameters - idle

    def padded_vocabulary(self, tp: int = 1) -> int:
        """S_voc, padded so that every tensor-parallel share is as wide."""
        multiple = VOCABULARY_MULTIPLE * tp
        return -(-self.vocabulary // multiple) * multiple

    @property
    def _mlp_widths(self) -> int:
        """The widths of the input and the output of the MLP's activation function."""
        return self.expanded_width + self.mlp_width

    @cached_property
    def matrices(self) -> Matrices:
        """The matrices of a layer."""
        if self.latent is None:
            heads = self.query_width + self.key_width + self.value_width
            attention = Matrices(self.hidden * (heads + self.context_width))
        else:
            attention = self.latent.matrices(self.hidden, self.head_sizes)
        if self.experts is None:
            mlp = Matrices(self.hidden * self._mlp_widths)
        else:
            mlp = self.experts.matrices(self.hidden, gated=self.gated)
        return Matrices(*map(sum, zip(attention, mlp, strict=True)))

    def layer_parameters(self, tp: int = 1) -> float:
        """Parameters of one layer on a device, except for those of routed experts.

        12 S_hidden^2 / N_TP, two norms and those of latents, and biases, which the GEMMs of
        latents and of experts have not.
        """
        split_biases = self.query_width + 2 * self.key_width if self.latent is None else 0
        split_biases += self.expanded_width if self.experts is None else 0
        latent = self.latent
        latents = 0 if latent is None else (latent.q_rank or 0) + latent.kv_rank
        norms = 4 if self.norm == "layer" else 2
        whole = (2 + norms) * self.hidden + latents + self.matrices.whole
        return (self.matrices.divided + split_biases) / tp + whole

    def expert_parameters(self, ep: int = 1) -> float:
        """Parameters of a layer's routed experts on a device."""
        return self.matrices.routed / ep

    def prediction_parameters(self) -> float:
        """Parameters of a prediction module without its layer, whole on a device.

        Two norms of what it takes, a GEMM of both, and the norm of what it predicts by.
        """
        return 2 * self.hidden**2 + 3 * self.hidden

    def word_parameters(self, tp: int = 1) -> float:
        """Parameters of the word embedding on a device, or of the output layer."""
        return self.padded_vocabulary(tp) * self.hidden / tp

    def embedding_parameters(self, tp: int = 1) -> float:
        """Parameters of the word embedding, and of learned positions, on a device.

        Both are divided over N_TP: so the paper's memory figures suggest (16
        bytes for each of 838 M parameters on the first of 8 x 8 ranks).
        """
        positions = self.sequence if self.positions == "learned" else 0
        return self.word_parameters(tp) + positions * self.hidden / tp

    def layer_flops(self, microbatch_size: int) -> float:
        """Operations (flop) of one layer's forward pass, over all its devices.

        Two a parameter and token in the matrices, and 4 S_seq S_hidden a token
        in attention, as in the paper's C_GPU: what a mask leaves out counts too.
        """
        tokens = self.sequence * microbatch_size
        squares = 2 * self.sequence * (self.query_width + self.context_width)
        return tokens * (2 * self.matrices.active + squares)

    def layers_flops(self, microbatch_size: int) -> float:
        """Operations (flop) of all layers' forward passes."""
        return sum(
            len(numbers) * kind.layer_flops(microbatch_size) for kind, numbers in self.kinds.items()
        )

    def output_flops(self, microbatch_size: int, vocabulary: int | None = None) -> float:
        """Operations (flop) of the output layer's forward pass: 2 S_hidden S_voc a token."""
        words = vocabulary or self.vocabulary
        return 2 * self.sequence * microbatch_size * self.hidden * words

    def hidden_bytes(self, microbatch_size: int) -> float:
        """Bytes of the hidden state, S_seq S_mb S_hidden numbers."""
        return HALF_PRECISION * self.sequence * microbatch_size * self.hidden

    def activation_bytes(self, microbatch_size: int, tp: int) -> float:
        """Bytes of one layer's activations on a device (M_act; Korthikanti et al., 2022).

        S_seq S_mb S_hidden (10 + 24 / N_TP + 5 S_seq N_heads / (S_hidden N_TP)),
        where 24 is 8 for attention and 16 for the MLP: two bytes for each
        number that enters or leaves its activation function.
        """
        split = 4 * self.query_width + 4 * self.key_width + HALF_PRECISION * self._mlp_widths
        split += 5 * self.sequence * self.heads
        tokens = self.sequence * microbatch_size
        return tokens * (10 * self.hidden + split / tp)

    def checkpoint_bytes(self, microbatch_size: int, tp: int) -> float:
        """Bytes of one layer's checkpoint, divided over N_TP (M_ckpt's second ratio)."""
        return self.hidden_bytes(microbatch_size) / tp

    def transfer_bytes(self, microbatch_size: int, tp: int) -> float:
        """Bytes that a device sends to the next stage (section Pipeline-parallel)."""
        return self.hidden_bytes(microbatch_size) / tp


def model_flops(model: Transformer, samples: float) -> float:
    """Operations (flop) to train on `samples` sequences, without recomputation (for the MFU)."""
    module = model.last_kind.layer_flops(1) + model.output_flops(1)
    module += 4 * model.sequence * model.hidden**2
    predicting = model.prediction_modules * module
    return samples * 3 * (model.layers_flops(1) + model.output_flops(1) + predicting)


def hardware_flops(model: Transformer, samples: float) -> float:
    """Operations (flop) to train on `samples` sequences with full recomputation.

    N_PP N_TP C_GPU of the paper (its equation is per token, so times S_seq):
    eight a parameter and token in the layers, of which two are recomputation,
    and six in the output layer, which is not recomputed.
    """
    return model_flops(model, samples) + samples * model.layers_flops(1)


_PARTS = {"experts": Experts, "latent": LatentAttention}
"""Tables in a model file, and their classes."""


def load_model(name_or_path: str) -> Transformer:
    """The model of that preset, TOML file or Hugging Face config.json, or of these sizes.

    Raises `InvalidConfiguration` for a name that is unknown or a file that is malformed.

    >>> import bfpp
    >>> bfpp.load_model("llama3-8b").layers
    32
    """
    if is_config(name_or_path):
        name, table = read_config(name_or_path)
    elif is_text(name_or_path):
        name, table = read_text(name_or_path)
    else:
        name, table = read_settings("model", name_or_path)
        require_kind("model", name, table, MODEL)
    sizes = dict(require_fields("model", name, table, Transformer))
    for part, kind in _PARTS.items():
        if part in sizes:
            where = f"{name}: {part}"
            sizes[part] = kind(**require_fields("model", where, sizes[part], kind))
    return Transformer(name, **sizes)
