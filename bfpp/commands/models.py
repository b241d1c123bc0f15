"""`bfpp models`: the models that are known by name, or one of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from bfpp.reports.presets import Presets, file_text
from bfpp.sim.models.hugging_face import read_config
from bfpp.sim.models.model import Transformer, load_model


def _record(model: Transformer) -> dict[str, Any]:
    """Sizes, those that go without saying too, and the number of parameters."""
    sizes = {
        "mlp": model.mlp_width,
        "kv_heads": _kv_heads(model),
        "head_dim": model.key_head_dim,
        "dropout": model.has_dropout,
    }
    parameters = {
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
    }
    return {**asdict(model), **sizes, **parameters}


def _billions(model: Transformer) -> str:
    if model.experts is None:
        return f"{model.parameters / 1e9:,.1f}"
    return f"{model.parameters / 1e9:,.0f} ({model.active_parameters / 1e9:,.0f})"


def _mlp_text(model: Transformer) -> str:
    if (experts := model.experts) is not None:
        return f"{experts.chosen}/{experts.routed}"
    return f"{model.mlp_width:,}" + (" gated" if model.gated else "")


def _kv_heads(model: Transformer) -> int:
    return model.kv_heads or model.heads


def _text(name_or_path: str) -> str:
    """A model file; of a Hugging Face config, the model file that says the same."""
    if not name_or_path.endswith(".json"):
        return file_text("model", name_or_path)
    name, sizes = read_config(name_or_path)
    lines = [f"# {name!r}, from a Hugging Face config.json."]
    return "\n".join(lines + [f"{key} = {_toml(size)}" for key, size in sizes.items()])


def _toml(value: object) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return f"{{ {', '.join(f'{key} = {_toml(size)}' for key, size in value.items())} }}"


MODELS = Presets[Transformer](
    name="model",
    title="Models: billions of parameters (active for a token), active and all experts, heads of "
    "queries/keys, tokens per sequence, vocabulary, and whether the output layer is tied to the "
    "embedding",
    files="a TOML file, or a Hugging Face config.json",
    columns={
        "billion": _billions,
        "layers": lambda model: f"{model.layers:,}",
        "hidden": lambda model: f"{model.hidden:,}",
        "MLP": _mlp_text,
        "heads": lambda model: f"{model.heads}/{_kv_heads(model)}",
        "tokens": lambda model: f"{model.sequence:,}",
        "vocab": lambda model: f"{model.vocabulary:,}",
        "output": lambda model: "tied" if model.tied_embeddings else "untied",
    },
    load=load_model,
    record=_record,
    text=_text,
)
"""The columns: parameters, widths, heads, sequence, vocabulary and output layer."""

add_arguments = MODELS.add_arguments
run = MODELS.run
