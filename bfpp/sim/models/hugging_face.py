"""Sizes of a model from a Hugging Face `config.json`.

Gives the keys of a model file (`layers`, `hidden`, ...), so that whatever reads
one can read the other. Rules:

- The dialect goes by `model_type`; one that is not known is refused rather
  than guessed.
- `sequence` is the longest that the model takes (`max_position_embeddings`),
  not what it was trained on.
- Whether the MLP is gated goes by the dialect, and so do norms, positions and
  whether attention is causal. A head is as wide as `head_dim` says, if it does.
  So do the embeddings, unless the file says whether they are tied
  (`tie_word_embeddings`).
- What experts and latents there are is read by `sim.hugging_face_experts`.
- Whatever else differs is left out: biases count as the plain transformer's do.

Every fault is an `InvalidConfiguration` of `model`, in one line that names the
file and the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import NotJson, parsed, read_file
from bfpp.sim.models.hugging_face_experts import (
    deepseek_parts,
    gpt_oss_parts,
    mixtral_parts,
    qwen_parts,
)
from bfpp.sim.presets.files import Table, require_keys


@dataclass(frozen=True)
class Dialect:
    """A model family's names of sizes, and its defaults.

    `kv_heads` may be absent from a file, and are as many as heads then; so may
    the `mlp` that is not gated, 4 x hidden, and `head_dim` and `window`.
    """

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    sequence: str = "max_position_embeddings"
    vocabulary: str = "vocab_size"
    mlp: str = "intermediate_size"
    kv_heads: str | None = None
    head_dim: str | None = None
    window: str | None = None
    gated: bool = False
    tied_embeddings: bool = True
    causal: bool = True
    kinds: tuple[str, str] = ("layer", "learned")
    """The model's norms and positions."""
    parts: Callable[[str, Table], Table] | None = None
    """Read experts, latents and other differences between layers."""

    @property
    def names(self) -> dict[str, str]:
        """The dialect's name of each key of a model file."""
        words = vars(self).items()
        return {key: name for key, name in words if isinstance(name, str)}

    @property
    def optional(self) -> tuple[str, ...]:
        """The names that may be absent."""
        keys = ("kv_heads", "head_dim", "window", *(() if self.gated else ("mlp",)))
        return tuple(self.names[key] for key in keys if key in self.names)


_BERT = Dialect(causal=False)
_GPT2 = Dialect("n_layer", "n_embd", "n_head", "n_positions", mlp="n_inner")
_NEOX = Dialect(tied_embeddings=False, kinds=("layer", "rotary"))
_LLAMA = Dialect(
    kv_heads="num_key_value_heads",
    head_dim="head_dim",
    gated=True,
    tied_embeddings=False,
    kinds=("rms", "rotary"),
)

_MISTRAL = replace(_LLAMA, window="sliding_window")
_DEEPSEEK = replace(_LLAMA, parts=deepseek_parts, head_dim=None)

DIALECTS = {
    "bert": _BERT,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "gpt_oss": replace(_MISTRAL, parts=gpt_oss_parts),
    "kimi_k2": _DEEPSEEK,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": replace(_MISTRAL, parts=mixtral_parts),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": replace(_LLAMA, parts=qwen_parts),
    "roberta": _BERT,
}
"""Every `model_type` that is read."""

_TIED = "tie_word_embeddings"


def is_config(path: str | Path) -> bool:
    """True if a model of this name is read from a `config.json`."""
    return str(path).endswith(".json")


def read_config(path: str | Path) -> tuple[str, Table]:
    """The name of a `config.json`'s model, and its sizes by the keys of a model file.

    The name is the last word of `_name_or_path`, or else that of the folder.
    """
    file = Path(path)
    config = _read_object(file)
    where = repr(str(path))
    dialect = _dialect(where, config)
    names = dialect.names
    types = dict.fromkeys(names.values(), int) | {_TIED: bool}
    given = {word: config[word] for word in types if config.get(word) is not None}
    require_keys("model", where, given, types, (*dialect.optional, _TIED))
    sizes = {key: given[word] for key, word in names.items() if word in given}
    tied = given.get(_TIED, dialect.tied_embeddings)
    norm, positions = dialect.kinds
    kinds = {"gated": dialect.gated, "tied_embeddings": tied, "norm": norm, "positions": positions}
    parts = dialect.parts(where, config) if dialect.parts else {}
    return _name(file, config), {**sizes, **kinds, "causal": dialect.causal, **parts}


def _read_object(file: Path) -> Table:
    name = repr(str(file))
    try:
        config = parsed(read_file(file))
    except OSError as error:
        reason = f"cannot read {name}: {error.strerror}"
    except NotJson as error:
        reason = f"{name} {error.reason}"
    else:
        if isinstance(config, dict):
            return config
        reason = f"{name} is not a config.json: must be an object"
    raise InvalidConfiguration("model", reason)


def _dialect(where: str, config: Table) -> Dialect:
    kind = config.get("model_type")
    known = ", ".join(DIALECTS)
    if kind is None:
        reason = f"the key 'model_type' is missing; known are {known}"
    elif not isinstance(kind, str) or kind not in DIALECTS:
        reason = f"model_type must be one of {known}, not {kind!r}"
    else:
        return DIALECTS[kind]
    raise InvalidConfiguration("model", f"{where}: {reason}")


def _name(file: Path, config: Table) -> str:
    given = config.get("_name_or_path")
    if isinstance(given, str) and (last := given.rstrip("/").rpartition("/")[2]):
        return last
    return file.resolve().parent.name if file.stem == "config" else file.stem
