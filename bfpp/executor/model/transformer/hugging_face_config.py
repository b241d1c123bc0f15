"""Hugging Face's `config.json`: read as a transformer, and written for one of ours.

The sizes that are simulated are read by `bfpp.sim.models.hugging_face`, and all others here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bfpp.executor.model.transformer.transformer import Rotary, TransformerSizes
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import parsed, read_file

_ROTARY = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "context": "original_max_position_embeddings",
}

_KINDS = {
    (False, False, False): ("llama", "Llama"),
    (False, False, True): ("mistral", "Mistral"),
    (True, False, False): ("qwen2", "Qwen2"),
    (False, True, False): ("qwen3", "Qwen3"),
}
"""Names in file and classes, by biases of queries alone, norms of queries, and a window."""


def details_of(file: Path) -> dict[str, Any]:
    """Fields of `TransformerSizes` other than sizes, from a `config.json`.

    Raises `InvalidConfiguration` for frequencies that are scaled in a way that is not known, and
    for what is no number where one is due.
    """
    config = parsed(read_file(file))
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rotary, dict):
        raise InvalidConfiguration("model", f"'{file}': what it says of rotary is no object")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InvalidConfiguration("model", f"'{file}': rotary positions scaled by {kind!r}")
    is_qwen2, has_biases = config.get("model_type") == "qwen2", config.get("attention_bias", False)
    numbers = {"rope_theta": Rotary.base, "rms_norm_eps": 1e-6, **config, **rotary}
    due = ("rope_theta", "rms_norm_eps", *(_ROTARY.values() if kind == "llama3" else ()))
    for name in due:
        value: Any = numbers.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            reason = f"'{file}': {name} must be a positive number, not {value!r}"
            raise InvalidConfiguration("model", reason)
    scaled = {ours: numbers[theirs] for ours, theirs in _ROTARY.items() if theirs in due}
    return {
        "rotary": Rotary(base=numbers["rope_theta"], **scaled),
        "epsilon": numbers["rms_norm_eps"],
        "query_biases": is_qwen2 or has_biases,
        "output_biases": has_biases and not is_qwen2,
        "norms_queries": config.get("model_type") == "qwen3",
    }


def config_of(sizes: TransformerSizes) -> dict[str, Any]:
    """The `config.json` of a transformer that Llama, Mistral or Qwen could be.

    Raises `InvalidConfiguration` for another one.
    """
    others = {
        "attention to later tokens": not sizes.causal,
        "LayerNorm": sizes.norm != "rms",
        "learned positions": sizes.positions != "rotary",
        "an MLP without a gate": not sizes.gated,
        "biases": sizes.biases,
        "layers before the output layer": sizes.head_layers > 0,
    }
    has_window, has_biases = sizes.window is not None, sizes.output_biases
    parts = (sizes.query_biases and not has_biases, sizes.norms_queries, has_window)
    is_mixture = has_biases and (has_window or not sizes.query_biases)
    if any(others.values()) or is_mixture or parts not in _KINDS:
        reason = " and ".join(name for name, is_there in others.items() if is_there)
        raise InvalidConfiguration(
            "model",
            "is not laid out as a Llama, Mistral or Qwen: it has "
            + (reason or "a mixture of what distinguishes these"),
        )
    kind, name = _KINDS[parts]
    rotary = sizes.rotary
    scaled = {theirs: getattr(rotary, ours) for ours, theirs in _ROTARY.items()}
    return {
        "model_type": kind,
        "architectures": [f"{name}ForCausalLM"],
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_width,
        "max_position_embeddings": sizes.context,
        "hidden_act": "silu",
        "rms_norm_eps": sizes.epsilon,
        "tie_word_embeddings": sizes.tied,
        "rope_theta": rotary.base,
        "rope_scaling": {"rope_type": "llama3", **scaled} if rotary.factor != 1 else None,
        **({"sliding_window": sizes.window} if kind == "mistral" else {}),
        **({"attention_bias": True} if has_biases else {}),
    }
