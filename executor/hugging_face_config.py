"""What a Hugging Face `config.json` says of a transformer, besides the sizes that are simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bfpp.executor.transformer import Rotary
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import read_file

_ROTARY = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "context": "original_max_position_embeddings",
}


def details_of(file: Path) -> dict[str, Any]:
    """What a `config.json` says of the transformer besides its sizes: `TransformerSizes`' fields.

    Raises `InvalidConfiguration` for frequencies that are scaled in a way that is not known.
    """
    config = json.loads(read_file(file))
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InvalidConfiguration("model", f"'{file}': rotary positions scaled by {kind!r}")
    base = rotary.get("rope_theta", config.get("rope_theta", Rotary.base))
    scaled = {ours: rotary[theirs] for ours, theirs in _ROTARY.items() if kind == "llama3"}
    return {
        "rotary": Rotary(base=base, **scaled),
        "epsilon": config.get("rms_norm_eps", 1e-6),
        "query_biases": config.get("model_type") == "qwen2" or config.get("attention_bias", False),
        "norms_queries": config.get("model_type") == "qwen3",
    }
