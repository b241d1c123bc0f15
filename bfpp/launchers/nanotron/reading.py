"""The experiment that settings of nanotron mean; the model is said as in a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bfpp.launchers.arguments import (
    COUNT,
    NOT_SET,
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    Arguments,
    Flag,
    Words,
    rows,
)
from bfpp.schedules.settings.attention import Attention
from bfpp.sim.models.matrices import Experts
from bfpp.sim.models.model import Transformer

Values = dict[str, Any]

IMPLEMENTATION = "torchtitan"
"""PyTorch's kernels and FlashAttention-2: its own software has no profile."""

SECTIONS = {"parallelism", "tokens", "model", "optimizer"}
"""Tables that such a file has."""

ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
"""Schedules by the names of its engines."""

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


SIZES, EXPERTS = "model.model_config", "model.model_config.moe_config"

FLAGS: Mapping[str, Flag] = {
    **rows(
        "parallelism.",
        COUNT,
        "dp=1 pp=1 tp=1 context_parallel_size=1 expert_parallel_size=1",
    ),
    **rows("parallelism.", TEXT, "pp_engine=afab tp_mode=ALL_REDUCE"),
    **rows("parallelism.", SWITCH, "recompute_layer tp_linear_async_communication"),
    **rows("tokens.", COUNT, "sequence_length micro_batch_size=1 batch_accumulation_per_replica=1"),
    **rows("optimizer.", COUNT, "zero_stage=0"),
    **rows("optimizer.", SWITCH, "accumulate_grad_in_fp32"),
    **rows("optimizer.", NUMBER, "clip_grad=0"),
    **rows("model.", TEXT, "dtype=bfloat16"),
    **rows("model.", COUNT, "make_vocab_size_divisible_by=1"),
    **rows(
        f"{SIZES}.",
        COUNT,
        "num_hidden_layers hidden_size num_attention_heads intermediate_size num_key_value_heads "
        "vocab_size sliding_window_size",
    ),
    **rows(f"{SIZES}.", SWITCH, "tie_word_embeddings"),
    **rows(f"{SIZES}.", TEXT, "_attn_implementation=flash_attention_2"),
    **rows(
        f"{EXPERTS}.",
        COUNT,
        "num_experts top_k=2 moe_intermediate_size=1408 shared_expert_intermediate_size=5632",
    ),
    **rows(f"{EXPERTS}.", SWITCH, "enable_shared_expert"),
}

WITHOUT_EFFECT = {
    "general", "checkpoints", "logging", "lighteval", "profiler", "tokenizer", "data_stages",
    "metrics_logging", "s3_upload", "optimizer", "tokens", "data", "doremi",
}  # fmt: skip
"""Sections of which the settings that are not read change neither a step's time nor its memory."""

WITHOUT_EFFECT_TOO = {
    "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "rms_norm_eps",
    "rope_scaling", "rope_theta", "rope_interleaved", "use_cache", "pretraining_tp", "hidden_act",
    "max_position_embeddings", "is_llama_config", "is_qwen2_config", "z_loss_enabled",
    "z_loss_coefficient", "router_aux_loss_coef", "attention_bias", "log_attn_probs", "std",
    "scaling_method", "use_mup",
}  # fmt: skip
"""Sizes and constants of models that are no part of a step, or are few parameters."""

OF_LITTLE_EFFECT = {
    "ddp_bucket_cap_mb": "gradients are taken as summed by the implementation",
    "tp_recompute_allgather": "what a layer gathers is predicted to be kept once",
    **dict.fromkeys(
        ("_fused_rms_norm", "_fused_rotary_emb", "_use_qkv_packed", "_use_doc_masking"),
        "kernels of layers are taken as fused or not by the implementation",
    ),
}
"""Settings that may matter a little, and why they are left out."""


def is_nanotron(table: Mapping[str, Any]) -> bool:
    """True for the tables of such a file."""
    return table.keys() >= SECTIONS


def arguments_of(source: str, settings: Mapping[str, Words]) -> Arguments:
    """The settings of a file that have a value."""
    said = {name: words for name, words in settings.items() if words not in NOT_SET}
    return Arguments(source, said, FLAGS)


def reason_of(name: str) -> tuple[bool, str]:
    """True for a setting that can matter to the prediction, and why it is left out."""
    section = name.partition(".")[0]
    if section in WITHOUT_EFFECT:
        return False, f"{section}: no part of a step"
    last = name.rpartition(".")[2]
    if last in WITHOUT_EFFECT_TOO:
        return False, "constants in formulas, or few parameters"
    return True, OF_LITTLE_EFFECT.get(last, UNKNOWN)


def values_of(given: Arguments, name: str) -> Values:
    """Values of the experiment, whose model has that name."""
    names = ("dp", "pp", "tp", "context_parallel_size", "expert_parallel_size")
    degrees = [given[f"parallelism.{each}"] for each in names]
    values: Values = dict(zip(("dp", "pp", "tp", "cp", "ep"), degrees, strict=True))
    given.assume("software as torchtitan's: nanotron has no profile", "implementation")
    return {
        **values,
        **_stages(given, values["pp"]),
        **_computing(given, values["tp"]),
        "model": _model(given, name),
        "microbatches": given["tokens.batch_accumulation_per_replica"],
        "microbatch_size": given["tokens.micro_batch_size"],
        "sharding": _sharding(given),
        "main_gradients": None if given["optimizer.accumulate_grad_in_fp32"] else "bf16",
        "clipping": given["optimizer.clip_grad"] > 0,
        "implementation": IMPLEMENTATION,
    }


def _stages(given: Arguments, pp: int) -> Values:
    """The schedule; layers are divided by their operations, which balances time."""
    engine = str(given["parallelism.pp_engine"]).lower()
    if engine not in ENGINES:
        given.refuse("parallelism.pp_engine", f"{engine!r} is not one of {', '.join(ENGINES)}")
    if pp == 1:
        return {"schedule": "1f1b"}
    return {"schedule": ENGINES[engine], "pp_overlap": False, "balance": "time"}


def _sharding(given: Arguments) -> str:
    stage = given["optimizer.zero_stage"]
    if stage > 1:
        given.refuse("optimizer.zero_stage", f"must be 0 or 1, not {stage}")
    return "zero1" if stage else "none"


def _computing(given: Arguments, tp: int) -> Values:
    """Precision, recomputation and kernels."""
    dtype, mode = given["model.dtype"], str(given["parallelism.tp_mode"]).upper()
    if dtype not in PRECISIONS:
        given.refuse("model.dtype", f"{dtype!r} is not one of {', '.join(PRECISIONS)}")
    if given["parallelism.tp_linear_async_communication"] and tp > 1:
        given.replace(
            "parallelism.tp_linear_async_communication",
            "tensor-parallel collectives are predicted not to overlap GEMMs",
        )
    eager = given[f"{SIZES}._attn_implementation"] == "eager"
    return {
        "precision": PRECISIONS[dtype],
        "recompute": "full" if given["parallelism.recompute_layer"] else "none",
        "sequence_parallel": mode == "REDUCE_SCATTER" if tp > 1 else None,
        "attention": Attention.UNFUSED if eager else Attention.FUSED,
    }


def _model(given: Arguments, name: str) -> Transformer:
    """The model, whose MLP is gated."""

    def size(key: str) -> int:
        return int(given.required(f"{SIZES}.{key}"))

    multiple = given["model.make_vocab_size_divisible_by"] * given["parallelism.tp"]
    return Transformer(
        name,
        size("num_hidden_layers"),
        size("hidden_size"),
        size("num_attention_heads"),
        int(given.required("tokens.sequence_length")),
        -(-size("vocab_size") // multiple) * multiple,
        mlp=size("intermediate_size"),
        kv_heads=given[f"{SIZES}.num_key_value_heads"],
        gated=True,
        tied_embeddings=given[f"{SIZES}.tie_word_embeddings"],
        norm="rms",
        positions="rotary",
        window=given[f"{SIZES}.sliding_window_size"],
        experts=_experts(given),
    )


def _experts(given: Arguments) -> Experts | None:
    names = ("num_experts", "top_k", "moe_intermediate_size", "shared_expert_intermediate_size")
    routed, chosen, width, shared = (given[f"{EXPERTS}.{name}"] for name in names)
    is_shared = given[f"{EXPERTS}.enable_shared_expert"]
    if not routed:
        return None
    return Experts(routed, chosen, width, shared=shared if is_shared else None)
