"""A transformer by its sizes: parameters, operations and bytes of its parts.

Sizes of the parts on one device take `tp` (N_TP), sizes for one
micro-batch take `microbatch_size` (S_mb). Symbols and sections are those of
"Breadth-First Pipeline Parallelism", appendix Analysis. Weights, activations
and what is sent are in half precision: two bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.hugging_face import is_config, read_config
from bfpp.sim.kinds import MODEL, require_kind
from bfpp.sim.preset_files import read_settings, require_keys

HALF_PRECISION = 2
"""Bytes of a half-precision number."""

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times N_TP."""


KINDS = {"norm": ("layer", "rms"), "positions": ("learned", "rotary")}
"""What a model may have for these; the first goes without saying."""


@dataclass(frozen=True)
class Transformer:
    """Identical layers of attention and an MLP, between an embedding and an output layer.

    `hidden` (S_hidden), `mlp` (S_mlp, 4 S_hidden by default) and `vocabulary`
    (S_voc) are widths, `heads` (N_heads) the attention heads, `kv_heads` those
    of keys and values (as many by default), `sequence` (S_seq) tokens.
    `head_layers` are the layers of hidden size, whole on each tensor-parallel
    device, between the last layer and the output layer (BERT has one). A
    `gated` MLP has a third matrix: the product of a gate and what it lets
    through goes down again. Without `tied_embeddings` the output layer's
    weights are not the word embedding's, but its own. `norm` is `layer`
    (LayerNorm) or `rms` (RMSNorm, which has no bias); `positions` are `learned`,
    or `rotary`, which have no parameters. A head is `head_dim` wide, S_hidden /
    N_heads by default. `causal` attends to no later tokens, with a `window` to
    no more than so many of the last ones. With `dropout` it is trained with
    dropout, by default where the MLP is not gated.
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
    head_dim: int | None = None
    window: int | None = None
    causal: bool = True
    dropout: bool | None = None

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
        if self.window is not None and not self.causal:
            raise InvalidConfiguration("model", f"{self.name}: a window needs causal attention")

    @property
    def query_width(self) -> int:
        """The width of all queries together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def key_width(self) -> int:
        """The width of all keys together, or of all values."""
        return self.query_width * (self.kv_heads or self.heads) // self.heads

    @property
    def mlp_width(self) -> int:
        """S_mlp, the width of what goes down again."""
        return self.mlp or 4 * self.hidden

    @property
    def expanded_width(self) -> int:
        """The width that the MLP's first product makes of S_hidden: gate and up are one product."""
        return (2 if self.gated else 1) * self.mlp_width

    @property
    def attended(self) -> float:
        """How many tokens a token attends to, on average: half of the sequence if causal."""
        if not self.causal:
            return self.sequence
        window = min(self.window or self.sequence, self.sequence)
        return window - window**2 / (2 * self.sequence)

    @property
    def has_dropout(self) -> bool:
        """Whether it is trained with dropout."""
        return not self.gated if self.dropout is None else self.dropout

    @property
    def parameters(self) -> float:
        """All parameters (N_params, about 12 N_layers S_hidden^2); a tied embedding counts once."""
        output = 0.0 if self.tied_embeddings else self.word_parameters()
        return self.layers * self.layer_parameters() + self.embedding_parameters() + output

    def padded_vocabulary(self, tp: int = 1) -> int:
        """S_voc, padded so that every tensor-parallel share is as wide."""
        multiple = VOCABULARY_MULTIPLE * tp
        return -(-self.vocabulary // multiple) * multiple

    @property
    def _mlp_widths(self) -> int:
        """The widths of what enters and leaves the MLP's activation function."""
        return self.expanded_width + self.mlp_width

    def _matrix_parameters(self) -> int:
        return self.hidden * (2 * self.query_width + 2 * self.key_width + self._mlp_widths)

    def layer_parameters(self, tp: int = 1) -> float:
        """Parameters of one layer on a device: 12 S_hidden^2 / N_TP, biases and two norms."""
        split_biases = self.query_width + 2 * self.key_width + self.expanded_width
        norms = 4 if self.norm == "layer" else 2
        whole = (2 + norms) * self.hidden
        return (self._matrix_parameters() + split_biases) / tp + whole

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
        return tokens * (2 * self._matrix_parameters() + 4 * self.sequence * self.query_width)

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
    return samples * 3 * (model.layers * model.layer_flops(1) + model.output_flops(1))


def hardware_flops(model: Transformer, samples: float) -> float:
    """Operations (flop) to train on `samples` sequences with full recomputation.

    N_PP N_TP C_GPU of the paper (its equation is per token, so times S_seq):
    eight a parameter and token in the layers, of which two are recomputation,
    and six in the output layer, which is not recomputed.
    """
    per_sample = 4 * model.layers * model.layer_flops(1) + 3 * model.output_flops(1)
    return samples * per_sample


_OPTIONAL: dict[str, type] = {
    **dict.fromkeys(("mlp", "kv_heads", "head_layers", "head_dim", "window"), int),
    **dict.fromkeys(("gated", "tied_embeddings", "causal", "dropout"), bool),
    **dict.fromkeys(KINDS, str),
}
_KEYS = dict.fromkeys(("layers", "hidden", "heads", "sequence", "vocabulary"), int) | _OPTIONAL


def load_model(name_or_path: str) -> Transformer:
    """The model of that preset, of that TOML file, or of a Hugging Face config.json.

    Raises `InvalidConfiguration` for a name that is unknown or a file that is malformed.
    """
    if is_config(name_or_path):
        name, sizes = read_config(name_or_path)
        return Transformer(name, **sizes)
    name, table = read_settings("model", name_or_path)
    require_kind("model", name, table, MODEL)
    sizes = require_keys("model", name, table, _KEYS, tuple(_OPTIONAL))
    return Transformer(name, **sizes)
