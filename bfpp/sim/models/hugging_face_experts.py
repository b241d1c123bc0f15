"""Experts, latents and layers of several kinds from a Hugging Face `config.json`, by dialect.

Each function takes what names the file in messages, and the config, and gives keys of a model file.
"""

from __future__ import annotations

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.files import Table, require_keys

SLIDING, WHOLE = "sliding_attention", "full_attention"
"""Values of `layer_types`."""


def mixtral_parts(where: str, config: Table) -> Table:
    """Mixtral: every MLP is one of experts."""
    routed, chosen, width = _counts(
        where, config, "num_local_experts", "num_experts_per_tok", "intermediate_size"
    )
    return {"experts": {"routed": routed, "chosen": chosen, "width": width}}


def qwen_parts(where: str, config: Table) -> Table:
    """Qwen 3 MoE: every layer has experts."""
    _require(where, config, "decoder_sparse_step", 1)
    _require(where, config, "mlp_only_layers", [])
    routed, chosen, width = _counts(
        where, config, "num_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    return {"experts": {"routed": routed, "chosen": chosen, "width": width}}


def gpt_oss_parts(where: str, config: Table) -> Table:
    """GPT-OSS: experts with biases, clamped; every n-th layer attends to all tokens."""
    types = config.get("layer_types", [])
    if not isinstance(types, list):
        raise InvalidConfiguration("model", f"{where}: layer_types must be a list, not {types!r}")
    every = types.index(WHOLE) + 1 if WHOLE in types else len(types) + 1
    alike = [WHOLE if (layer + 1) % every == 0 else SLIDING for layer in range(len(types))]
    if types != alike:
        raise InvalidConfiguration(
            "model", f"{where}: layer_types must have a {WHOLE} at regular intervals"
        )
    parts = {**mixtral_parts(where, config), "scaled_rotary": _is_yarn(config)}
    parts["experts"] |= {"biased": True, "clamped": True}
    return parts if every > len(types) else {**parts, "global_every": every}


def deepseek_parts(where: str, config: Table) -> Table:
    """DeepSeek-V2, DeepSeek-V3 and Kimi K2: latent attention, dense layers first, then experts."""
    _require(where, config, "moe_layer_freq", 1)
    routed, chosen, width = _counts(
        where, config, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    of_keys, turned, values, rank = _counts(
        where, config, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"
    )
    experts = {"routed": routed, "chosen": chosen, "width": width}
    latent = {"kv_rank": rank, "rope_dim": turned}
    if config.get("n_shared_experts"):
        experts["shared"] = _counts(where, config, "n_shared_experts")[0] * width
    if config.get("q_lora_rank"):
        [latent["q_rank"]] = _counts(where, config, "q_lora_rank")
    parts: Table = {"experts": experts, "latent": latent}
    parts |= {"head_dim": of_keys + turned, "value_head_dim": values}
    for key, name in (
        ("dense_layers", "first_k_dense_replace"),
        ("prediction_modules", "num_nextn_predict_layers"),
    ):
        if config.get(name):
            [parts[key]] = _counts(where, config, name)
    if config.get("n_group"):
        groups, of_token = _counts(where, config, "n_group", "topk_group")
        if of_token < groups:
            parts["experts"] = {**experts, "share_of_nodes": of_token / groups}
    return parts


def _is_yarn(config: Table) -> bool:
    scaling = config.get("rope_scaling")
    return isinstance(scaling, dict) and scaling.get("rope_type") == "yarn"


def _counts(where: str, config: Table, *names: str) -> list[int]:
    """Numbers of a config; raises `InvalidConfiguration` where one is missing."""
    counts = {name: config[name] for name in names if config.get(name) is not None}
    require_keys("model", where, counts, dict.fromkeys(names, int))
    return [counts[name] for name in names]


def _require(where: str, config: Table, name: str, value: object) -> None:
    if config.get(name, value) != value:
        raise InvalidConfiguration(
            "model", f"{where}: {name} must be {value!r}, not {config[name]!r}"
        )
